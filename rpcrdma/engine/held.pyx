"""Calls over RPC-over-RDMA that wait on the native path (C declarations: ``held.pxd``).

Owns :class:`HeldMessage`, a call in its Receive's buffer, and :class:`HeldCalls`, those of a connection. Imports
:mod:`rpcrdma.engine.replies` and :mod:`rpcrdma.memory`.

A call that waits is outstanding until it is answered and keeps its buffer; another is posted in its place. It has the
memory for its reply's head before anything is done for it. Its connection counts it among its calls in progress. When the
connection has gone it is carried through all the same, and the reply is dropped.
"""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.declined cimport CREDITS, MEMORY
from rpcrdma.engine.replies cimport DirectReply, Replies
from rpcrdma.memory cimport Account, Lease
from rpcrdma.place cimport ANSWERED, WAITS, Held, load32

from rpcrdma.memory import OutOfMemory


cdef class HeldMessage(Held):
    cdef int again(self) except -1:
        return self.calls.again(self)


cdef class HeldCalls:
    def __init__(self, responder, Replies replies not None, Account receive_account not None, options, run, owner):
        self.responder = responder
        self.replies = replies
        self.credits = replies.credits
        self.direct = replies.direct
        self.receive_account = receive_account
        self.receive_buffer = options.receive_buffer
        self.run = run
        self.owner = owner

    cdef HeldMessage held_message(self, Lease message, size_t size, size_t offset, size_t header):
        """The call that has just been answered so, or None: it cannot be kept."""
        cdef DirectReply reply = self.replies.reply
        cdef HeldMessage held
        reply.forget_payload()
        if self.owner is None or not self.owner.begin_held():
            reply.drop()
            self.direct.dismiss()
            return None
        held = HeldMessage.__new__(HeldMessage)
        held.calls = self
        held.lease, held.length = message, size
        held.message, held.size = <const uint8_t *>message.address + offset, size - offset
        held.head, reply.head = reply.head, None
        held.header = header
        return held

    cdef bint hold_message(
        self, Lease message, size_t size, size_t offset, size_t header, const uint8_t *chunk, size_t segments
    ) except -1:
        """Keep a call in its Receive's buffer; another takes that one's place."""
        cdef HeldMessage held
        cdef Lease receive
        try:
            if self.credits.crowded():
                raise OutOfMemory
            receive = self.receive_account.lease(self.receive_buffer)
        except OutOfMemory:
            self.replies.reply.drop()
            self.direct.dismiss()
            return self.replies.leave(<const uint8_t *>message.address, size, MEMORY)
        held = self.held_message(message, size, offset, header)
        if held is None:
            receive.release()
            return self.replies.leave(<const uint8_t *>message.address, size, CREDITS)
        held.chunk, held.segments = chunk, segments
        held.capacity = self.replies.reply.capacity
        if segments:
            held.invalidates, held.handle = self.replies.invalidate, load32(chunk)
        self.replies.received_calls += 1
        self.credits.asked = load32(<const uint8_t *>message.address + 8)
        self.credits.outstanding += 1
        self.replies.endpoint.repost(receive)
        self.direct.hold(held)
        return True

    cdef int again(self, HeldMessage held) except -1:
        """What a call waited for is there. What goes wrong here costs the connection."""
        cdef bint over = True
        try:
            over = self.offer(held)
        except Exception:
            self.replies.reply.drop()
            for lease in (held.lease, held.sink):
                if lease is not None:
                    lease.release()
            held.lease = held.sink = None
            self.owner.crashed()
        if over:
            self.owner.end_held()
        return 0

    cdef bint offer(self, HeldMessage held) except -1:
        """Offer the call again; whether it is over."""
        cdef DirectReply reply = self.replies.reply
        cdef int outcome
        reply.head, held.head = held.head, None
        reply.at = <uint8_t *>reply.head.address + held.header
        reply.end = <uint8_t *>reply.head.address + min(self.replies.threshold, reply.head.capacity)
        reply.payload_length = 0
        reply.reduced, reply.capacity = held.segments != 0, held.capacity
        if held.sink is not None:
            reply.bulk, reply.bulk_size = <const uint8_t *>held.sink.address, held.bulk_size
            reply.bulk_at = held.bulk_at
        try:
            outcome = self.direct.answer_again(held, reply)
        finally:
            reply.bulk, reply.bulk_size, reply.bulk_at = NULL, 0, NULL
        if outcome == WAITS:
            reply.forget_payload()
            held.head, reply.head = reply.head, None
            self.direct.hold(held)
            return False
        self.conclude(held, outcome)
        return True

    cdef int conclude(self, HeldMessage held, int outcome) except -1:
        """Send the reply of a call that waited, or leave the call to the responder."""
        cdef DirectReply reply = self.replies.reply
        cdef Lease message = held.lease, sink = held.sink
        cdef object holder = message if outcome == ANSWERED else self.direct.passed_on(held, message)
        cdef long grant = self.credits.grant()
        held.lease = held.sink = None
        if outcome != ANSWERED and not self.responder.closed:
            reply.drop()
            self.responder.take_back(message, held.length, sink, holder)
            self.run()
            return 0
        if self.responder.closed:
            reply.drop()
        elif grant > 0:
            self.credits.outstanding -= 1
            self.replies.send(
                load32(<const uint8_t *>message.address), grant, held.chunk, held.segments, held.invalidates,
                held.handle,
            )
        else:
            # No Receive is left, and no memory for one: zero must not be granted (RFC 8166 section 3.3.1).
            reply.drop()
            self.responder.lost(1)
        holder.release()
        if sink is not None:
            sink.release()
        self.replies.count()
        if self.responder.failure is not None:
            self.run()
        return 0
