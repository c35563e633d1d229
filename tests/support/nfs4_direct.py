"""One NFSv4 server behind two ports: one answers natively what it can, the other one nothing."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nfsd.protocol import nfs4 as p
from nfsd.v4.direct import Nfs4Direct
from nfsd.v4.program import nfs4_procedures
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.tcp import TcpListener
from tests.support.nfs4 import NFS, Client4, LoopbackTransport, Operation, Server4, serving

SEQUENCE_AT = 24 + 12
"""Where SEQUENCE's result stands in a reply whose tag is empty."""


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


class Both:
    """Both ports, and a client with one session that is bound to a connection to each. On each it uses slots of its
    own, so that the two keep step."""

    def __init__(self, server: Server4, path: Path, minor: int) -> None:
        self.server, self.path, self.minor = server, path, minor
        pool, loop = Pool(256 << 20), asyncio.get_running_loop()
        programs = [Program(NFS, "nfs", {4: nfs4_procedures(server.nfs4)})]
        self.dispatcher = Dispatcher(programs, direct={(NFS, 4): Nfs4Direct(server.nfs4)})
        self.listeners = [TcpListener(self.dispatcher, pool, loop), TcpListener(Dispatcher(programs), pool, loop)]
        for listener in self.listeners:
            listener.listen("127.0.0.1", 0)
        self.sequences: dict[int, int] = {}

    async def connect(self) -> None:
        """Make the connections and the session."""
        self.wires = [
            Wire(*await asyncio.open_connection("127.0.0.1", listener.address[1])) for listener in self.listeners
        ]
        self.direct, self.general = self.wires
        made: Any = self.wires[1]
        self.client = await Client4(made, self.minor, transport=LoopbackTransport()).connect()
        for number, wire in enumerate(self.wires):
            await wire.call(None, self.message(number))

    async def close(self) -> None:
        """Give everything back."""
        for wire in self.wires:
            wire.writer.close()
        for listener in self.listeners:
            listener.close()

    @property
    def session(self) -> Any:
        """The session, as the engine has it."""
        return self.server.engine.sessions.by_id[self.client.session]

    @property
    def answered(self) -> int:
        """COMPOUNDs answered natively so far."""
        return self.dispatcher.rows[NFS, 4, 1].direct

    def message(
        self, slot: int, *operations: Operation, cache: bool = False, caller: tuple[int, int] = (0, 0), highest: int = 7
    ) -> bytes:
        """A COMPOUND with the next sequence id of one of the slots 1 to 7 (0 is the client's own)."""
        slot += 1
        self.sequences[slot] = self.sequences.get(slot, 0) + 1
        self.client.credential = (*caller, ())
        arguments = p.SEQUENCE4args(self.client.session, self.sequences[slot], slot, highest, cache)
        return self.client.message((p.OP_SEQUENCE, arguments), *operations)

    async def same(self, *operations: Operation, **how: Any) -> bytes:
        """The one reply of both to a COMPOUND that changes nothing (but perhaps, the first time, atime)."""
        await self.direct.call(None, self.message(2, *operations, **how))
        general = await self.general.call(None, self.message(1, *operations, **how))
        direct = await self.direct.call(None, self.message(0, *operations, **how))
        assert comparable(direct) == comparable(general)
        self.same_slots()
        return direct

    def same_slots(self) -> None:
        """See that the slots of both ports are in the same state."""
        one, other = self.session.slots[1:3]
        fields = ("seqid", "in_use", "used", "renewed", "generation", "cachethis", "fingerprint")
        assert [getattr(one, name) for name in fields] == [getattr(other, name) for name in fields]
        assert (one.reply is None) == (other.reply is None)
        if one.reply is not None:
            assert comparable(bytes(24) + one.reply) == comparable(bytes(24) + other.reply)


def comparable(reply: bytes) -> bytes:
    """A reply without its XID and its slot."""
    result = reply[SEQUENCE_AT : SEQUENCE_AT + 8]
    if result == struct.pack(">II", p.OP_SEQUENCE, 0):
        slot = SEQUENCE_AT + 8 + 20
        reply = reply[:slot] + bytes(4) + reply[slot + 4 :]
    return reply[4:]


def run(path: str, tmp_path: Path, minor: int, scenario: Callable[[Both], Awaitable[Any]], **serving_how: Any) -> Any:
    """Run a scenario over the directory ``path``."""
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)

    async def main() -> Any:
        async with serving(Path(path), state_dir=state, **serving_how) as server:
            both = Both(server, Path(path), minor)
            await both.connect()
            try:
                return await scenario(both)
            finally:
                await both.close()

    return asyncio.run(main())


def handle_of(both: Both, name: bytes = b"") -> Awaitable[bytes]:
    """The handle of a file, or of the export's root."""

    async def find() -> bytes:
        *_, found = await both.client.run(*both.client.path(os.path.join("/0", os.fsdecode(name))), p.OP_GETFH)
        handle: bytes = found.resok4.object
        return handle

    return find()
