"""One NFSv4 server in two ways: one answers natively what it can, the other one nothing."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nfsd.protocol import nfs4 as p
from nfsd.v4.procedures import Nfs4Procedures
from nfsd.v4.program import nfs4_procedures
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.memory import Pool
from rpcrdma.peer import wire
from rpcrdma.peer.requester import Peer
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.rdma import RdmaServer, RdmaServerOptions
from rpcrdma.server.tcp import TcpListener
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from tests.peer.rig import LINUX
from tests.support.general_calls import GeneralCalls
from tests.support.nfs4 import NFS, Client4, LoopbackTransport, Operation, Server4, serving

SEQUENCE_AT = 24 + 12
"""Where SEQUENCE's result stands in a reply whose tag is empty."""
TRIES = 3
"""Comparisons before replies count as different: between two calls the kernel may note another atime (relatime does so
again when the clock ticks right after a change), or allocate what was written."""


class Wire:
    """One TCP connection, which a :class:`Client4` takes for its server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def call(self, transport: Any, message: bytes) -> bytes:
        """One RPC."""
        self.send(message)
        return await self.reply()

    def send(self, message: bytes) -> None:
        """A record."""
        self.writer.write(struct.pack(">I", 1 << 31 | len(message)) + message)

    async def reply(self) -> bytes:
        """The next record."""
        (mark,) = struct.unpack(">I", await self.reader.readexactly(4))
        return await self.reader.readexactly(mark & 0x7FFFFFFF)


class InStep:
    """A client, from NFSv4.1 on with one session, on two ways to the server, of which one answers natively what it can.
    On each it uses slots of its own, so that the two keep step."""

    client: Client4

    def __init__(self, server: Server4, path: Path, minor: int) -> None:
        self.server, self.path, self.minor = server, path, minor
        self.programs = [Program(NFS, "nfs", {4: nfs4_procedures()})]
        self.dispatcher = Dispatcher(self.programs, natives={(NFS, 4): Nfs4Procedures(server.nfs4)})
        self.general_dispatcher = GeneralCalls(self.programs, natives={(NFS, 4): Nfs4Procedures(server.nfs4)})
        self.sequences: dict[int, int] = {}
        self._before = 0

    @property
    def session(self) -> Any:
        """The session, as the engine has it."""
        return self.server.engine.sessions.by_id[self.client.session]

    @property
    def answered(self) -> int:
        """COMPOUNDs answered natively since the connections were made."""
        return self.dispatcher.rows[NFS, 4, 1].native_calls - self._before

    def message(
        self, slot: int, *operations: Operation, cache: bool = False, caller: tuple[int, int] = (0, 0), highest: int = 7
    ) -> bytes:
        """A COMPOUND with the next sequence id of one of the slots 1 to 7 (0 is the client's own); of NFSv4.0 without
        SEQUENCE."""
        if not self.minor:
            self.client.credential = (*caller, ())
            return self.client.message(*operations)
        slot += 1
        self.sequences[slot] = self.sequences.get(slot, 0) + 1
        self.client.credential = (*caller, ())
        arguments = p.SEQUENCE4args(self.client.session, self.sequences[slot], slot, highest, cache)
        return self.client.message((p.OP_SEQUENCE, arguments), *operations)

    def same_slots(self) -> None:
        """See that the slots of both ways are in the same state."""
        if not self.minor:
            return
        one, other = self.session.slots[1:3]
        fields = ("seqid", "in_use", "used", "renewed", "generation", "cachethis", "fingerprint")
        assert [getattr(one, name) for name in fields] == [getattr(other, name) for name in fields]
        assert (one.reply is None) == (other.reply is None)
        if one.reply is not None:
            assert comparable(bytes(24) + one.reply) == comparable(bytes(24) + other.reply)

    def same_progress(self) -> None:
        """See that the slots of both ways have got as far as each other, of whatever COMPOUNDs."""
        if self.minor:
            one, other = self.session.slots[1:3]
            assert (one.seqid, one.in_use, one.cachethis) == (other.seqid, other.in_use, other.cachethis)
            assert (one.reply is None) == (other.reply is None)


class Both(InStep):
    """Two TCP ports."""

    async def connect(self) -> None:
        """Make the connections and the session."""
        pool, loop = Pool(256 << 20), asyncio.get_running_loop()
        self.pool = pool
        self.listeners = [TcpListener(self.dispatcher, pool, loop), TcpListener(self.general_dispatcher, pool, loop)]
        for listener in self.listeners:
            listener.listen("127.0.0.1", 0)
        self.wires = [
            Wire(*await asyncio.open_connection("127.0.0.1", listener.address[1])) for listener in self.listeners
        ]
        self.native, self.general = self.wires
        made: Any = self.wires[1]
        self.client = await Client4(made, self.minor, transport=LoopbackTransport()).connect()
        for number, port in enumerate(self.wires):
            await port.call(None, self.message(number, p.OP_PUTROOTFH))
        self._before = self.answered

    async def close(self) -> None:
        """Give everything back."""
        for port in self.wires:
            port.writer.close()
        for listener in self.listeners:
            listener.close()

    async def same(self, *operations: Operation, **how: Any) -> bytes:
        """The one reply of both to a COMPOUND that changes nothing (but perhaps, the first time, atime)."""
        await self.native.call(None, self.message(2, *operations, **how))
        for _ in range(TRIES):
            general = await self.general.call(None, self.message(1, *operations, **how))
            native = await self.native.call(None, self.message(0, *operations, **how))
            if comparable(native) == comparable(general):
                break
        assert comparable(native) == comparable(general)
        self.same_slots()
        return native


class BothRdma(InStep):
    """Two RDMA servers on the embedded provider."""

    async def connect(self) -> None:
        """Make the connections and the session."""
        self.pool, self.peer_pool = Pool(128 << 20), Pool(256 << 20)
        self.provider = SoftIwarp(self.pool)
        self.servers = [
            RdmaServer(self.provider, self.pool, dispatcher, RdmaServerOptions(ResponderOptions(first_credits=128)))
            for dispatcher in (self.dispatcher, self.general_dispatcher)
        ]
        self.peers = []
        for server in self.servers:
            listener = await server.listen(ListenAddress("127.0.0.1", 0))
            peer = Peer(self.peer_pool.account(64 << 20))
            self.peers.append(await peer.connect(self.provider, listener.address, LINUX))
        self.client = await Client4(self.server, self.minor, transport=LoopbackTransport()).connect()
        for which in (0, 1):
            await self.call(which, which, p.OP_PUTROOTFH)
        self._before = self.answered

    async def close(self) -> None:
        """Give everything back."""
        for peer in self.peers:
            peer.endpoint.close(abort=True)
        for server in self.servers:
            await server.close()
        await self.provider.close()
        assert self.pool.in_use == self.pool.leaked == 0

    async def call(
        self, which: int, slot: int, *operations: Operation, room: int | None = None, data: bytes = b"",
        reply: int | None = None, **how: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """One COMPOUND to one of the servers: everything about its outcome that must not depend on the server. ``room``
        octets of a Write chunk; ``reply`` octets of a Reply chunk; ``data``, which stands somewhere in the call, in a
        Read chunk."""
        peer, message = self.peers[which], self.message(slot, *operations, **how)
        lists: dict[str, Any] = {}
        memory, handles = None, []
        if room is not None:
            memory = peer.writable(max(room, 1))
            lists["writes"] = [[memory.segment(0, room)]]
            handles.append(memory.handle)
        if data:
            source, at = peer.readable(data), message.index(data)
            lists["reads"] = [(at, source.segment(0, len(data)))]
            message = message[:at] + message[at + len(data) + (-len(data) & 3) :]
            handles.append(source.handle)
        long = peer.writable(reply or 1)
        if reply is not None:
            lists["reply"] = [long.segment(0, reply)]
            handles.append(long.handle)
        peer.send(wire.header(int.from_bytes(message[:4], "big"), **lists), message)
        answer = await peer.message()
        header = answer.header
        assert header.xid == int.from_bytes(message[:4], "big")
        payload = header.payload
        if header.procedure == wire.NOMSG:
            assert header.reply is not None
            payload = bytes(long.memory[: header.reply[0].length])
        return (
            header.procedure,
            header.error,
            header.credit,
            [[segment.length for segment in each] for each in header.writes],
            comparable(payload) if payload else b"",
            None if memory is None else bytes(memory.memory),
            None if answer.invalidated is None else handles.index(answer.invalidated),
        )

    async def same(self, *operations: Operation, **how: Any) -> tuple[Any, ...]:
        """The one outcome of a COMPOUND that changes nothing (but perhaps, the first time, atime)."""
        await self.call(0, 2, *operations, **how)
        for _ in range(TRIES):
            general = await self.call(1, 1, *operations, **how)
            native = await self.call(0, 0, *operations, **how)
            if native == general:
                break
        assert native == general
        self.same_slots()
        return general


def comparable(reply: bytes) -> bytes:
    """A reply without its XID and its slot."""
    result = reply[SEQUENCE_AT : SEQUENCE_AT + 8]
    if result == struct.pack(">II", p.OP_SEQUENCE, 0):
        slot = SEQUENCE_AT + 8 + 20
        reply = reply[:slot] + bytes(4) + reply[slot + 4 :]
    return reply[4:]


def run(
    path: str,
    tmp_path: Path,
    minor: int,
    scenario: Callable[[Any], Awaitable[Any]],
    ways: type[Both] | type[BothRdma] = Both,
    **serving_how: Any,
) -> Any:
    """Run a scenario over the directory ``path``."""
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)

    async def main() -> Any:
        async with serving(Path(path), state_dir=state, **serving_how) as server:
            both = ways(server, Path(path), minor)
            await both.connect()
            try:
                return await scenario(both)
            finally:
                await both.close()

    return asyncio.run(main())


RARE = (p.OP_NVERIFY, p.NVERIFY4args(p.fattr4([1 << p.FATTR4_SIZE], bytes(7) + b"\1")))
"""An operation that is carried out in Python; no file here is of this size."""


def handle_of(both: InStep, name: bytes = b"") -> Awaitable[bytes]:
    """The handle of a file, or of the export's root."""

    async def find() -> bytes:
        *_, found = await both.client.run(*both.client.path(os.path.join("/0", os.fsdecode(name))), p.OP_GETFH)
        handle: bytes = found.resok4.object
        return handle

    return find()
