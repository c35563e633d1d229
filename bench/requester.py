"""NFSv3 calls over one RPC-over-RDMA version One connection, any number of them outstanding."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from nfsd.protocol.nfs3 import NFS_PROGRAM, READ3args, WRITE3args, nfs_fh3, stable_how
from rpcrdma.xdr import pack
from tests.peer.requester import Exposed, Peer
from tests.peer.wire import header

_AUTH_SYS_ROOT = struct.pack(">6I", 0, 4, 0x62656E63, 0, 0, 0)
"""Stamp, machine "benc", uid 0, gid 0, no further groups."""
_RPC_HEADER_SIZE = 24 + 8 + len(_AUTH_SYS_ROOT) + 8
_GETATTR, _READ, _WRITE = 1, 6, 7


class Requester:
    """Sends calls about one file and matches the replies by XID."""

    def __init__(self, peer: Peer, handle: nfs_fh3) -> None:
        self._peer = peer
        self._handle = handle
        self._xid = 0x62000000
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            message = (await self._peer.message()).octets
            waiting = self._waiting.pop(struct.unpack_from(">I", message)[0])
            if not waiting.done():
                waiting.set_result(message)

    async def _call(self, procedure: int, arguments: bytes, **chunks: Any) -> None:
        self._xid += 1
        xid = self._xid
        rpc = struct.pack(">8I", xid, 0, 2, NFS_PROGRAM, 3, procedure, 1, len(_AUTH_SYS_ROOT))
        self._waiting[xid] = replied = asyncio.get_running_loop().create_future()
        self._peer.send(header(xid, credit=64, **chunks), rpc, _AUTH_SYS_ROOT, bytes(8), arguments)
        message = await replied
        # Transport header: procedure RDMA_MSG; then the RPC reply, found behind the chunk lists: status NFS3_OK.
        if message[12:16] != bytes(4):
            raise RuntimeError(f"the server answered with a transport error: {message.hex()}")
        body = message.rindex(struct.pack(">II", xid, 1))
        if message[body + 8 : body + 28] != bytes(20):
            raise RuntimeError(f"the call failed: {message[body:].hex()}")

    async def getattr(self) -> None:
        """GETATTR."""
        await self._call(_GETATTR, pack(nfs_fh3, self._handle))

    async def read(self, sink: bytearray, offset: int) -> None:
        """READ ``len(sink)`` octets through a Write chunk, registered for this call as Linux does: the server's reply
        invalidates it."""
        count, memory = len(sink), Exposed(self._peer, sink, read=False, write=True)
        await self._call(_READ, pack(READ3args, READ3args(self._handle, offset, count)), writes=[[memory.segment()]])

    async def write(self, source: bytearray, offset: int) -> None:
        """Unstable WRITE through a Read chunk, registered for this call."""
        count, memory = len(source), Exposed(self._peer, source, read=True, write=False)
        arguments = pack(WRITE3args, WRITE3args(self._handle, offset, count, stable_how.UNSTABLE, b""))
        arguments = arguments[:-4] + struct.pack(">I", count)
        await self._call(_WRITE, arguments, reads=[(_RPC_HEADER_SIZE + len(arguments), memory.segment())])

    def close(self) -> None:
        """Stop reading replies."""
        self._reader.cancel()
