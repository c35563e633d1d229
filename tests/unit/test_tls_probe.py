"""The probe for TLS, AUTH_TLS (RFC 9289 section 4.1), where its reply cannot leave at once."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from rpcrdma.server.tcp_connection import TcpConnection
from tests.unit.tcp_support import until
from tests.unit.test_tls import PROBE, Secured


def test_a_peer_that_takes_no_starttls_costs_no_turns_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind the probe waits until the reply has left; so does the server."""
    rig = Secured(tmp_path)
    turns: list[TcpConnection] = []
    flush = TcpConnection._flush

    def counted(self: TcpConnection) -> None:
        turns.append(self)
        flush(self)

    monkeypatch.setattr(TcpConnection, "_flush", counted)
    monkeypatch.setattr(TcpConnection, "begin_tls", lambda self: self._securing.ask())  # behind others, as nobody may

    async def test() -> None:
        loop = asyncio.get_running_loop()
        (started,) = [one for one in rig.daemon.listeners.of("nfs") if one.tcp is not None]
        assert started.tcp is not None
        connections = started.tcp.connections
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", rig.ports["tcp"]))
            null = struct.pack(">10I", 9, 0, 2, 100003, 4, 0, 0, 0, 0, 0)
            await loop.sock_sendall(sock, struct.pack(">I", 0x80000000 | len(null)) + null)
            await until(lambda: bool(connections))
            (connection,) = connections
            connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            while not connection.stream.queued:
                await loop.sock_sendall(sock, (struct.pack(">I", 0x80000000 | len(null)) + null) * 50)
                await asyncio.sleep(0.01)
            await loop.sock_sendall(sock, PROBE + PROBE)
            await until(lambda: connection._securing.waits)
            del turns[:]
            for _ in range(500):
                await asyncio.sleep(0)
            assert len(turns) < 20

    rig.run(test)
