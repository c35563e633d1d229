"""A realm of the tests' own, an acceptor in it, and servers that it is given to."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import pytest

from rpcrdma.client import ClientOptions, Connection, Gss, connect
from rpcrdma.gss.acceptor import Acceptor, AcceptorLimits
from rpcrdma.gss.identity import Identity
from rpcrdma.gss.mechanism import Initiation, Sealer
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import NO_REPLY, Dispatcher
from rpcrdma.rpc.gss_messages import DATA, FLAVOR, INIT, NONE, GssCredential, parse_init_results
from rpcrdma.rpc.messages import accept_stat, auth_stat, rpc_msg
from rpcrdma.rpc.program import Call, Procedure, Program, RpcReply
from rpcrdma.server.tcp import TcpListener
from rpcrdma.xdr import Decoder, opaque
from tests.peer.echo import PROGRAM, VERSION, Control, echo_program
from tests.peer.rig import Rig
from tests.support import kdc
from tests.unit.rpc_support import FakeTransport

WHO = 0x20000078
NAME = Annotated[bytes, opaque(400)]
USERS = {"alice@EXAMPLE.ORG": Identity(1001, 100, tuple(range(2000, 2040)))}
SERVICE = "nfs@localhost"


@contextmanager
def realm(directory: Path) -> Iterator[kdc.Realm]:
    """A realm with a service and two users, the environment being alice's."""
    if not kdc.PRESENT:
        pytest.skip(kdc.WITHOUT_KDC)
    with kdc.realm(directory) as made:
        made.keytab("nfs/localhost")
        made.add("alice")
        made.add("bob")
        with mock.patch.dict(os.environ, made.ticket("alice")):
            yield made


async def _who(call: Call, _: None) -> bytes:
    credential = call.credential
    return f"{credential.principal} {credential.security} {credential.uid} {len(credential.gids)}".encode()


def programs(control: Control) -> list[Program]:
    """The echo program, and one that says who calls."""
    return [echo_program(control), Program(WHO, "who", {1: {1: Procedure("WHO", _who, None, NAME)}})]


def acceptor(realm: kdc.Realm, **limits: Any) -> Acceptor:
    return Acceptor(USERS.get, keytab=str(realm.directory / "keytab"), limits=AcceptorLimits(**limits))


@asynccontextmanager
async def over(
    carrier: str, realm: kdc.Realm, security: Any, *, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Connection, Acceptor, Any]]:
    """A connection over ``tcp``, ``rdma1`` or ``rdma2`` whose calls are secured; its server's acceptor and control."""
    made, control = acceptor(realm, **(limits or {})), Control()
    settings = ClientOptions(gss=Gss(security, SERVICE), **options)
    try:
        if carrier == "tcp":
            pool = Pool(64 << 20)
            dispatcher = Dispatcher(programs(control), gss=made)
            listener = TcpListener(dispatcher, pool, asyncio.get_running_loop())
            listener.listen("127.0.0.1", 0)
            try:
                async with connect("127.0.0.1", listener.address[1], transport="tcp", options=settings) as connection:
                    yield connection, made, control
            finally:
                listener.close()
            assert pool.in_use == 0
            return
        async with Rig(programs=programs(Control())[1:], gss=made) as rig:
            address = rig.listener.address
            version: Any = int(carrier[-1])
            async with connect(
                address.host, address.port, provider=rig.provider, version=version, options=settings
            ) as connection:
                yield connection, made, rig.control
    finally:
        made.close()


class Raw:
    """A caller that makes every octet of its calls itself."""

    def __init__(self, dispatcher: Dispatcher, transport: FakeTransport | None = None) -> None:
        self.dispatcher, self.transport = dispatcher, transport or FakeTransport()
        self.handle = b""
        self.sequence = 0
        self.xid = 0

    async def send(self, message: bytes) -> RpcReply | None:
        """The reply; the dispatcher's NO_REPLY where there is none."""
        outcome: asyncio.Future[RpcReply | None] = asyncio.get_running_loop().create_future()
        self.dispatcher.dispatch(self.transport, memoryview(bytearray(message)), (), [], outcome.set_result)  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            return await outcome

    def header(self, credential: bytes, procedure: int = 0) -> bytes:
        self.xid += 1
        return struct.pack(">8I", self.xid, 0, 2, PROGRAM, VERSION, procedure, FLAVOR, len(credential)) + credential

    async def init(self, token: bytes, credential: GssCredential | None = None, tail: bytes = b"") -> RpcReply | None:
        who = credential or GssCredential(1, INIT, 0, NONE, b"")
        octets = struct.pack(">I", len(token)) + token + bytes(-len(token) & 3)
        return await self.send(self.header(who.encode()) + bytes(8) + octets + tail)

    async def make(self) -> bytes:
        """A context of the environment's user; its handle."""
        making = Initiation(SERVICE)
        reply = await self.init(await asyncio.to_thread(making.step, b""))
        assert reply is not None
        handle, major, _, self.window, token = parse_init_results(results(reply))
        assert major == 0
        making.step(token)
        self.handle, self.exported = handle, making.export()
        self.sealer = Sealer(self.exported)
        return handle

    def message(
        self, arguments: bytes = b"", procedure: int = 0, *, sequence: int | None = None, service: int = NONE,
        gss: int = DATA, handle: bytes | None = None,
    ) -> bytes:  # fmt: skip
        """A call with its verifier."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        head = self.header(GssCredential(1, gss, sequence, service, handle or self.handle).encode(), procedure)
        mic = self.sealer.sign(head)
        return head + struct.pack(">II", FLAVOR, len(mic)) + mic + arguments

    async def call(self, *arguments: Any, **options: Any) -> str:
        return outcome(await self.send(self.message(*arguments, **options)))


def integrity(raw: Raw, sequence: int, arguments: bytes = b"") -> bytes:
    body = struct.pack(">I", sequence) + arguments
    mic = raw.sealer.sign(body)
    return struct.pack(">I", len(body)) + body + struct.pack(">I", len(mic)) + mic


def privacy(raw: Raw, sequence: int, arguments: bytes = b"") -> bytes:
    body = struct.pack(">I", sequence) + arguments
    room = raw.sealer.room(len(body))
    token = bytearray(sum(room) + len(body))
    token[room[0] : room[0] + len(body)] = body
    length = raw.sealer.wrap(token, room, len(body))
    return struct.pack(">I", length) + token[:length] + bytes(-length & 3)


def results(reply: RpcReply) -> memoryview:
    """What stands behind the header of an accepted reply."""
    length = int.from_bytes(reply.head[16:20], "big")
    return memoryview(reply.head)[24 + length + (-length & 3) :]


def outcome(reply: RpcReply | None) -> str:
    """What has become of a call, in a word."""
    if reply is None:
        return "closed"
    if reply is NO_REPLY:
        return "dropped"
    body = Decoder(bytes(reply.head)).decode(rpc_msg).body.rbody
    if body.rreply is not None:
        return auth_stat(body.rreply.auth_stat).name
    return accept_stat(body.areply.reply_data.stat).name
