# distutils: extra_compile_args = -O2
"""Calls of a record stream that are answered natively, at once or when what they wait for is there.

Owns :class:`RecordAnswers`; imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.place` and how replies leave.

A whole record is offered to the :class:`~rpcrdma.place.Answerer` before it becomes an object. Replies are written one
behind the other into leased buffers, and leave in as few pieces as there are buffers; large data of files stay where
they are, and leave from there (:mod:`rpcrdma.pipes`).

A call that waits stays where it was received, its buffer held, and has got the memory for its reply before anything is
done for it: when the work is over there is nothing left that could fail. Its connection counts it among its calls in
progress (``begin_held``, ``end_held``), and is told to send when the reply is there. A call whose connection has gone
is carried through all the same: its retransmission, on another connection, waits for the outcome.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t

from rpcrdma.declined cimport MEMORY, TURN
from rpcrdma.in_progress cimport CountingConnection
from rpcrdma.memory cimport Account, Lease
from rpcrdma.place cimport ANSWERED, WAITS, Answerer, Held, store32
from rpcrdma.tcp.outgoing cimport Outgoing
from rpcrdma.tcp.replies cimport NativeReplies

from rpcrdma.memory import OutOfMemory

cdef enum:
    LAST_FRAGMENT = 0x80000000
    LATE_ROOM = 4096        # octets for the head of a reply that comes later
    MUCH = 16384            # octets of a call that its host's pace reckons with before it is over


cdef class HeldRecord(Held):
    cdef int again(self) except -1:
        return self.answers.again(self)


cdef RecordAnswers record_answers(Answerer native, Outgoing outgoing, Account account, size_t most_unsent, CountingConnection owner):
    """What answers the calls of one stream."""
    cdef RecordAnswers answers = RecordAnswers.__new__(RecordAnswers)
    answers.native, answers.outgoing, answers.account = native, outgoing, account
    answers.most_unsent, answers.owner = most_unsent, owner
    answers.replies = NativeReplies.__new__(NativeReplies)
    answers.replies.account = account
    answers.late = NativeReplies.__new__(NativeReplies)
    answers.late.account, answers.late.kept = account, True
    return answers


cdef class RecordAnswers:
    cdef bint answer(self, const uint8_t *message, size_t length, Lease lease) except -1:
        """Answer a call, which stands in ``lease``, now or later; or leave it to the dispatcher."""
        cdef NativeReplies replies = self.replies
        cdef int outcome
        if self.outgoing.queued > self.most_unsent or not replies.begin():
            self.native.decline(message, length, TURN if self.outgoing.queued > self.most_unsent else MEMORY)
            return False
        replies.shown = self.tap is not None
        try:
            outcome = self.native.answer(message, length, replies)
        except BaseException:
            replies.cancel()
            raise
        if outcome == ANSWERED:
            self.queue(replies)
            return True
        replies.cancel()
        return outcome == WAITS and self.hold(message, length, lease)

    cdef int pause(self) except -1:
        """The end of a turn: other code may run."""
        self.replies.drop()
        return self.native.pause()

    # -- calls that wait -----------------------------------------------------------------------------------------

    cdef bint hold(self, const uint8_t *message, size_t length, Lease lease) except -1:
        """Keep the call that has just been answered so. False: it cannot be kept."""
        cdef HeldRecord held = HeldRecord.__new__(HeldRecord)
        cdef Lease room
        if self.owner is None or not self.owner.begin_held():
            self.native.dismiss()
            self.native.decline(message, length, TURN)
            return False
        try:
            room = self.account.lease(LATE_ROOM)
        except OutOfMemory:
            self.owner.end_held()
            self.native.dismiss()
            self.native.decline(message, length, MEMORY)
            return False
        held.answers = self
        held.message, held.size = message, length
        held.hold, held.room = lease.retain(), room
        if self.pace is not None and length > MUCH:
            self.pace.promise(length)
        self.native.hold(held)
        return True

    cdef int again(self, HeldRecord held) except -1:
        """What the call waited for is there. What goes wrong here costs the connection."""
        cdef bint over = True
        try:
            over = self.offer(held)
        except Exception:
            self.late.drop()
            if held.hold is not None:
                held.hold.release()
                held.hold = None
            if self.owner is not None:
                self.owner.crashed()
        if over and self.owner is not None:
            self.owner.end_held()
        return 0

    cdef bint offer(self, HeldRecord held) except -1:
        """Offer the call again; whether it is over."""
        cdef NativeReplies replies = self.late
        cdef Lease hold = held.hold
        cdef int outcome
        cdef size_t at
        replies.lease, held.room = held.room, None
        replies.start = <uint8_t *>replies.lease.address
        replies.at, replies.end = replies.start + 4, replies.start + replies.lease.capacity
        replies.shown, replies.whole = self.tap is not None, False
        outcome = self.native.answer_again(held, replies)
        if outcome == WAITS:
            replies.cancel()
            held.room, replies.lease = replies.lease, None
            self.native.hold(held)
            return False
        if outcome == ANSWERED and not self.closed:
            self.queue(replies)
        else:
            replies.forget_payload()
        replies.drop()
        held.hold = None
        if outcome == ANSWERED:
            hold.release()
            return True
        holder = self.native.passed_on(held, hold)
        if self.closed:
            holder.release()
        else:
            at = held.message - <const uint8_t *>hold.address
            self.owner.take_back(hold.view[at : at + held.size], holder)
        return True

    # -- replies -------------------------------------------------------------------------------------------------

    cdef int queue(self, NativeReplies replies) except -1:
        """Add the present reply to what is to be sent."""
        cdef size_t head = replies.at - replies.start - 4
        cdef size_t payload = 0, split
        cdef Outgoing outgoing = self.outgoing
        if self.tap is not None:
            self.show(replies, head)
        if replies.payload is None and replies.pipe is None:
            store32(replies.start, <unsigned int>(LAST_FRAGMENT | head))
            outgoing.add_lease(replies.start, 4 + head, replies.lease)
        else:
            payload, split = (replies.payload_length + 3) & ~<size_t>3, replies.payload_at
            store32(replies.start, <unsigned int>(LAST_FRAGMENT | (head + payload)))
            outgoing.add_lease(replies.start, split, replies.lease)
            if replies.payload is not None:
                outgoing.add_lease(<uint8_t *>replies.payload.address, replies.payload_length, replies.payload)
            elif payload:
                outgoing.add_pipe(replies.pipe, replies.payload_length)
                replies.pipe = None
            if payload > replies.payload_length:
                outgoing.add_octets(0, payload - replies.payload_length)
            outgoing.add_lease(replies.start + split, head + 4 - split, replies.lease)
            replies.forget_payload()
        self.octets += head + payload
        return 0

    cdef int show(self, NativeReplies replies, size_t head) except -1:
        """Show the present reply, without its record mark."""
        cdef Lease lease = replies.payload
        cdef size_t split = head + 4 if lease is None else replies.payload_at
        parts = [PyMemoryView_FromMemory(<char *>replies.start + 4, split - 4, PyBUF_READ)]
        if lease is not None:
            parts.append(PyMemoryView_FromMemory(<char *>lease.address, replies.payload_length, PyBUF_READ))
            parts.append(bytes(-replies.payload_length & 3))
            parts.append(PyMemoryView_FromMemory(<char *>replies.start + split, head + 4 - split, PyBUF_READ))
        self.tap.record_out(parts)
        return 0

    cdef int close(self) except -1:
        """The connection is gone; calls that wait are carried through, and their replies dropped."""
        self.closed = True
        return 0
