"""The responder of RPC-over-RDMA: from received messages to calls, and from replies to posted chains (RFC 8166).

Owns the state of one connection above its queue pair. How calls are answered is its base's matter
(:mod:`rpcrdma.engine.answers`). Imports :mod:`rpcrdma.wire`, the rest of this package, the vocabulary of
:mod:`rpcrdma.verbs.interface`, and no I/O.

Operation
    Inputs are :meth:`Responder.received`, :meth:`~Responder.completed`, :meth:`~Responder.reply`,
    :meth:`~Responder.drop`, :meth:`~Responder.call_back` and :meth:`~Responder.close`. Outputs collect in the lists
    ``receives``, ``reads``, ``chains`` and ``calls`` and in ``failure``; the owner takes them after every input, in
    that order, for a Receive must be posted before the reply that grants its credit is sent. When memory becomes
    available between two inputs, ``wake`` is called.

Buffer ownership
    A received message's lease travels with its call in ``holds``, together with the sink of the call's Read chunks.
    From the moment a call is in ``calls``, its holds are the taker's to release. A reply is the responder's from
    :meth:`~Responder.reply` on, and is released when its chain has completed.

Ordering
    A call is handed up only when all its Reads have completed (section 3.4.5.1). Writes and Send of a reply are one
    chain, so that the Send is delivered last.

Errors
    The peer's mistakes become RDMA_ERROR for that call (section 4.5), or are discarded where the RFC says so. What
    leaves a call without any answer sets ``failure``: the owner must close the connection (section 4.5.4).

Versions
    Everything here is common to versions One and Two; where they differ, the codec knows. Which one a connection speaks
    is :mod:`rpcrdma.engine.versions`' matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rpcrdma.departed import nothing
from rpcrdma.engine import assembly
from rpcrdma.engine.answers import Answers
from rpcrdma.engine.backward import BackwardCall
from rpcrdma.engine.calls import Chain, ForwardCall
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.engine.counters import Counters
from rpcrdma.engine.environment import Memory, Poisoned, Trace
from rpcrdma.engine.reduce import Reply
from rpcrdma.engine.versions import VERSIONS
from rpcrdma.holds import Hold
from rpcrdma.memory import Lease, OutOfMemory
from rpcrdma.verbs.interface import Received
from rpcrdma.wire.header import (
    CALL,
    FIXED_WORDS,
    OPTION,
    RDMA_ERROR,
    RDMA_MSG,
    RDMA_NOMSG,
    REPLY,
    SMALLEST_HEADER,
    Discard,
    Fault,
    Header,
    HeaderFault,
)
from rpcrdma.wire.private_data import Properties


class Responder(Answers):
    """One connection's responder.

    ``negotiated`` is what both sides' private data say (RFC 8797). ``posted`` Receives (at least one) were posted
    before the connection was accepted. ``poisoned`` are XIDs of calls whose RDMA operations broke an earlier one of the
    same peer: they are answered with an error, once, lest they break this one too (section 4.5.3). ``on_settled`` is
    told the version that the connection will speak.
    """

    def __init__(
        self,
        options: ResponderOptions,
        negotiated: Properties,
        posted: int,
        receive_memory: Memory,
        memory: Memory,
        wake: Callable[[], None],
        counters: Counters | None = None,
        poisoned: Poisoned | None = None,
        trace: Trace | None = None,
        on_settled: Callable[[int, Properties], None] | None = None,
    ) -> None:
        super().__init__(options, negotiated, posted, memory, counters or Counters(), poisoned, trace, on_settled)
        self._receive_memory = receive_memory
        self._wake = wake
        self._awaiting_receive = False
        self._awaiting_sink = False
        self._may_wait = True

    def awaits_peer(self, executing: int) -> bool:
        """Whether something waits for the peer, apart from the ``executing`` calls: for it to take what is sent, or to
        have its memory read."""
        ours = executing + len(self.to_read) + len(self._to_answer) + len(self.calls)
        return bool(self.credits.unsent) or self.credits.outstanding > ours

    # Inputs

    def received(self, messages: Sequence[Received]) -> None:
        """Take a batch of messages, each with one count of its lease."""
        self.credits.posted -= len(messages)
        self.received_messages += len(messages)
        self.counters.receives += len(messages)
        taken = 0
        try:
            for message in messages:
                taken += 1
                self._take(message)
        except BaseException:
            # The connection ends of it: what nobody has looked at goes with it.
            for lease, _, _ in messages[taken:]:
                lease.release()
            raise
        self._advance()

    def _take(self, message: Received) -> None:
        lease, length, _ = message
        if self.closed:
            lease.release()
            return
        view = lease.view[:length]
        try:
            header = self._classify(view)
        except BaseException:
            lease.release()
            raise
        if header is None or not self._begin(header, view, lease):
            lease.release()

    def completed(self, token: object, ok: bool) -> None:
        """Take the completion of a chain, or of a call's Reads."""
        if isinstance(token, Chain):
            self.credits.unsent -= 1
            token.release()
            if not ok and not self.closed:
                # The reply is lost, and the requester must learn that (section 4.5.4).
                self.counters.send_failures += 1
                self._fail("an RDMA Write or Send failed", token.written)
        elif isinstance(token, ForwardCall):
            self._fetched(token, ok)
        self._advance()

    def take_back(self, lease: Lease, length: int, sink: Lease | None, holder: Hold) -> None:
        """Take over a call from who stands before (:mod:`rpcrdma.engine.native`): it was found to be in order, and
        counted there; its Read chunk, if any, is in ``sink``; ``holder`` is released in place of the lease."""
        self._fetched(self._counted(lease, length, sink, holder), True)

    def unfetched(self, lease: Lease, length: int, sink: Lease) -> None:
        """Likewise, of one whose Read chunk could not be fetched."""
        self._fetched(self._counted(lease, length, sink, lease), False)

    def _counted(self, lease: Lease, length: int, sink: Lease | None, holder: Hold) -> ForwardCall:
        """A call of the settled version that was found to be in order, and counted, before it came here."""
        codec, view = VERSIONS[self.versions.version], lease.view[:length]
        header = codec.decode(view, self._options.max_segments)
        data = view[header.payload :]
        call = ForwardCall(codec, header, codec.reply_size(header), data, holder)
        call.plan = assembly.plan(header, len(data), self._options.max_call_size)
        if sink is not None:
            call.hold_sink(sink)
        return call

    def lost(self, count: int) -> None:
        """Replies that were given natively have not left."""
        if not self.closed:
            self.counters.send_failures += count
            self._fail("an RDMA Write or Send failed", None)

    def grow(self) -> None:
        """The peer has used the credits it has, and asks for more (:meth:`rpcrdma.engine.credits.Credits.due`). To be
        called between batches, however their calls were answered."""
        self.credits.taken = 0
        if not self._receive_memory.pressed:
            self.credits.grow()
            self._advance()

    def shrink(self) -> None:
        """The peer does not use the credits it has: as many as a connection begins with are enough."""
        self.credits.shrink(self._options.first_credits)

    def proceed(self) -> None:
        """Do what has become possible by what was done natively."""
        self._advance()

    def reply(self, call: ForwardCall, reply: Reply) -> None:
        """Answer ``call``."""
        if self.closed:
            reply.release()
            return
        self._to_answer.append((call, reply))
        self._advance()

    def drop(self, call: ForwardCall) -> None:
        """Leave ``call`` unanswered on a living connection: only where the upper layer's protocol allows it."""
        if not self.closed:
            self.counters.no_replies += 1
            self.credits.outstanding -= 1
            self._advance()

    def call_back(self, call: BackwardCall) -> None:
        """Send a backward call as soon as the peer's credits allow.

        Raises ConnectionError on a closed connection, ValueError for a message above the inline threshold that is in no
        chunk.
        """
        if self.closed:
            raise ConnectionError("the connection is closed")
        inline = call.exposure is None or call.exposure.call is None
        if inline and len(call.message) > self.versions.max_backward_size:
            raise ValueError(f"a backward call of {len(call.message)} octets")
        self.backward.submit(call)
        self._advance()

    def close(self) -> None:
        """The connection is gone: release what waits, fail backward calls. Calls being executed answer in vain."""
        if self.closed:
            return
        self.closed = True
        for call in [*self.to_read, *self.calls]:
            call.release()
        for answer in self._to_answer:
            if isinstance(answer, tuple):
                answer[1].release()
        for lease in self.receives:
            lease.release()
        for _, unread in self.reads:
            unread.release()
        for _, _, chain in self.chains:
            chain.release()
        for output in (self.to_read, self._to_answer, self.calls, self.receives, self.reads, self.chains):
            output.clear()
        self.backward.close()
        # Whoever still has a call of this connection's has this, but not the connection.
        self.versions.close()
        self._wake, self._trace = nothing, None

    # Received messages

    def _classify(self, view: memoryview) -> Header | None:
        """The header of a call, or None when the message needs no more attention of the caller's."""
        if len(view) < SMALLEST_HEADER:
            # Section 4.5: discarded before any parsing. But an error without a body is shorter, and section 4.2.4 has
            # it end the call it answers; as such a message is never answered itself, nothing is trusted but its XID.
            if not self.backward.take_error(view):
                self.counters.discards += 1
            return None
        xid, version, _, procedure = FIXED_WORDS.unpack_from(view)
        if procedure == RDMA_ERROR:
            # Never answered, in whatever version (section 4.2.4). It may be the answer to a backward call.
            if not self.backward.take_error(view):
                self.counters.discards += 1
            return None
        codec = self.versions.codecs.get(version)
        if codec is None:
            self._refuse(xid, version, Fault.VERSION, f"version {version}")
            return None
        try:
            header = codec.decode(view, self._options.max_segments)
        except Discard:
            self.counters.discards += 1
            return None
        except HeaderFault as fault:
            self._refuse(xid, version, fault.fault, fault)
            return None
        direction = header.direction
        if direction != CALL:
            if direction == OPTION:
                self._take_option(header, view)
                return None
            if direction == REPLY or self.backward.awaits(xid):
                # Whatever is wrong with a reply, it is discarded (section 4.5).
                if not self.backward.take_reply(header, view):
                    self.counters.discards += 1
                return None
        if version != self.versions.version:
            self.versions.heard(version)
        return header

    def _begin(self, header: Header, view: memoryview, lease: Lease) -> bool:
        """Take up a call. Returns whether ``lease`` is now the call's."""
        if self.draining:
            self.counters.discards += 1
            return False
        codec = VERSIONS[header.version]
        data = view[header.payload :]
        if header.procedure == RDMA_MSG and not assembly.is_call(header, data):
            self._refuse(header.xid, header.version, Fault.HEADER, "the payload is not this call")
            return False
        # Refused now rather than after it has been executed: every reply echoes these lists.
        reply_header = codec.reply_size(header)
        if reply_header > self.versions.properties.send_threshold:
            self._refuse(header.xid, header.version, Fault.NO_ROOM, f"reply header of {reply_header}")
            return False
        if self.poisoned is not None and header.xid in self.poisoned:
            self.poisoned.discard(header.xid)
            self._refuse(header.xid, header.version, Fault.NO_ROOM, "refused before")
            return False
        try:
            plan = assembly.plan(header, len(data), self._options.max_call_size)
        except assembly.BadReadList as bad:
            self._refuse(header.xid, header.version, Fault.HEADER, bad)
            return False
        if plan is not None and plan.size and not self.may_read:
            # Fetched from nowhere, it would wait for ever (RFC 8166 section 4.5.3 has no other word for it).
            self._refuse(header.xid, header.version, Fault.NO_ROOM, "the peer allows no RDMA Read")
            return False
        call = ForwardCall(codec, header, reply_header, data, lease)
        self.counters.calls += 1
        self.credits.outstanding += 1
        self.credits.taken += 1
        self.credits.asked = header.credits
        if plan is None:
            self.calls.append(call)
        else:
            call.plan = plan
            self.to_read.append(call)
        return True

    # Read chunks

    def _start_reads(self) -> None:
        """Fetch the Read chunks of as many waiting calls as memory allows, first come, first served."""
        while self.to_read:
            call = self.to_read[0]
            plan = call.plan
            assert plan is not None
            if plan.size:
                sink = self._sink(plan.size)
                if sink is None:
                    return
                call.hold_sink(sink)
            self.to_read.popleft()
            reads = plan.reads(call.sink)
            if reads:
                self.counters.reads += len(reads)
                self.counters.read_bytes += sum(len(read.sink) for read in reads)
                if self._trace is not None:
                    self._trace("svcrdma_post_reads", call.header.xid, len(reads))
                self.reads.append((reads, call))
            else:
                self._fetched(call, True)

    def _sink(self, size: int) -> Lease | None:
        """Memory for one call's Read chunks; None while there is none. (No more than ``max_call_size`` is asked for,
        which the owner must make sure that the account can give.)"""
        try:
            lease = self._memory.lease(size)
        except OutOfMemory:
            if not self._awaiting_sink and self._may_wait:
                self.counters.memory_waits += 1
                self._awaiting_sink = True
                self._memory.when_available(size, self._sink_available)
            return None
        self._may_wait = True
        return lease

    def _fetched(self, call: ForwardCall, ok: bool) -> None:
        """The Reads of ``call`` are over."""
        if self.closed:
            call.release()
            return
        header = call.header
        if not ok:
            self.counters.read_failures += 1
            self.credits.outstanding -= 1
            call.release()
            self._fail("an RDMA Read failed", header)
            return
        call.place()
        if header.procedure == RDMA_NOMSG:
            self.counters.long_calls += 1
            if not assembly.is_call(header, call.data):
                call.release()
                self._refuse(header.xid, header.version, Fault.HEADER, "the Long Call is not this call", counted=True)
                return
        self.calls.append(call)

    # Memory and failure

    def _advance(self) -> None:
        """Do whatever has become possible. Receives come first: what follows may grant their credits."""
        if self.closed:
            return
        if self.credits.posted < self.credits.target:
            self._repost()
        if self.to_read:
            self._start_reads()
        if self._to_answer:
            self._answer()
        if self.backward.waiting:
            self._send_backward()

    def _repost(self) -> None:
        for _ in range(self.credits.wanted()):
            try:
                lease = self._receive_memory.lease(self._options.receive_buffer)
            except OutOfMemory:
                if not self._awaiting_receive and self._may_wait:
                    self.counters.memory_waits += 1
                    self._awaiting_receive = True
                    self._receive_memory.when_available(self._options.receive_buffer, self._receive_available)
                return
            self._may_wait = True
            self.credits.posted += 1
            self.receives.append(lease)

    def _receive_available(self) -> None:
        self._awaiting_receive = False
        self._resume()

    def _sink_available(self) -> None:
        self._awaiting_sink = False
        self._resume()

    def _resume(self) -> None:
        # If no lease can be had even now, it must not be waited for from here: the account would call again at once.
        self._may_wait = False
        try:
            self._advance()
        finally:
            self._may_wait = True
        self._wake()

    def _fail(self, reason: str, call: Header | None) -> None:
        """The connection is of no more use. Only the first failure may be a refusal; others follow from it."""
        if self.failure is None:
            if self._trace is not None:
                self._trace("svcrdma_wc_error", 0 if call is None else call.xid, reason)
            self.failure = reason
            self.suspects.failed = call
