"""NFS work with messages of every kind, for captures: NFSv3 and NFSv4.1 over RPC-over-RDMA, and over TCP.

The same names and data either way; over RDMA data go in Read chunks and Write chunks, and there are a Long Call and a
Long Reply.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Sequence
from typing import Any

from nfsd.protocol import nfs3
from nfsd.protocol import nfs4 as p
from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Exposed, Peer
from rpcrdma.peer.wire import NOMSG, Segment, header, header_two
from rpcrdma.verbs.interface import ListenAddress, Provider
from rpcrdma.xdr import Decoder, pack
from tests.nfs3_client import Nfs3Client, attributes, auth_sys
from tests.peer.rig import DEVICE_ADDRESS, LINUX
from tests.support.nfs4 import Client4, mode

NAME3, NAME4 = b"name of version three", b"name of version four"
DATA = bytes(number * 7 % 251 for number in range(70001))
"""More than one packet holds, and not a multiple of four."""
SHORT = b"thirty octets that stay inline"
_xids = itertools.count(0x33000001)


class Way:
    """How a call goes. Client4 takes it for its server."""

    max_backchannel_size = 0

    async def send(
        self, message: bytes, *, bulk: bytes = b"", into: Sequence[int] = (), room: int = 0, long: bool = False
    ) -> tuple[bytes, bytes]:
        """The reply's payload, and what arrived in chunks. Over RDMA ``bulk``, which is part of the message, goes in a
        Read chunk, results into a Write chunk of segments ``into`` or a Reply chunk of ``room``, and a ``long`` call
        in a Read chunk of its own."""
        raise NotImplementedError

    async def call(self, transport: object, message: bytes) -> bytes:
        """One short call."""
        return (await self.send(message))[0]


class OverTcp(Way):
    def __init__(self, client: Nfs3Client) -> None:
        self.client = client

    async def send(self, message: bytes, **how: Any) -> tuple[bytes, bytes]:
        return await self.client.exchange(message), b""


class OverRdma(Way):
    """One call at a time, in version One or Two."""

    def __init__(self, peer: Peer, version: int) -> None:
        self.peer = peer
        self._header = header if version == 1 else header_two

    async def send(
        self, message: bytes, *, bulk: bytes = b"", into: Sequence[int] = (), room: int = 0, long: bool = False
    ) -> tuple[bytes, bytes]:
        chunks: dict[str, Any] = {}
        exposed: list[Exposed] = []

        def readable(octets: bytes) -> Segment:
            exposed.append(self.peer.readable(octets))
            return exposed[-1].segment()

        xid = int.from_bytes(message[:4], "big")
        if bulk:
            at = message.index(bulk)
            message = message[:at] + message[at + len(bulk) + (-len(bulk) & 3) :]
            # In two segments, each with a handle of its own, as Linux does it for memory that is not contiguous; but
            # rxe takes one memory region per call.
            half = len(bulk) if DEVICE_ADDRESS else len(bulk) // 8 * 4
            parts = [part for part in (bulk[:half], bulk[half:]) if part]
            chunks["reads"] = [(at, readable(part)) for part in parts]
        if DEVICE_ADDRESS and into:
            into = (sum(into),)
        targets = [self.peer.writable(length) for length in into or ((room,) if room else ())]
        if targets:
            segments = [target.segment() for target in targets]
            chunks |= {"writes": [segments]} if into else {"reply": segments}
        if long:
            chunks["reads"] = [(0, readable(message))]
            self.peer.send(self._header(xid, procedure=NOMSG, **chunks))
        else:
            self.peer.send(self._header(xid, **chunks), message)
        answer = await self.peer.message()
        for region in exposed + targets:
            if region.handle != answer.invalidated:
                self.peer.endpoint.invalidate(region.handle)
        reply = answer.header
        assert reply.error == 0, reply
        return reply.payload, b"".join(bytes(target.memory) for target in targets)


class Nfs3:
    """NFSv3 calls."""

    def __init__(self, way: Way) -> None:
        self.way = way

    def message(self, procedure: int, arguments: bytes) -> bytes:
        credential = auth_sys(os.getuid(), os.getgid()).body
        head = struct.pack(">6I", next(_xids), 0, 2, nfs3.NFS_PROGRAM, nfs3.NFS_V3, procedure)
        return head + struct.pack(">II", 1, len(credential)) + bytes(credential) + bytes(8) + arguments

    async def call(self, procedure: int, arguments: bytes, **how: Any) -> tuple[bytes, bytes]:
        """Results behind the RPC header, and what arrived in chunks; all must be well."""
        reply, chunk = await self.way.send(self.message(procedure, arguments), **how)
        assert (reply or chunk)[8:24] == bytes(16)
        return reply[24:], chunk


async def work_in_version_three(way: Way, root: nfs3.nfs_fh3) -> None:
    nfs = Nfs3(way)
    where = nfs3.diropargs3(root, NAME3)
    how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o644))
    created, _ = await nfs.call(8, pack(nfs3.CREATE3args, nfs3.CREATE3args(where, how)))
    made = Decoder(memoryview(created)).decode(nfs3.CREATE3res).resok.obj
    for data in (SHORT, DATA):
        writing = nfs3.WRITE3args(made, 0, len(data), nfs3.stable_how.UNSTABLE, memoryview(data))
        await nfs.call(7, pack(nfs3.WRITE3args, writing), bulk=data if data is DATA else b"")
    for count, into in ((len(SHORT), ()), (len(DATA), (40000, 30001))):
        got, chunk = await nfs.call(6, pack(nfs3.READ3args, nfs3.READ3args(made, 0, count)), into=into)
        assert (chunk or got[-count - (-count & 3) :][:count]) == DATA[:count]
    await nfs.call(1, pack(nfs3.GETATTR3args, nfs3.GETATTR3args(made)), long=True)
    listing = nfs3.READDIRPLUS3args(root, 0, bytes(8), 8192, 32768)
    await nfs.call(17, pack(nfs3.READDIRPLUS3args, listing), room=40000)


async def work_in_version_four(way: Way) -> None:
    client = Client4(way, 1, uid=os.getuid(), gid=os.getgid(), transport=way, name=type(way).__name__.encode())  # type: ignore[arg-type]
    await client.connect()
    access = p.OPEN4_SHARE_ACCESS_BOTH | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG
    stateid, handle = await client.open("/export", NAME4, access=access, create=mode(0o644))
    there = (p.OP_PUTFH, p.PUTFH4args(handle))
    writing = p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, memoryview(DATA))
    message = client.message(*client.in_session(there, (p.OP_WRITE, writing)))
    reply, _ = await way.send(message, bulk=DATA)
    assert client.parse(reply)[0] == p.NFS4_OK
    reading = p.READ4args(stateid, 0, len(DATA))
    message = client.message(*client.in_session(there, (p.OP_READ, reading)))
    reply, chunk = await way.send(message, into=(30000, 40001))
    assert reply[24:28] == bytes(4)
    assert not chunk or chunk == DATA


async def work_over_rdma(
    provider: Provider, pool: Pool, address: ListenAddress, root: nfs3.nfs_fh3, version: int = 1
) -> None:
    peer = Peer(pool.account(64 << 20))
    await peer.connect(provider, address, LINUX, initiator_depth=4)
    way = OverRdma(peer, version)
    await work_in_version_three(way, root)
    await work_in_version_four(way)
    peer.endpoint.close()
    await peer.over()


async def work_over_tcp(host: str, port: int, root: nfs3.nfs_fh3) -> None:
    async with await Nfs3Client.connect(host, port, uid=os.getuid(), gid=os.getgid()) as client:
        way = OverTcp(client)
        await work_in_version_three(way, root)
        await work_in_version_four(way)
