"""NFSv3 and MOUNT procedures over a fake file service, called through their XDR but without RPC."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nfsd.exports import Export, ExportTable
from nfsd.protocol.nfs3 import nfs_fh3
from nfsd.v3.program import nfs3_procedures
from nfsd.v3.request import Limits
from rpcrdma.memory import Lease, Pool
from rpcrdma.rpc.program import Call, Procedure, RpcCredential
from rpcrdma.xdr import Decoder, Encoder, pack, unpack
from tests.unit.fakes.file_service import FakeFileService

ROOT = RpcCredential(1, 0, 0, (0,))


class FakeTransport:
    """A transport that lends buffers and knows who the peer is."""

    netid = "tcp"
    peer_port = 700
    certified = ""
    local_address = "127.0.0.1"
    closed = False
    max_backchannel_size = 0

    def __init__(self, peer_address: str = "127.0.0.1") -> None:
        self.peer_address = peer_address
        self.pool = Pool(64 << 20)
        self.account = self.pool.account(64 << 20)
        self.failure: BaseException | None = None

    async def lease(self, size: int) -> Lease:
        if self.failure is not None:
            raise self.failure
        return self.account.lease(size)

    def close(self) -> None:
        self.closed = True


@dataclass
class Answer:
    """A reply: its octets without the RPC header, and what they decode to."""

    wire: bytes
    value: Any


class Rig:
    """The procedures of one server with two exports, ``/export`` and ``/second``."""

    def __init__(self, *exports: Export, limits: Limits | None = None) -> None:
        table = ExportTable(
            exports or (Export(1, "/srv/export", "/export", squash="none"), Export(2, "/srv/second", "/second"))
        )
        self.exports = table
        self.service = FakeFileService(table)
        self.transport = FakeTransport()
        self.procedures: Mapping[int, Procedure] = nfs3_procedures(self.service, table, limits)  # type: ignore[arg-type]

    @property
    def root(self) -> nfs_fh3:
        return nfs_fh3(self.service.roots[1].handle)

    def call(self, name: str, arguments: Any = None, credential: RpcCredential = ROOT) -> Answer:
        """Encode, decode, run, encode, decode: as the dispatcher would, on a loop of its own."""
        procedure = next(procedure for procedure in self.procedures.values() if procedure.name == name)
        return asyncio.run(self.run(procedure, arguments, credential))

    async def run(self, procedure: Procedure, arguments: Any, credential: RpcCredential = ROOT) -> Answer:
        decoder = Decoder(pack(procedure.arguments, arguments))
        encoder = Encoder()
        call = Call(self.transport, 1, 100003, 3, 0, credential, decoder, encoder)  # type: ignore[arg-type]
        result = await procedure.handler(call, decoder.decode(procedure.arguments))
        encoder.encode(procedure.results, result)
        wire = flatten(encoder)
        return Answer(wire, unpack(procedure.results, wire))


def flatten(encoder: Encoder) -> bytes:
    """A finished message with its payloads put in and released, as a transport without chunks sends it."""
    head = encoder.getvalue()
    parts, position = [], 0
    for offset, payload in encoder.payloads:
        parts += [head[position:offset], bytes(payload.view), bytes(-len(payload) % 4)]
        position = offset
        payload.release()
    parts.append(head[position:])
    return b"".join(parts)
