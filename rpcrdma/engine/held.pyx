"""Calls over RPC-over-RDMA that wait on the native path (C declarations: ``held.pxd``).

Owns :class:`HeldMessage`, a call in its Receive's buffer, and :class:`HeldCalls`, those of a connection. Imports
:mod:`rpcrdma.engine.replies` and :mod:`rpcrdma.memory`.

A call that waits is outstanding until it is answered and keeps its buffer; another is posted in its place. It has the
memory for its reply's head before anything is done for it. Its connection counts it among its calls in progress. When the
connection has gone it is carried through all the same, and the reply is dropped.
"""

from libc.stdint cimport uint8_t

from rpcrdma.declined cimport CREDITS, MEMORY
from rpcrdma.engine.replies cimport NativeReply, Replies
from rpcrdma.memory cimport Account, Lease
from rpcrdma.octets cimport load32
from rpcrdma.place cimport ANSWERED, WAITS, Held
from rpcrdma.wire.chunk_lists cimport WORD
from rpcrdma.wire.rdma cimport RDMA_NOMSG
from rpcrdma.wire.transport_header cimport header_t, load_header, reply_header_size

from rpcrdma.memory import OutOfMemory


cdef int place_chunk(
    NativeReply reply, const uint8_t *octets, const header_t *header, Lease sink, size_t size
) except -1:
    """Let the content of the call's Read chunk stand beside its message, but for a Long Call, which it is itself."""
    if sink is None or header.procedure == RDMA_NOMSG:
        reply.bulk, reply.bulk_size, reply.bulk_at = NULL, 0, NULL
    else:
        reply.bulk, reply.bulk_size = <const uint8_t *>sink.address, size
        reply.bulk_at = octets + header.payload + load32(octets + header.reads + WORD)
    return 0


cdef class HeldMessage(Held):
    cdef int again(self) except -1:
        return self.calls.again(self)


cdef class HeldCalls:
    def __init__(
        self, ResponderState responder not None, Replies replies not None, Account receive_account not None, options, run,
        owner,
    ):
        self.responder = responder
        self.replies = replies
        self.credits = replies.credits
        self.native = replies.native
        self.receive_account = receive_account
        self.receive_buffer = options.receive_buffer
        self.most_segments = options.max_segments
        self.run = run
        self.owner = owner

    cdef HeldMessage keep(self, Lease message, size_t size, Lease sink, size_t sink_size, const header_t *header):
        """The call that has just been answered so, to be given to ``hold``, with its memory; None: it cannot be kept."""
        cdef NativeReply reply = self.replies.reply
        cdef HeldMessage held
        reply.forget_payload()
        if self.owner is None or not self.owner.begin_held():
            reply.drop()
            self.native.dismiss()
            return None
        held = HeldMessage.__new__(HeldMessage)
        held.calls = self
        held.lease, held.length = message, size
        held.sink, held.sink_size = sink, sink_size
        if header.procedure == RDMA_NOMSG:
            held.message, held.size = <const uint8_t *>sink.address, sink_size
        else:
            held.message, held.size = <const uint8_t *>message.address + header.payload, size - header.payload
        held.head, reply.head = reply.head, None
        return held

    cdef bint keep_message(self, Lease message, size_t size, const header_t *header) except -1:
        """Keep a call that is not outstanding yet in its Receive's buffer; another takes that one's place."""
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef HeldMessage held
        cdef Lease receive
        try:
            if self.credits.crowded():
                raise OutOfMemory
            receive = self.receive_account.lease(self.receive_buffer)
        except OutOfMemory:
            self.replies.reply.drop()
            self.native.dismiss()
            return self.replies.leave(octets, size, header, MEMORY)
        held = self.keep(message, size, None, 0, header)
        if held is None:
            receive.release()
            return self.replies.leave(octets, size, header, CREDITS)
        self.replies.received_calls += 1
        self.credits.asked = header.credit
        self.credits.outstanding += 1
        self.replies.endpoint.repost(receive)
        self.native.hold(held)
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
        cdef NativeReply reply = self.replies.reply
        cdef const uint8_t *octets = <const uint8_t *>held.lease.address
        cdef header_t header
        cdef int outcome
        load_header(octets, held.length, self.most_segments, &header)
        self.replies.prepare(octets, &header)
        reply.head, held.head = held.head, None
        reply.begin(reply_header_size(&header), min(self.replies.threshold, reply.head.capacity))
        place_chunk(reply, octets, &header, held.sink, held.sink_size)
        reply.kept = True
        try:
            outcome = self.native.answer_again(held, reply)
        finally:
            reply.kept = False
            place_chunk(reply, octets, &header, None, 0)
        if outcome == WAITS:
            reply.forget_payload()
            held.head, reply.head = reply.head, None
            self.native.hold(held)
            return False
        self.conclude(held, outcome, &header)
        return True

    cdef int conclude(self, HeldMessage held, int outcome, const header_t *header) except -1:
        """Send the reply of a call that waited, or leave the call to the responder."""
        cdef NativeReply reply = self.replies.reply
        cdef Lease message = held.lease, sink = held.sink
        cdef object holder = message if outcome == ANSWERED else self.native.passed_on(held, message)
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
            self.replies.send(<const uint8_t *>message.address, header, grant, None)
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
