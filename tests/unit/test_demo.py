"""``make demo`` says at once what is in its way."""

import socket
import sys

import pytest

from tests.vm import demo, network
from tests.vm.server import TCP_PORT


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which no network namespace can be made, and whose loopback interface is another's."""

    def refused(*words: str) -> None:
        raise OSError("ip netns add: Operation not permitted")

    monkeypatch.setattr(network, "_ip", refused)
    monkeypatch.setattr(network.Slirp, "listen_address", "127.31.7.1")


@pytest.mark.usefixtures("nowhere")
def test_a_server_that_has_the_ports_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "--check", "--vers", "4.2"])
    assert demo.main() == 0
    with socket.create_server(("127.31.7.1", TCP_PORT)):
        assert demo.main() == 1
        said = capsys.readouterr().err
        assert f"port {TCP_PORT} of 127.31.7.1 is in use" in said
        assert "make run" in said
        # Without --check it ends in the same place, before anything is started or booted.
        monkeypatch.setattr(sys, "argv", ["demo"])
        assert demo.main() == 1
        assert capsys.readouterr().err == said
