"""The ways a call may take to a native function.

It is answered on a transport's own path, at once or after it has waited for a disk; or as a general call; or it is
handed over in the middle of a COMPOUND. Its data is inline or in a chunk. A rule that is checked in one place only, or
again by whatever brings what a call has waited for, can be lost on one way and hold on the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from nfsd.protocol import nfs3 as v3
from nfsd.protocol import nfs4 as p
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
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
from rpcrdma.xdr import pack
from tests.peer.rig import LINUX
from tests.support.general_calls import GeneralCalls
from tests.support.nfs4 import NFS, Client4, LoopbackTransport, Server4
from tests.support.nfs4_native import RARE, Wire

DATA = b"what is written by a rule's call"
"""What a WRITE writes: over RDMA it goes in a Read chunk. A READ asks for as much, and is offered a Write chunk."""
CALLER = (1001, 1001)
RPC_STATUS_AT = 24
"""Where the status of a procedure or of a COMPOUND stands in a reply."""


class Way(NamedTuple):
    """One way of a call."""

    kind: str
    """``memory``: nothing has to wait. ``disk``: a READ of what is not cached and every WRITE wait for a worker."""
    rdma: bool = False
    general: bool = False
    handed_over: bool = False
    """An operation in Python stands before the one in question."""

    def __str__(self) -> str:
        names = [self.kind, "rdma" if self.rdma else "tcp"]
        return "-".join([*names, *["general"] * self.general, *["handed-over"] * self.handed_over])


WAYS = [Way(kind, rdma, general) for kind in ("memory", "disk") for rdma in (False, True) for general in (False, True)]
HANDED_OVER = [Way(kind, rdma, False, True) for kind in ("memory", "disk") for rdma in (False, True)]


class RdmaWire:
    """One connection over RDMA, which a :class:`Client4` takes for its server. Data goes in chunks."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer

    async def call(self, transport: Any, message: bytes) -> bytes:
        """One RPC; the inline part of its reply."""
        lists: dict[str, Any] = {"writes": [[self.peer.writable(4096).segment(0, 4096)]]}
        at = message.find(DATA)
        if at >= 0:
            lists["reads"] = [(at, self.peer.readable(DATA).segment(0, len(DATA)))]
            message = message[:at] + message[at + len(DATA) :]
        self.peer.send(wire.header(int.from_bytes(message[:4], "big"), **lists), message)
        header = (await self.peer.message()).header
        assert header.procedure == wire.MSG
        return bytes(header.payload)


class Asking:
    """A caller of NFSv3 and NFSv4 at the end of one way to a server."""

    def __init__(self, server: Server4, way: Way, dispatcher: Dispatcher, wire: Any, minor: int) -> None:
        self.server, self.way, self.dispatcher, self.wire = server, way, dispatcher, wire
        self.client = Client4(wire, minor, uid=CALLER[0], gid=CALLER[1], name=b"asking", transport=LoopbackTransport())
        self.xid = 1 << 20

    def natively(self) -> int:
        """Calls answered on the transport's own path so far."""
        return sum(row.native_calls for row in self.dispatcher.rows.values())

    def waited(self) -> int:
        """Calls that have waited there for something."""
        return sum(count for *_, count in self.dispatcher.waited())

    async def three(self, procedure: int, arguments: Any) -> int:
        """The status of a procedure of NFSv3."""
        self.xid += 1
        credential = struct.pack(">5I", 0, 0, *CALLER, 0)
        head = struct.pack(">8I", self.xid, 0, 2, NFS, 3, procedure, 1, len(credential))
        message = head + credential + bytes(8) + pack(v3.PROCEDURES[procedure].arguments, arguments)
        return status_in(await self.wire.call(None, message))

    async def four(self, handle: bytes, operation: Any) -> int:
        """The status of a COMPOUND with an operation on a file."""
        before = [p.OP_PUTROOTFH, RARE] * self.way.handed_over
        operations = self.client.in_session(*before, (p.OP_PUTFH, p.PUTFH4args(handle)), operation)
        return status_in(await self.wire.call(None, self.client.message(*operations)))

    async def read3(self, handle: bytes) -> int:
        """READ."""
        return await self.three(6, v3.READ3args(v3.nfs_fh3(handle), 0, len(DATA)))

    async def write3(self, handle: bytes) -> int:
        """WRITE."""
        arguments = v3.WRITE3args(v3.nfs_fh3(handle), 0, len(DATA), v3.stable_how.UNSTABLE, memoryview(DATA))
        return await self.three(7, arguments)

    async def read4(self, handle: bytes, stateid: p.stateid4) -> int:
        """READ."""
        return await self.four(handle, (p.OP_READ, p.READ4args(stateid, 0, len(DATA))))

    async def write4(self, handle: bytes, stateid: p.stateid4) -> int:
        """WRITE."""
        return await self.four(handle, (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, DATA)))


def status_in(reply: bytes) -> int:
    """The status that a reply begins with, behind its RPC header."""
    assert reply[4:RPC_STATUS_AT] == struct.pack(">5I", 1, 0, 0, 0, 0), "not an accepted, successful reply"
    return int.from_bytes(reply[RPC_STATUS_AT:][:4], "big")


def uncached(path: Path) -> None:
    """Have nothing of a file in the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@contextlib.asynccontextmanager
async def asking(server: Server4, way: Way, minor: int) -> AsyncIterator[Asking]:
    """A caller at the end of this way."""
    recalls, exports, service = server.nfs4.recalls, server.nfs4.exports, server.service
    three = nfs3_procedures(service, exports, delegations=recalls)
    programs = [Program(NFS, "nfs", {3: three, 4: nfs4_procedures()})]
    natives = {(NFS, 3): Nfs3Procedures(service, delegations=recalls), (NFS, 4): Nfs4Procedures(server.nfs4)}
    dispatcher = (GeneralCalls if way.general else Dispatcher)(programs, natives=natives)
    async with (over_rdma if way.rdma else over_tcp)(dispatcher) as wire:
        asks = Asking(server, way, dispatcher, wire, minor)
        await asks.client.connect()
        yield asks


@contextlib.asynccontextmanager
async def over_tcp(dispatcher: Dispatcher) -> AsyncIterator[Wire]:
    """A connection."""
    listener = TcpListener(dispatcher, Pool(64 << 20), asyncio.get_running_loop())
    listener.listen("127.0.0.1", 0)
    wire = Wire(*await asyncio.open_connection("127.0.0.1", listener.address[1]))
    try:
        yield wire
    finally:
        wire.writer.close()
        listener.close()


@contextlib.asynccontextmanager
async def over_rdma(dispatcher: Dispatcher) -> AsyncIterator[RdmaWire]:
    """A connection on the embedded provider."""
    pool = Pool(64 << 20)
    provider = SoftIwarp(pool)
    server = RdmaServer(provider, pool, dispatcher, RdmaServerOptions(ResponderOptions(first_credits=128)))
    listener = await server.listen(ListenAddress("127.0.0.1", 0))
    peer = Peer(Pool(64 << 20).account(32 << 20))
    await peer.connect(provider, listener.address, LINUX)
    try:
        yield RdmaWire(peer)
    finally:
        peer.endpoint.close(abort=True)
        await server.close()
        await provider.close()
