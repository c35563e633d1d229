"""Stretches of a COMPOUND in Python: some of its operations, one behind the other, are carried out natively.

Owns :func:`carry_out`, which offers the next operations to native code, and waits with them. They have no other body.
Imports :mod:`rpcrdma.rpc.offers`, as the dispatcher does, and :mod:`nfsd.v4.halfway`.

The results of a stretch, with their data, are added to those that stand before them. The slot stays the COMPOUND's.

Read chunks (RFC 8166 section 4.5.2). While some of a message is elsewhere, native code carries out one operation at a
time, of which it is known that a chunk among its arguments matches an item there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nfsd.protocol.nfs4_ops import OPERATIONS
from nfsd.v4.halfway import Halfway, stretch_of
from rpcrdma.rpc.offers import Offer
from rpcrdma.rpc.program import Call, RpcReply
from rpcrdma.xdr import Decoder, XdrError

if TYPE_CHECKING:
    from nfsd.v4.compound import Compound
    from nfsd.v4.operations import Operation
    from nfsd.v4.procedures import Nfs4Procedures

_HEADER = 24
"""Octets of an accepted reply's header, with which each stretch's results begin."""
_HEAD = 4096
_LARGE_HEAD = 256 * 1024
"""Octets that results are given at first, and when they do not fit; then, all that the reply may have."""


class Stretch:
    """One offer of operations."""

    def __init__(self, native: Nfs4Procedures, call: Call) -> None:
        self.native, self.call = native, call
        self.short = False
        """Whether it was declined for want of room."""
        self._outcome: tuple[RpcReply | None, BaseException | None] | None = None
        self._over: asyncio.Future[None] | None = None
        self._abandoned = False

    def waits(self) -> None:
        """The operations go on later."""

    def over(self, result: RpcReply | None, exception: BaseException | None) -> None:
        """They have been carried out, or native code has failed."""
        if self._abandoned:
            self.call.begun = None
            if result is not None:
                result.release()
            return
        self._outcome = result, exception
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def declined(self) -> None:
        """The first one cannot be carried out natively, or not here. What native code says of why is to be asked now:
        others are carried out before :meth:`outcome` returns."""
        self.short = self.native.short
        self.over(None, None)

    async def outcome(self) -> RpcReply | None:
        """The results; None: it is declined. Raises what native code has failed with."""
        if self._outcome is None:
            self._over = asyncio.get_running_loop().create_future()
            try:
                await self._over
            except BaseException:
                self._abandoned = True
                if self._outcome is not None:
                    self.over(*self._outcome)
                raise
        assert self._outcome is not None
        result, exception = self._outcome
        if exception is not None:
            raise exception
        return result


async def carry_out(native: Nfs4Procedures, c: Compound, arguments_at: int, offset: int) -> Halfway | None:
    """Have native code carry out the next operation of a COMPOUND, and those behind it that it can; their results are
    added to the reply. Returns where the COMPOUND stands then. None: it is declined, and nothing has happened.

    ``arguments_at``: where COMPOUND4args begins in the message; ``offset``: the operation in that."""
    call, shown, tally = c.call, c.call.shown, c.call.tally
    most = _HEADER + c.room_left()
    for head in dict.fromkeys((_HEAD, min(_LARGE_HEAD, most), most)):
        call.begun = stretch_of(c, offset, bool(call.chunks))
        stretch = Stretch(native, call)
        offer = Offer(native, stretch, arguments_at, head)
        if not offer.begin():
            stretch.declined()
        reply = await stretch.outcome()
        begun: Halfway | None = call.begun
        call.begun = None
        if reply is not None:
            assert begun is not None
            _add(c, reply)
            return begun
        call.shown, call.tally = shown, tally
        if not stretch.short:
            break
    return None


def _add(c: Compound, reply: RpcReply) -> None:
    """Add a stretch's results, and its data at their places."""
    results, octets, at = c.call.results, memoryview(reply.head), _HEADER
    for offset, payload in reply.payloads:
        results.append(octets[at : offset - 4])
        results.bulk(payload)  # its length stands before it
        at = offset
    results.append(octets[at:])


def matches_chunks(c: Compound, number: int) -> bool:
    """Whether a chunk that belongs among the arguments of the next operation matches an item there."""
    if not c.call.chunks:
        return True
    arguments = Decoder(c.call.message, c.call.chunks, c.call.arguments.position)
    try:
        arguments.decode(OPERATIONS[number].arguments)
    except XdrError:
        return False
    return not arguments.skipped_chunk


def take_chunks(c: Compound) -> None:
    """Leave the chunks that are still to be used: an operation in Python has perhaps used some."""
    arguments, chunks = c.call.arguments, list(c.call.chunks)
    used = arguments.unreduced_position - arguments.position
    if used:
        while used > 0:
            used -= len(chunks.pop(0)[1]) + 3 & ~3
        shift = arguments.unreduced_position - arguments.position
        c.call.chunks = [(position - shift, view) for position, view in chunks]
        c.call.arguments = Decoder(c.call.message, c.call.chunks, arguments.position)


def malformed(c: Compound, row: Operation) -> Exception:
    """Why an operation is declined that native code alone carries out: its arguments do not decode."""
    try:
        c.call.arguments.decode(row.arguments)
    except XdrError as error:
        return error
    if c.call.chunks and c.call.arguments.skipped_chunk:
        return XdrError("a Read chunk within these arguments matches no item")
    return RuntimeError(f"{row.name} is declined, which nobody else carries out")
