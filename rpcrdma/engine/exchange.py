"""One call of a requester on one connection: its plan, its exposed memory, and what a reply says about that.

Owns :class:`Exchange`; imports :mod:`rpcrdma.wire`, :mod:`rpcrdma.memory` and this package. RFC 8166 sections 3.4
and 4.3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rpcrdma.engine.choice import ChunkChoice, Plan
from rpcrdma.engine.exposure import Exposed, Registrations
from rpcrdma.memory import Account, Lease
from rpcrdma.wire.chunks import ReadSegment, Segment, WriteChunk, used
from rpcrdma.wire.header import RDMA_NOMSG, Header

if TYPE_CHECKING:
    from rpcrdma.engine.requester import Request

_PADDING = 4


class Exchange:
    """A call that waits for its turn, or for its reply."""

    __slots__ = (
        "_exposed",
        "_gone",
        "_leases",
        "_reply_lease",
        "choice",
        "enlarged",
        "invalidate",
        "plan",
        "planned",
        "reads",
        "reply",
        "reply_room",
        "request",
        "writes",
    )

    plan: Plan

    def __init__(self, request: Request) -> None:
        self.request: Request | None = request
        """None: nobody waits for it any more."""
        self.choice: ChunkChoice = request.choice
        self.planned = (0, False)
        """The version that the plan is for, and whether that was settled."""
        self.reply_room = 0
        """Octets that the reply is known to need."""
        self.enlarged = False
        self.invalidate = 0
        """Version Two: the handle named in the call."""
        self.reads: list[ReadSegment] = []
        self.writes: list[WriteChunk] = []
        self.reply: WriteChunk | None = None
        self._exposed: list[Exposed] = []
        self._gone: set[int] = set()
        self._leases: list[Lease] = []
        self._reply_lease: Lease | None = None

    @property
    def first_handle(self) -> int:
        """A handle that the reply may invalidate: that of the call's first chunk, as a server chooses it in version
        One; 0 when there is no chunk."""
        return self._exposed[0].handle if self._exposed else 0

    def expose(self, registrations: Registrations, memory: Account) -> None:
        """Let the peer access what the plan says. Raises OutOfMemory, OSError, BufferError: then withdraw."""
        plan = self.plan
        if plan.procedure == RDMA_NOMSG:
            lease = self._lease(memory, len(plan.stream))
            view = lease.view[: len(plan.stream)]
            view[:] = plan.stream
            self._add_read(0, self._expose(registrations, view, write=False, keep=False))
        for position, view, padding in plan.reads:
            self._add_read(position, self._expose(registrations, view, write=False))
            if padding:
                self._add_read(position, self._padding(registrations, memory, padding, write=False))
        for view, padding in plan.writes:
            chunk = self._expose(registrations, view, write=True)
            if padding:
                chunk += self._padding(registrations, memory, padding, write=True)
            self.writes.append(chunk)
        if plan.reply:
            self._reply_lease = memory.lease(plan.reply)
            self.reply = self._expose(registrations, self._reply_lease.view[: plan.reply], write=True, keep=False)

    def _lease(self, memory: Account, size: int) -> Lease:
        lease = memory.lease(size)
        self._leases.append(lease)
        return lease

    def _add_read(self, position: int, segments: list[Segment]) -> None:
        self.reads += [(position, *segment) for segment in segments]

    def _expose(
        self, registrations: Registrations, view: memoryview, *, write: bool, keep: bool = True
    ) -> list[Segment]:
        exposed = registrations.expose(view, write=write, keep=keep)
        self._exposed.append(exposed)
        return exposed.segments(self.plan.segments)

    def _padding(self, registrations: Registrations, memory: Account, length: int, *, write: bool) -> list[Segment]:
        view = self._lease(memory, _PADDING).view[:length]
        view[:] = bytes(length)
        return self._expose(registrations, view, write=write, keep=False)

    def was_invalidated(self, handle: int) -> bool:
        """Note that the server has invalidated a handle. False: it is none of this call's."""
        if any(exposed.handle == handle for exposed in self._exposed):
            self._gone.add(handle)
            return True
        return False

    def keep_reply(self) -> Lease | None:
        """The Reply chunk's memory, whose count is now the caller's: to be read once access is withdrawn."""
        lease, self._reply_lease = self._reply_lease, None
        return lease

    def withdraw(self, registrations: Registrations) -> None:
        """End the peer's access to the call's memory, and release what was leased for it."""
        exposed, self._exposed = self._exposed, []
        for part in exposed:
            registrations.withdraw(part, gone=part.handle in self._gone)
        self._gone.clear()
        leases, self._leases = self._leases, []
        if self._reply_lease is not None:
            leases.append(self._reply_lease)
            self._reply_lease = None
        for lease in leases:
            lease.release()
        self.reads, self.writes, self.reply = [], [], None

    def enlarge(self, room: int, most: int) -> bool:
        """Offer a Reply chunk of ``room`` octets the next time. False: that is too much, or it had as much."""
        room = (room + 3) & ~3
        if room > most or (self.plan.reply and room <= self.plan.reply):
            return False
        self.enlarged = True
        self.reply_room = room
        self.choice = replace(self.choice, reply="write+reply" if self.plan.writes else "reply")
        self.planned = (0, False)
        return True

    def placed(self, header: Header) -> tuple[list[tuple[memoryview, int]], int] | None:
        """What a reply says to have been put where: (memory, octets) for each of ``into``, and the octets of the reply
        in the Reply chunk. None: that cannot be, and so the reply is to be discarded (section 4.5)."""
        if header.reads:
            return None  # section 4.3.1: a reply has none
        counts = self._write_counts(header)
        length = self._reply_length(header)
        if counts is None or length is None:
            return None
        request = self.request
        if request is None:
            return [], length
        places = []
        for memory in request.into:
            offered = bool(len(memory)) and bool(self.plan.writes)
            places.append((memory, counts.pop(0) if offered else 0))
        return places, length

    def _write_counts(self, header: Header) -> list[int] | None:
        """Octets written to each Write chunk."""
        if not header.writes or not self.writes:
            # A cancelled call has no chunks any more, and its reply says nothing to us.
            return [0] * len(self.writes) if not header.writes or self.request is None else None
        if len(header.writes) != len(self.writes):
            return None
        counts = []
        for offered, returned in zip(self.writes, header.writes, strict=True):
            count = used(offered, returned)
            if count is None:
                return None
            counts.append(count)
        return counts

    def _reply_length(self, header: Header) -> int | None:
        """Octets written to the Reply chunk: none of a Short Reply, but all of a Long one."""
        if self.request is None:
            return 0
        length: int | None = 0
        if header.reply is not None:
            # It comes back even when it was not needed (section 4.3.3).
            length = None if self.reply is None else used(self.reply, header.reply)
        if header.procedure == RDMA_NOMSG:
            return length or None
        return None if length else length
