"""Registration with rpcbind, against one of our own in a temporary socket."""

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated

import pytest

from rpcrdma.rpc.messages import (
    NULL_AUTH,
    accept_stat,
    accepted_reply,
    msg_type,
    reply_body,
    reply_data,
    reply_stat,
    rpc_body,
    rpc_msg,
)
from rpcrdma.rpc.rpcbind import RPCBPROC_GETADDR, RPCBPROC_SET, Rpcbind, Service, rpcb, services, universal_address
from rpcrdma.xdr import Decoder, opaque, pack
from tests.rfc.plugin import covers

NFS3 = Service(100003, 3, "tcp", "127.0.0.1.8.1")
MOUNT = Service(100005, 3, "tcp", "127.0.0.1.78.80")


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Without asyncio's: Python 3.12.1's logs an error where a server's handler is cancelled, as the fake's is."""
    return [record for record in caplog.records if record.name != "asyncio"]


class FakeRpcbind:
    """SET, UNSET and GETADDR as rpcbind does them."""

    def __init__(self) -> None:
        self.mappings: dict[tuple[int, int, bytes], bytes] = {}
        self.calls: list[int] = []
        self.status = accept_stat.SUCCESS
        self.silent = False
        self.garbage = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                (mark,) = struct.unpack(">I", await reader.readexactly(4))
                decoder = Decoder(await reader.readexactly(mark & 0x7FFFFFFF))
                header = decoder.decode(rpc_msg)
                mapping = decoder.decode(rpcb)
                decoder.finish(strict=True)
                call = header.body.cbody
                assert call is not None
                assert (call.prog, call.vers) == (100000, 4)
                self.calls.append(call.proc)
                if self.silent:
                    continue
                result = self.perform(call.proc, mapping)
                body = reply_body(reply_stat.MSG_ACCEPTED, areply=accepted_reply(NULL_AUTH, reply_data(self.status)))
                answer = pack(rpc_msg, rpc_msg(header.xid, rpc_body(msg_type.REPLY, rbody=body)))
                message = self.garbage or answer + (result if self.status == accept_stat.SUCCESS else b"")
                half = len(message) // 2  # in two fragments
                writer.write(struct.pack(">I", half) + message[:half])
                writer.write(struct.pack(">I", len(message) - half | 0x80000000) + message[half:])
        writer.close()

    def perform(self, procedure: int, mapping: rpcb) -> bytes:
        key = (mapping.r_prog, mapping.r_vers, mapping.r_netid)
        if procedure == RPCBPROC_GETADDR:
            return pack(Annotated[bytes, opaque(1024)], self.mappings.get(key, b""))
        if procedure == RPCBPROC_SET:
            done = key not in self.mappings
            self.mappings.setdefault(key, mapping.r_addr)
        else:
            done = self.mappings.pop(key, None) is not None
        return struct.pack(">I", done)


@contextlib.asynccontextmanager
async def fake(path: Path) -> AsyncIterator[tuple[FakeRpcbind, Rpcbind]]:
    rpcbind = FakeRpcbind()
    server = await asyncio.start_unix_server(rpcbind.serve, path / "rpcbind.sock")
    yield rpcbind, Rpcbind((str(path / "absent.sock"), str(path / "rpcbind.sock")), None)
    server.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_services_are_registered_and_only_ours_taken_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake(tmp_path) as (rpcbind, client):
            rpcbind.mappings[100021, 4, b"tcp"] = b"0.0.0.0.9.9"
            assert await client.register([NFS3, MOUNT]) == [NFS3, MOUNT]
            assert rpcbind.mappings == {
                (100021, 4, b"tcp"): b"0.0.0.0.9.9",
                (100003, 3, b"tcp"): b"127.0.0.1.8.1",
                (100005, 3, b"tcp"): b"127.0.0.1.78.80",
            }
            await client.unregister()
            assert rpcbind.mappings == {(100021, 4, b"tcp"): b"0.0.0.0.9.9"}
            calls = len(rpcbind.calls)
            await client.unregister()
            assert len(rpcbind.calls) == calls

    run(test)


def test_another_servers_registration_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with fake(tmp_path) as (rpcbind, client):
            rpcbind.mappings[100003, 3, b"tcp"] = b"0.0.0.0.8.1"
            assert await client.register([NFS3, MOUNT]) == [MOUNT]
            await client.unregister()
            assert rpcbind.mappings == {(100003, 3, b"tcp"): b"0.0.0.0.8.1"}

    with caplog.at_level(logging.INFO):
        run(test)
    assert "keeps another registration" in caplog.text
    assert all(record.levelno == logging.INFO for record in ours(caplog))


def test_what_a_killed_server_left_on_our_port_is_taken_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake(tmp_path) as (rpcbind, client):
            rpcbind.mappings[100003, 3, b"tcp"] = NFS3.uaddr.encode()
            assert await client.register([NFS3]) == [NFS3]
            await client.unregister()
            assert rpcbind.mappings == {}

    run(test)


@pytest.mark.parametrize("what", ["absent", "refused", "silent", "garbage", "huge"])
def test_whatever_rpcbind_does_is_one_line_of_information(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with fake(tmp_path) as (rpcbind, client):
            if what == "absent":
                client._sockets = ()
            rpcbind.status = accept_stat.PROG_UNAVAIL if what == "refused" else accept_stat.SUCCESS
            rpcbind.silent = what == "silent"
            client._patience = 0.05 if what == "silent" else 5
            rpcbind.garbage = {"garbage": b"abc", "huge": bytes(10000)}.get(what, b"")
            assert await client.register([NFS3]) == []
            await client.unregister()

    with caplog.at_level(logging.INFO):
        run(test)
    assert len([r for r in caplog.records if r.name == "rpcrdma.rpc.rpcbind"]) == 1
    assert all(record.levelno == logging.INFO for record in ours(caplog))


def test_tcp_when_there_is_no_socket() -> None:
    async def test() -> None:
        rpcbind = FakeRpcbind()
        server = await asyncio.start_server(rpcbind.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = Rpcbind((), ("127.0.0.1", port))
        assert await client.register([NFS3]) == [NFS3]
        await client.unregister()
        server.close()
        await server.wait_closed()
        assert await Rpcbind((), ("127.0.0.1", port)).register([NFS3]) == []

    run(test)


@covers("RFC 8166 9 netids")
def test_universal_addresses() -> None:
    assert universal_address("192.0.2.1", 2049) == "192.0.2.1.8.1"
    assert universal_address("::", 20049) == "::.78.81"


@covers("RFC 8166 9 netids")
def test_what_a_listener_registers() -> None:
    assert services(100003, (3, 4), "tcp", "127.0.0.1", 2049) == [
        Service(100003, 3, "tcp", "127.0.0.1.8.1"),
        Service(100003, 4, "tcp", "127.0.0.1.8.1"),
    ]
    assert services(100003, (3,), "rdma", "::", 20049) == [
        Service(100003, 3, "rdma6", "::.78.81"),
        Service(100003, 3, "rdma", "0.0.0.0.78.81"),
    ]
