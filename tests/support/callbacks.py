"""The client's end of callbacks: answers CB_NULL and CB_COMPOUND, with a reply cache as clients have it.

:class:`CallbackEnd` answers messages, wherever they come from; :class:`CallbackListener` is the TCP listener of a v4.0
client that hands them to it.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, NamedTuple

from nfsd.protocol import nfs4 as p
from rpcrdma.rpc.messages import accept_stat, auth_stat, authsys_parms, reject_stat, rpc_msg
from rpcrdma.rpc.program import RPCSEC_GSS
from rpcrdma.xdr import Decoder, Encoder


class Received(NamedTuple):
    """One CB_COMPOUND as it arrived."""

    minor: int
    ident: int
    operations: list[tuple[int, Any]]
    """Without CB_SEQUENCE."""
    sequence: p.CB_SEQUENCE4args | None
    credential: authsys_parms | None
    program: int
    connection: Any
    octets: int


class CallbackEnd:
    """Checks sequence ids slot by slot, keeps no replies (as Linux), and answers NFS4_OK unless told otherwise."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        """Every CB_COMPOUND, retransmissions included."""
        self.nulls = 0
        self.executed: list[tuple[int, Any]] = []
        """Operations that were carried out."""
        self.answers: dict[int, list[Any]] = {}
        """Results to give, by operation, first come first used; then NFS4_OK."""
        self.sequence_answers: list[int] = []
        """Statuses CB_SEQUENCE is to fail with; 0 lets it pass."""
        self.target: int | None = None
        """csr_target_highest_slotid, if not the highest there is."""
        self.gate: asyncio.Event | None = None
        """While there is one that is not set, answers wait after the execution."""
        self.refusal: auth_stat | None = None
        """Why calls are denied."""
        self.without_gss = False
        """Whether calls under RPCSEC_GSS are denied; otherwise there must be none."""
        self.denials = 0
        """Calls that were."""
        self.slots = 16
        self.seqids: dict[tuple[bytes, int], int] = {}
        self._arrived = asyncio.Event()

    @property
    def operations(self) -> list[int]:
        """The numbers of what was carried out."""
        return [number for number, _ in self.executed]

    async def arrival(self, count: int) -> None:
        """Wait until ``count`` CB_COMPOUNDs have arrived in all."""
        async with asyncio.timeout(20):
            while len(self.received) < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def answer(self, message: bytes, connection: Any = None) -> bytes:
        """The whole RPC reply to a whole RPC call."""
        d = Decoder(message)
        header = d.decode(rpc_msg)
        call = header.body.cbody
        assert call is not None, "a reply, not a call"
        assert (call.rpcvers, call.vers, call.verf.body) == (2, p.NFS_CB, b"")
        reply = Encoder()
        refusal = auth_stat.AUTH_REJECTEDCRED if self.without_gss and call.cred.flavor == RPCSEC_GSS else self.refusal
        if refusal is not None:
            self.denials += 1
            for word in (header.xid, 1, 1, reject_stat.AUTH_ERROR, refusal):
                reply.uint32(word)
            return reply.getvalue()
        for word in (header.xid, 1, 0, 0, 0, accept_stat.SUCCESS):
            reply.uint32(word)
        if call.proc == p.CB_NULL:
            d.finish(strict=True)
            self.nulls += 1
        else:
            credential = Decoder(call.cred.body).decode(authsys_parms) if call.cred.flavor == 1 else None
            self._compound(d, reply, credential, call.prog, connection, len(message))
        if self.gate is not None:
            await self.gate.wait()
        return reply.getvalue()

    def _compound(
        self, d: Decoder, reply: Encoder, credential: authsys_parms | None, program: int, connection: Any, octets: int
    ) -> None:
        tag = d.opaque(1024)
        minor, ident = d.uint32(), d.uint32()
        operations = []
        for _ in range(d.uint32()):
            number = d.uint32()
            operations.append((number, d.decode(p.CALLBACK_OPERATIONS[number].arguments)))
        d.finish(strict=True)
        sequence = None
        if minor:
            (number, sequence), *operations = operations
            assert number == p.OP_CB_SEQUENCE
        self.received.append(Received(minor, ident, operations, sequence, credential, program, connection, octets))
        self._arrived.set()
        results: list[tuple[int, Any]] = []
        status: int = p.NFS4_OK
        if sequence is not None:
            made, status = self._sequence(sequence)
            results.append((p.OP_CB_SEQUENCE, made))
        for number, arguments in operations if status == p.NFS4_OK else ():
            self.executed.append((number, arguments))
            waiting = self.answers.get(number)
            result = waiting.pop(0) if waiting else p.CALLBACK_OPERATIONS[number].results(p.nfsstat4.NFS4_OK)
            results.append((number, result))
            status = next(iter(getattr(result, name) for name in type(result).__slots__))
            if status:
                break
        reply.uint32(status)
        reply.opaque(tag)
        reply.uint32(len(results))
        for number, result in results:
            reply.uint32(number)
            reply.encode(p.CALLBACK_OPERATIONS[number].results, result)

    def _sequence(self, args: p.CB_SEQUENCE4args) -> tuple[p.CB_SEQUENCE4res, int]:
        key = (args.csa_sessionid, args.csa_slotid)
        known = self.seqids.get(key, 0)
        status = self.sequence_answers.pop(0) if self.sequence_answers else 0
        if not status and args.csa_slotid >= self.slots:
            status = p.NFS4ERR_BADSLOT
        if not status and args.csa_sequenceid == known:
            status = p.NFS4ERR_RETRY_UNCACHED_REP
        if not status and args.csa_sequenceid != known + 1:
            status = p.NFS4ERR_SEQ_MISORDERED
        if status:
            return p.CB_SEQUENCE4res(p.nfsstat4(status)), status
        self.seqids[key] = args.csa_sequenceid
        highest = self.slots - 1
        target = highest if self.target is None else self.target
        resok = p.CB_SEQUENCE4resok(args.csa_sessionid, args.csa_sequenceid, args.csa_slotid, highest, target)
        return p.CB_SEQUENCE4res(p.nfsstat4.NFS4_OK, resok), 0


class CallbackListener:
    """Takes callbacks over TCP; use as an asynchronous context manager."""

    def __init__(self, end: CallbackEnd) -> None:
        self.end = end
        self.connections: list[asyncio.StreamWriter] = []
        self.closed = asyncio.Event()
        """Set whenever a connection has ended."""

    async def __aenter__(self) -> CallbackListener:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Close every connection there is."""
        for writer in self.connections:
            writer.close()
        self.connections.clear()

    @property
    def address(self) -> tuple[bytes, bytes]:
        """Netid and universal address."""
        return b"tcp", f"127.0.0.1.{self.port >> 8}.{self.port & 255}".encode()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        tasks = set()

        async def answer(message: bytes) -> None:
            octets = await self.end.answer(message, writer)
            half = len(octets) // 2  # two fragments: a reply need not be one
            writer.write(struct.pack(">I", half) + octets[:half])
            writer.write(struct.pack(">I", 0x80000000 | len(octets) - half) + octets[half:])

        try:
            while True:
                (mark,) = struct.unpack(">I", await reader.readexactly(4))
                message = await reader.readexactly(mark & 0x7FFFFFFF)
                tasks.add(asyncio.create_task(answer(message)))
        except (EOFError, OSError):
            pass
        finally:
            for task in tasks:
                task.cancel()
            writer.close()
            self.closed.set()
