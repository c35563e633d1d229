"""Direct calls over RPC-over-RDMA version One: short messages answered in the stack in which they arrive.

Owns :class:`DirectResponder`, which stands before a connection's :class:`~rpcrdma.engine.responder.Responder` and
shares its credits, counters and thresholds. Imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.place`, the vocabulary of
:mod:`rpcrdma.verbs` and, of this package, :mod:`~rpcrdma.engine.replies` and :mod:`~rpcrdma.engine.held`.

A message is taken up here if it is an RDMA_MSG without Reply chunk, in the version that the connection has settled on
(RFC 8166 section 4.2), with at most one chunk: a Write chunk, or a Read chunk behind all that was sent inline. Everything
else, and every call that is declined, is the responder's, also one whose Read chunk has been fetched meanwhile. What is
sent is what the responder would send: the DDP-eligible result in the Write chunk (RFC 8267 section 6.4.1), the rest
inline, chunks returned with the lengths written (RFC 8166 section 4.3.2), Send-with-Invalidate of the chunk's first
handle where both sides can (RFC 8797 section 4.1).

Credits. A call answered at once never counts as outstanding: its Receive is posted again, the very same buffer, before
its reply is posted. One whose chunk is to be fetched is outstanding until it is answered, and keeps its buffer; another
is posted in its place.
"""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.declined cimport CHUNKS, CREDITS, LONG_CALL, MEMORY, REPLY_CHUNK, SHAPE, SIZE, VERSION
from rpcrdma.engine.credits cimport Credits
from rpcrdma.engine.held cimport HeldCalls, HeldMessage
from rpcrdma.engine.replies cimport SEGMENTS, DirectReply, Replies
from rpcrdma.memory cimport Account, Lease
from rpcrdma.place cimport ANSWERED, WAITS, Answerer, load32, load64
from rpcrdma.verbs.native cimport Fetch, NativeEndpoint, NativeOwner, Target
from rpcrdma.wire.places cimport READ_SEGMENT
from rpcrdma.wire.rdma1 cimport RDMA_NOMSG, SMALLEST_HEADER, VERSION as VERSION_ONE

from rpcrdma.memory import OutOfMemory


