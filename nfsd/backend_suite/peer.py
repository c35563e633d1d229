"""A client of NFSv4.2 that says what it is told to, and hears what is answered: for questions about single operations.

Owns a connection and a session; imports the protocol's declarations. One COMPOUND at a time. It recovers from nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
from typing import Any, Final

from nfsd.client.compound import Op, encode, putfh
from nfsd.client.fattr4 import words
from nfsd.protocol import nfs4 as p
from rpcrdma.client.messages import auth_sys, encode_call
from rpcrdma.rpc.messages import rpc_msg
from rpcrdma.xdr import Decoder, Encoder

_NFS: Final = 100003
_xids = itertools.count(1)


class Peer:
    """One client, root. Made by :meth:`connect`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._session = b""
        self._sequence = 0
        self.clientid = 0

    @classmethod
    async def connect(cls, host: str, port: int) -> Peer:
        """A client that the server has not seen before, with a session. Raises OSError."""
        self = cls(*await asyncio.open_connection(host, port))
        owner = p.client_owner4(os.urandom(8), os.urandom(16))
        nobody = p.state_protect4_a(p.state_protect_how4.SP4_NONE)
        made = (await self._good((p.OP_EXCHANGE_ID, p.EXCHANGE_ID4args(owner, 0x101, nobody, []))))[0].eir_resok4
        self.clientid = made.eir_clientid
        channel = p.channel_attrs4(0, 1 << 20, 1 << 20, 4096, 64, 1, [])
        creation = p.CREATE_SESSION4args(
            made.eir_clientid, made.eir_sequenceid, 0, channel, channel, 0x40000000, [p.callback_sec_parms4(0)]
        )
        (session,) = await self._good((p.OP_CREATE_SESSION, creation))
        self._session = session.csr_resok4.csr_sessionid
        await self._good((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))
        return self

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def ask(self, *operations: Op) -> tuple[p.nfsstat4, list[Any]]:
        """The status of a COMPOUND, and the results of what ran, without SEQUENCE's. DELAY is waited for."""
        while True:
            status, results = await self._once(*operations)
            if status != p.NFS4ERR_DELAY:
                return p.nfsstat4(status), results
            await asyncio.sleep(0.05)

    async def on(self, handle: bytes, *operations: Op) -> tuple[p.nfsstat4, list[Any]]:
        """The same, of operations on one file."""
        status, results = await self.ask(putfh(handle), *operations)
        return status, results[1:]

    async def _good(self, *operations: Op) -> list[Any]:
        status, results = await self.ask(*operations)
        assert status == p.NFS4_OK, status
        return results

    async def _once(self, *operations: Op) -> tuple[int, list[Any]]:
        if self._session:
            self._sequence += 1
            sequence = p.SEQUENCE4args(self._session, self._sequence, 0, 0, False)
            operations = ((p.OP_SEQUENCE, sequence), *operations)
        encoder = Encoder()
        encode(encoder, operations, minor=2)
        credential = auth_sys(0, 0, machine="suite")
        message = bytes(encode_call(next(_xids), _NFS, 4, 1, credential, encoder.getvalue()).head)
        self._writer.write(struct.pack(">I", 1 << 31 | len(message)) + message)
        (mark,) = struct.unpack(">I", await self._reader.readexactly(4))
        decoder = Decoder(memoryview(await self._reader.readexactly(mark & 0x7FFFFFFF)))
        decoder.decode(rpc_msg)
        status = decoder.uint32()
        decoder.opaque(1024)
        results = [decoder.decode(p.OPERATIONS[decoder.uint32()].results) for _ in range(decoder.uint32())]
        return status, results[1:] if self._session else results

    # -- short cuts ----------------------------------------------------------------------------------------------
    async def find(self, *names: str) -> bytes:
        """The handle of a path from the server's root."""
        lookups: list[Op] = [(p.OP_LOOKUP, p.LOOKUP4args(name.encode())) for name in names]
        return bytes((await self._good((p.OP_PUTROOTFH, None), *lookups, (p.OP_GETFH, None)))[-1].resok4.object)

    async def open(
        self, directory: bytes, name: str, access: int, *, deny: int = 0, owner: bytes = b"owner"
    ) -> tuple[p.nfsstat4, p.stateid4 | None]:
        """OPEN of a file that there is; the stateid."""
        claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=name.encode())
        how = p.openflag4(p.opentype4.OPEN4_NOCREATE)
        access |= p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG
        args = p.OPEN4args(0, access, deny, p.open_owner4(self.clientid, owner), how, claim)
        status, results = await self.on(directory, (p.OP_OPEN, args))
        return status, results[0].resok4.stateid if status == p.NFS4_OK else None

    async def attribute(self, handle: bytes, number: int) -> Decoder:
        """The value of one attribute; nothing is left of it where the server has none."""
        results = await self._good(putfh(handle), (p.OP_GETATTR, p.GETATTR4args(words((number,)))))
        return Decoder(memoryview(bytes(results[1].resok4.obj_attributes.attr_vals)))
