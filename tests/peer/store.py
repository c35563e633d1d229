"""An RPC program that keeps one piece of data: for peers that want to know that it is still there."""

from __future__ import annotations

import struct

from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import header, header_two, words
from rpcrdma.rpc.program import Call, GarbageArguments, Procedure, Program
from rpcrdma.xdr import XdrError
from rpcrdma.xdr.payload import Payload

PROGRAM, VERSION = 0x20000078, 1
PUT, GET = 1, 2
LARGEST = 1 << 20


def store_program() -> Program:
    """PUT takes a DDP-eligible opaque, GET returns it."""
    kept = bytearray()

    async def put(call: Call) -> None:
        try:
            kept[:] = call.arguments.bulk(LARGEST)
            call.arguments.finish(strict=True)
        except XdrError as error:
            raise GarbageArguments from error

    async def get(call: Call) -> None:
        lease = await call.transport.lease(len(kept))
        lease.view[: len(kept)] = kept
        call.results.bulk(Payload(lease.view[: len(kept)], lease))

    rows = {PUT: Procedure("PUT", put, raw=True), GET: Procedure("GET", get, raw=True)}
    return Program(PROGRAM, "store", {VERSION: rows})


class Witness:
    """A well-behaved peer that keeps data on the server and looks at it again and again."""

    def __init__(self, peer: Peer, version: int) -> None:
        self.peer, self.version = peer, version
        self._xid = 0x70000000
        self._header = header if version == 1 else header_two

    async def put(self, data: bytes) -> None:
        """Store ``data`` by a Read chunk."""
        xid, call = self._call(PUT)
        source = self.peer.readable(data)
        message = self._header(xid, reads=[(len(call) + 4, source.segment())])
        reply = await self.peer.call(message, call, words(len(data)))
        assert (reply.xid, reply.version, reply.error) == (xid, self.version, 0), reply
        assert reply.payload == words(xid, 1, 0, 0, 0, 0), reply

    async def get(self, length: int) -> bytes:
        """What is stored, by a Write chunk; fails unless it has this length."""
        xid, call = self._call(GET)
        target = self.peer.writable(length)
        reply = await self.peer.call(self._header(xid, writes=[[target.segment()]]), call)
        assert (reply.xid, reply.version, reply.error) == (xid, self.version, 0), reply
        assert reply.payload == words(xid, 1, 0, 0, 0, 0, length), reply
        return bytes(target.memory)

    def _call(self, procedure: int) -> tuple[int, bytes]:
        self._xid += 1
        return self._xid, struct.pack(">10I", self._xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0)