cdef class DirectResponder(NativeOwner):
    cdef object responder
    cdef Replies replies
    cdef HeldCalls held
    cdef Credits credits
    cdef object run
    cdef Answerer direct
    cdef Account receive_account
    cdef size_t receive_buffer
    cdef size_t most                # octets of a Read chunk
    # What holds for this batch.
    cdef bint begun
    cdef bint takes                 # calls
    cdef bint fetches               # calls with a Read chunk
    cdef bint wary                  # some calls may be poisoned
    cdef bint passed_on             # the responder has something to do
    cdef long spare                 # what a grant may not count on: messages of the batch that may be no calls

    def __init__(
        self, responder, NativeEndpoint endpoint not None, Answerer direct not None, Account account not None,
        Account receive_account not None, options, run, owner=None,
    ):
        self.responder = responder
        self.replies = Replies(responder, endpoint, direct, account)
        self.held = HeldCalls(responder, self.replies, receive_account, options, run, owner)
        self.credits = responder.credits
        self.run = run
        self.direct = direct
        self.receive_account = receive_account
        self.receive_buffer = options.receive_buffer
        self.most = options.max_call_size
        endpoint.native = self

    cdef int begin(self) except -1:
        """Find out what holds until :meth:`pause`."""
        self.begun = True
        self.spare = 0
        self.takes = self.responder.answers_directly
        if self.takes:
            self.wary = self.responder.wary
            self.replies.begin()
            self.fetches = self.responder.may_read and not self.responder.awaits_memory
        return 0

    cdef int pause(self) except -1:
        """The end of a batch: other code may run, and the responder goes on."""
        self.begun = False
        self.direct.pause()
        self.replies.count()
        if self.passed_on or self.credits.posted < self.credits.target or not self.responder.answers_directly:
            self.passed_on = False
            self.responder.proceed()
            self.run()
        return 0

    def set_endpoint(self, NativeEndpoint endpoint not None):
        self.replies.endpoint = self.replies.reply.endpoint = endpoint

    def received(self, messages):
        cdef list rest = []
        cdef Lease lease
        cdef size_t taken = 0
        self.begin()
        if not self.takes:
            self.begun = False
            for _ in messages:
                self.direct.decline(NULL, 0, VERSION)
            return messages
        try:
            try:
                for message in messages:
                    lease = message[0]
                    taken += 1
                    if not self.answer(lease, message[1]):
                        self.spare += 1
                        rest.append(message)
            finally:
                self.begun = False
                self.replies.reply.drop()
                self.direct.pause()
                self.replies.count()
        except BaseException:
            # The connection ends of it: what nobody has taken goes with it.
            for message in rest + list(messages[taken:]):
                (<Lease>message[0]).release()
            raise
        return rest

    cdef bint answer(self, Lease message, size_t size) except -1:
        """Answer one message, or leave it alone."""
        cdef DirectReply reply = self.replies.reply
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef const uint8_t *chunk = NULL
        cdef size_t payload = SMALLEST_HEADER, header = SMALLEST_HEADER, segments = 0, index, length
        cdef uint32_t xid
        cdef long grant
        cdef int outcome
        if size < SMALLEST_HEADER or load32(octets + 4) != VERSION_ONE or load32(octets + 12) != 0:
            return self.replies.leave(octets, size, LONG_CALL if size >= 16 and load32(octets + 12) == RDMA_NOMSG else SHAPE)
        xid = load32(octets)
        if self.wary and xid in self.responder.poisoned:
            return False
        if load32(octets + 16) != 0:
            return self.fetch(message, size)
        reply.reduced = load32(octets + 20) == 1
        if reply.reduced:
            if size < 28:
                return False
            segments = load32(octets + 24)
            chunk = octets + 28
            payload = header = 28 + 16 * segments + 8
            if segments == 0 or segments > SEGMENTS or size < payload:
                return self.replies.leave(octets, size, CHUNKS)
            reply.capacity = 0
            for index in range(segments):
                length = load32(chunk + 16 * index + 4)
                if length == 0:
                    return False
                reply.capacity += length
            if load64(chunk + 16 * segments) != 0:
                return self.replies.leave(octets, size, REPLY_CHUNK if load32(chunk + 16 * segments) == 0 else CHUNKS)
        elif load64(octets + 20) != 0:
            return self.replies.leave(octets, size, REPLY_CHUNK if load32(octets + 20) == 0 else CHUNKS)
        if size < payload + 8 or load32(octets + payload) != xid or header >= self.replies.threshold:
            return False
        grant = 0 if self.credits.crowded() else self.credits.grant(self.spare)
        if grant <= 0:
            return self.replies.leave(octets, size, CREDITS)
        try:
            outcome = self.replies.write(octets + payload, size - payload, header)
        except BaseException:
            message.release()
            raise
        if outcome != ANSWERED:
            return outcome == WAITS and self.held.hold_message(message, size, payload, header, chunk, segments)
        self.replies.received_calls += 1
        self.credits.asked = load32(octets + 8)
        self.replies.endpoint.repost(message)
        if segments:
            return self.replies.send(xid, grant, chunk, segments, self.replies.invalidate, load32(chunk))
        return self.replies.send(xid, grant, NULL, 0, False, 0)

    cdef int answered(self, long count, bint ok) except -1:
        self.credits.unsent -= count
        if not ok:
            self.responder.lost(count)
        return 0

    # -- Calls with a Read chunk ---------------------------------------------------------------------------------

    cdef bint fetch(self, Lease message, size_t size) except -1:
        """Begin to fetch the one Read chunk of a call, wherever in it that belongs."""
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef Target sources[SEGMENTS]
        cdef size_t at = 16, count = 0, length = 0, position = load32(octets + 20)
        cdef Fetch call
        cdef Lease receive, sink
        if not self.fetches or self.credits.crowded():
            return self.replies.leave(octets, size, CREDITS if self.fetches else MEMORY)
        while at + 4 <= size and load32(octets + at) == 1:
            if count == SEGMENTS or at + READ_SEGMENT + 4 > size or load32(octets + at + 4) != load32(octets + 20):
                return self.replies.leave(octets, size, CHUNKS)
            sources[count].handle = load32(octets + at + 8)
            sources[count].length = load32(octets + at + 12)
            sources[count].offset = load64(octets + at + 16)
            if sources[count].length == 0:
                return False
            length += sources[count].length
            count += 1
            at += READ_SEGMENT
        # The end of the Read list, no Write list, no Reply chunk; and a call of the same XID.
        if at + 20 > size or load32(octets + at) != 0 or load64(octets + at + 4) != 0:
            return self.replies.leave(octets, size, CHUNKS if at + 20 > size or load32(octets + at + 4) else REPLY_CHUNK)
        at += 12
        if position == 0 or position & 3 or position > size - at:
            return self.replies.leave(octets, size, CHUNKS)
        if load32(octets + at) != load32(octets) or load32(octets + at + 4) != 0:
            return False
        if size & 3:
            return False  # so is the position: an error, for the responder to say (RFC 8166 section 3.4.5)
        if length > self.most or SMALLEST_HEADER >= self.replies.threshold:
            return self.replies.leave(octets, size, SIZE)
        try:
            receive = self.receive_account.lease(self.receive_buffer)
        except OutOfMemory:
            return self.replies.leave(octets, size, MEMORY)
        try:
            sink = self.replies.reply.account.lease(length)
        except OutOfMemory:
            # The responder waits for some, and who comes later waits behind it.
            self.fetches = False
            receive.release()
            return self.replies.leave(octets, size, MEMORY)
        call = Fetch.__new__(Fetch)
        call.message, call.size, call.offset = message, size, at
        call.sink, call.length = sink, length
        self.replies.received_calls += 1
        self.credits.asked = load32(octets + 8)
        self.replies.reads += count
        self.replies.read_octets += length
        self.credits.outstanding += 1
        self.replies.endpoint.repost(receive)
        self.replies.endpoint.post_fetch(sources, count, call)
        return True

    cdef int fetched(self, Fetch call, bint ok) except -1:
        cdef Lease message, sink
        if not self.begun:
            self.begin()
        try:
            if ok and self.takes and self.answer_fetched(call):
                return 0
        except BaseException:
            call.message.release()
            call.sink.release()
            self.direct.pause()
            raise
        self.direct.pause()
        self.passed_on = True
        message, sink, call.message, call.sink = call.message, call.sink, None, None
        self.responder.fetched(message, call.size, sink, ok)
        return 0

    cdef bint answer_fetched(self, Fetch call) except -1:
        """Answer a call whose Read chunk has been fetched, or leave it as it is."""
        cdef DirectReply reply = self.replies.reply
        cdef const uint8_t *octets = <const uint8_t *>call.message.address
        cdef uint32_t xid = load32(octets), handle = load32(octets + 24)
        cdef long grant = self.credits.grant()
        cdef HeldMessage held
        cdef int outcome
        if grant <= 0:
            return False
        reply.reduced = False
        reply.bulk, reply.bulk_size = <const uint8_t *>call.sink.address, call.length
        reply.bulk_at = octets + call.offset + load32(octets + 20)
        try:
            outcome = self.replies.write(octets + call.offset, call.size - call.offset, SMALLEST_HEADER)
        finally:
            reply.bulk, reply.bulk_size, reply.bulk_at = NULL, 0, NULL
        if outcome == WAITS:
            held = self.held.held_message(call.message, call.size, call.offset, SMALLEST_HEADER)
            if held is None:
                return False
            held.sink, held.bulk_size = call.sink, call.length
            held.bulk_at = octets + call.offset + load32(octets + 20)
            held.invalidates, held.handle = self.replies.invalidate, handle
            call.message = call.sink = None
            self.direct.hold(held)
            return True
        if outcome != ANSWERED:
            return False
        self.credits.outstanding -= 1
        self.replies.send(xid, grant, NULL, 0, self.replies.invalidate, handle)
        call.message.release()
        call.sink.release()
        call.message = call.sink = None
        return True

    def refused_call(self, handle):
        return self.replies.refused_call(handle)
