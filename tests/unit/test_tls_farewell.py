"""TLS on TCP: what becomes of a client whose certificate is not believed."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import time
from pathlib import Path

import pytest
import trustme

from rpcrdma.tls import handshake, handshakes
from rpcrdma.tls.secrets import KeyLog
from tests.unit.test_tls import Raw, Secured, raw


def test_a_client_that_is_not_believed_can_read_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client takes the handshake for done, and may be slow to look. The connection stays until it has closed it."""
    monkeypatch.setattr(handshakes, "FAREWELL", 3600.0)
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIME", 3600.0)
    rig = Secured(tmp_path, mtls=True)
    said = "no TLS: unable to get local issuer certificate"
    context = ssl.create_default_context(cafile=str(rig.roots))
    context.load_cert_chain(rig.own(trustme.CA()))

    def work(port: int) -> None:
        one = Raw(port)
        one.probe()
        secured = context.wrap_socket(one.sock, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
            secured.recv(1)
        secured.settimeout(0.5)
        with pytest.raises(TimeoutError):  # neither an end nor a reset
            socket.socket.recv(secured, 1)
        assert said not in caplog.text
        secured.close()
        until = time.monotonic() + 60
        while said not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.05)

    rig.run(raw(rig, work))


@pytest.mark.parametrize("how", ["waits", "talks"])
def test_a_client_that_is_not_believed_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(handshakes, "FAREWELL", 0.5 if how == "waits" else 3600.0)
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIME", 3600.0)
    rig = Secured(tmp_path, mtls=True)
    context = ssl.create_default_context(cafile=str(rig.roots))
    context.load_cert_chain(rig.own(trustme.CA()))

    def work(port: int) -> None:
        one = Raw(port)
        one.probe()
        secured = context.wrap_socket(one.sock, server_hostname="127.0.0.1")
        with contextlib.suppress(OSError):
            secured.recv(1)
        secured.settimeout(60)
        with contextlib.suppress(ConnectionError):
            while how == "talks":
                socket.socket.sendall(secured, bytes(4096))
            assert not socket.socket.recv(secured, 1)

    rig.run(raw(rig, work))


def test_an_end_that_cannot_be_made_costs_its_connection_only() -> None:
    """The thread goes on: all others are secured by it."""
    told: queue.Queue[str] = queue.Queue()

    def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        raise RuntimeError("a mistake of ours")

    thread = handshakes.Handshakes(KeyLog())
    ends: list[socket.socket] = []
    for _ in range(2):
        ends += socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        thread.begin(ends[-1], "host", wrap, lambda _, why, secrets: told.put(why))
        assert told.get(timeout=60) == "a mistake of ours"
    thread.close()
    for end in ends:
        end.close()


def test_an_end_that_goes_wrong_costs_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise when a connection cannot even be ended as it should be."""

    def breaks(self: handshake.Handshake) -> bool:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(handshake.Handshake, "say_goodbye", breaks)
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    thread = handshakes.Handshakes(KeyLog())
    told: queue.Queue[str] = queue.Queue()
    for _ in range(2):
        sock, peer = socket.socketpair()
        sock.setblocking(False)
        thread.begin(
            sock,
            "host",
            lambda here, there: context.wrap_bio(here, there, server_side=True),
            lambda _, why, secrets: told.put(why),
        )
        peer.sendall(b"no handshake")
        assert told.get(timeout=60) == "WRONG_VERSION_NUMBER"
        sock.close()
        peer.close()
    thread.close()
