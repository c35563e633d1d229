"""TLS on TCP: what becomes of a client whose certificate is not believed."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path
from typing import cast

import pytest
import trustme

from rpcrdma.tls import link, relay
from tests.unit.test_tls import Raw, Secured, raw


def test_a_client_that_is_not_believed_can_read_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client takes the handshake for done, and may be slow to look. The connection stays until it has closed it."""
    monkeypatch.setattr(relay, "FAREWELL", 3600.0)
    monkeypatch.setattr(relay, "HANDSHAKE_TIME", 3600.0)
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
    monkeypatch.setattr(relay, "FAREWELL", 0.5 if how == "waits" else 3600.0)
    monkeypatch.setattr(relay, "HANDSHAKE_TIME", 3600.0)
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


class Endless:
    """One end of TLS that takes everything and has no data, as while keys change again and again."""

    def read(self, size: int) -> bytes:
        raise ssl.SSLWantReadError


def test_records_without_data_end_the_connection() -> None:
    """A peer could keep the thread that serves all others at work with them."""
    (ours, peer), (clear, other) = socket.socketpair(), socket.socketpair()
    for sock in (ours, peer, clear, other):
        sock.setblocking(False)
    one = link.Link(ours, clear, lambda incoming, outgoing: cast("ssl.SSLObject", Endless()), lambda *_: None, 10.0)
    for _ in range(link.MOST_EMPTY // link.STEP):
        peer.send(bytes(link.STEP))
        one.into(8)
    peer.send(bytes(link.STEP))
    with pytest.raises(ConnectionError, match="without data"):
        one.into(8)
    for sock in (ours, peer, clear, other):
        sock.close()
