"""Direct calls over RPC-over-RDMA version One: short messages answered in the stack in which they arrive.

Owns :class:`DirectResponder`, which stands before a connection's :class:`~rpcrdma.engine.responder.Responder` and
shares its credits, counters and thresholds. Imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.pipes`, :mod:`rpcrdma.place`
and the vocabulary of :mod:`rpcrdma.verbs`.

A message is taken up here if it is an RDMA_MSG without Reply chunk, in the version that the connection has settled on
(RFC 8166 section 4.2), with at most one chunk: a Write chunk, or a Read chunk behind all that was sent inline. Everything
else, and every call that is declined, is the responder's, also one whose Read chunk has been fetched meanwhile. What is
sent is what the responder would send: the DDP-eligible result in the Write chunk (RFC 8267 section 6.4.1), the rest
inline, chunks returned with the lengths written (RFC 8166 section 4.3.2), Send-with-Invalidate of the chunk's first
handle where both sides can (RFC 8797 section 4.1).

Credits. A call answered at once never counts as outstanding: its Receive is posted again, the very same buffer, before
its reply is posted. One whose chunk is to be fetched is outstanding until it is answered, and keeps its buffer; another is
posted in its place.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from rpcrdma.declined cimport CHUNKS, CREDITS, LONG_CALL, MEMORY, REPLY_CHUNK, SHAPE, SIZE, VERSION
from rpcrdma.engine.credits cimport Credits
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pipes cimport Pipe, take_pipe, worth
from rpcrdma.place cimport Answerer, Place, load32, load64, store32, store64
from rpcrdma.verbs.native cimport Fetch, NativeEndpoint, NativeOwner, Target
from rpcrdma.wire.places cimport NOMSG, READ_SEGMENT, SMALLEST_HEADER, VERSION_ONE, call_at

from rpcrdma.memory import OutOfMemory

cdef enum:
    SEGMENTS = 16
    REMEMBERED = 64


cdef struct Written:
    uint32_t xid
    uint32_t count
    uint32_t handles[SEGMENTS]


cdef class DirectReply(Place):
    """A reply's head in a send buffer, and its payload in a buffer of its own if it goes to a Write chunk."""

    cdef Account account
    cdef NativeEndpoint endpoint
    cdef Lease head
    cdef bint reduced           # the payload goes to the Write chunk
    cdef size_t capacity        # of that chunk
    cdef Lease payload
    cdef Pipe pipe              # or is in one
    cdef size_t payload_length

    cdef uint8_t *data(self, size_t room) except? NULL:
        if not self.reduced:
            return self.at if room + 4 <= <size_t>(self.end - self.at) else NULL
        if self.payload is not None or self.pipe is not None or room > self.capacity:
            return NULL
        try:
            self.payload = self.account.lease(room)
        except OutOfMemory:
            return NULL
        return <uint8_t *>self.payload.address

    cdef ssize_t pages(self, int fd, uint64_t offset, size_t count) except -2:
        cdef ssize_t got
        if not self.reduced or self.payload is not None or self.pipe is not None or count > self.capacity:
            return -1
        if not worth(offset, count) or not self.endpoint.takes_pages():
            return -1
        self.pipe = take_pipe()
        if self.pipe is None:
            return -1
        got = self.pipe.fill(fd, offset, count)
        if got < 0:
            self.forget_pipe()
        return got

    cdef int forget_payload(self) except -1:
        self.payload_length = 0
        if self.payload is not None:
            self.payload.release()
            self.payload = None
        return self.forget_pipe()

    cdef int forget_pipe(self) except -1:
        """Let go of what was to become the payload."""
        if self.pipe is not None:
            pipe, self.pipe = self.pipe, None
            pipe.release()
        return 0

    cdef int data_done(self, size_t length) except -1:
        if self.reduced:
            self.payload_length = length
            return 0
        self.at += length
        while length & 3:
            self.at[0] = 0
            self.at += 1
            length += 1
        return 0

    cdef int drop(self) except -1:
        if self.head is not None:
            self.head.release()
            self.head = None
        return self.forget_payload()


cdef class DirectResponder(NativeOwner):
    cdef object responder
    cdef Credits credits
    cdef object counters
    cdef object run
    cdef NativeEndpoint endpoint
    cdef Answerer direct
    cdef Account receive_account
    cdef size_t receive_buffer
    cdef size_t most                # octets of a Read chunk
    cdef DirectReply reply
    # What holds for this batch.
    cdef bint begun
    cdef bint takes                 # calls
    cdef bint fetches               # calls with a Read chunk
    cdef bint wary                  # some calls may be poisoned
    cdef bint passed_on             # the responder has something to do
    cdef size_t threshold
    cdef bint invalidate
    cdef long spare                 # what a grant may not count on: messages of the batch that may be no calls
    # Added to the counters at its end.
    cdef long received_calls
    cdef long answered_calls
    cdef long invalidations
    cdef long writes
    cdef long write_octets
    cdef long reads
    cdef long read_octets
    # The calls that were written to last.
    cdef Written written[REMEMBERED]
    cdef size_t latest

    def __init__(
        self, responder, NativeEndpoint endpoint not None, Answerer direct not None, Account account not None,
        Account receive_account not None, options, run,
    ):
        self.responder = responder
        self.credits = responder.credits
        self.counters = responder.counters
        self.run = run
        self.endpoint = endpoint
        self.direct = direct
        self.receive_account = receive_account
        self.receive_buffer = options.receive_buffer
        self.most = options.max_call_size
        self.reply = DirectReply.__new__(DirectReply)
        self.reply.account = account
        self.reply.endpoint = endpoint
        endpoint.native = self

    cdef int begin(self) except -1:
        """Find out what holds until :meth:`pause`."""
        self.begun = True
        self.spare = 0
        self.takes = self.responder.answers_directly
        if self.takes:
            self.wary = self.responder.wary
            properties = self.responder.versions.properties
            self.threshold = properties.send_threshold
            self.invalidate = properties.remote_invalidation
            self.fetches = self.responder.may_read and not self.responder.awaits_memory
        return 0

    cdef int pause(self) except -1:
        """The end of a batch: other code may run, and the responder goes on."""
        self.begun = False
        self.direct.pause()
        self.count()
        if self.passed_on or self.credits.posted < self.credits.target or not self.responder.answers_directly:
            self.passed_on = False
            self.responder.proceed()
            self.run()
        return 0

    def set_endpoint(self, NativeEndpoint endpoint not None):
        self.endpoint = self.reply.endpoint = endpoint

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
                self.reply.drop()
                self.direct.pause()
                self.count()
        except BaseException:
            # The connection ends of it: what nobody has taken goes with it.
            for message in rest + list(messages[taken:]):
                (<Lease>message[0]).release()
            raise
        return rest

    cdef int count(self) except -1:
        counters = self.counters
        if self.received_calls:
            self.responder.received_messages += self.received_calls
            counters.receives += self.received_calls
            counters.calls += self.received_calls
            self.credits.taken += self.received_calls
            self.received_calls = 0
        if self.answered_calls:
            counters.replies += self.answered_calls
            counters.inline_replies += self.answered_calls
            counters.direct_calls += self.answered_calls
            self.answered_calls = 0
        if self.reads:
            counters.reads += self.reads
            counters.read_bytes += self.read_octets
            self.reads = self.read_octets = 0
        if self.invalidations:
            counters.invalidations += self.invalidations
            self.invalidations = 0
        if self.writes:
            counters.writes += self.writes
            counters.write_bytes += self.write_octets
            self.writes = self.write_octets = 0
        return 0

    cdef bint crowded(self) noexcept:
        """Whether a peer takes no replies: it loses its Receives (:meth:`~rpcrdma.engine.credits.Credits.wanted`)."""
        return self.credits.outstanding + self.credits.unsent >= self.credits.unfinished_limit

    cdef long grant(self) noexcept:
        """:meth:`rpcrdma.engine.credits.Credits.grant` for a call that takes no Receive; 0: the responder's to say."""
        cdef Credits credits = self.credits
        cdef long covered = credits.posted - credits.backward + credits.outstanding - self.spare
        if self.crowded():
            return 0
        return min(credits.limit, covered) if covered > 0 else 0

    cdef bint answer(self, Lease message, size_t size) except -1:
        """Answer one message, or leave it alone."""
        cdef DirectReply reply = self.reply
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef const uint8_t *chunk = NULL
        cdef size_t payload = SMALLEST_HEADER, header = SMALLEST_HEADER, segments = 0, index, length
        cdef uint32_t xid
        cdef long grant
        if size < SMALLEST_HEADER or load32(octets + 4) != VERSION_ONE or load32(octets + 12) != 0:
            return self.leave(octets, size, LONG_CALL if size >= 16 and load32(octets + 12) == NOMSG else SHAPE)
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
                return self.leave(octets, size, CHUNKS)
            reply.capacity = 0
            for index in range(segments):
                length = load32(chunk + 16 * index + 4)
                if length == 0:
                    return False
                reply.capacity += length
            if load64(chunk + 16 * segments) != 0:
                return self.leave(octets, size, REPLY_CHUNK if load32(chunk + 16 * segments) == 0 else CHUNKS)
        elif load64(octets + 20) != 0:
            return self.leave(octets, size, REPLY_CHUNK if load32(octets + 20) == 0 else CHUNKS)
        if size < payload + 8 or load32(octets + payload) != xid or header >= self.threshold:
            return False
        grant = self.grant()
        if grant <= 0:
            return self.leave(octets, size, CREDITS)
        try:
            if not self.write_reply(octets + payload, size - payload, header):
                return False
        except BaseException:
            message.release()
            raise
        self.received_calls += 1
        self.credits.asked = load32(octets + 8)
        self.endpoint.repost(message)
        if segments:
            return self.send(xid, grant, chunk, segments, self.invalidate, load32(chunk))
        return self.send(xid, grant, NULL, 0, False, 0)

    cdef bint leave(self, const uint8_t *octets, size_t size, int reason) noexcept:
        """Leave a message to the responder, and count that. Returns False."""
        cdef size_t at = call_at(octets, size)
        self.direct.decline(octets + at if at else NULL, size - at, reason)
        return False

    cdef bint write_reply(self, const uint8_t *call, size_t size, size_t header) except -1:
        """Have the call answered in ``reply``, behind so many octets for the transport header. False: declined."""
        cdef DirectReply reply = self.reply
        try:
            reply.head = reply.account.lease(self.threshold)
        except OutOfMemory:
            self.direct.decline(call, size, MEMORY)
            return False
        reply.at = <uint8_t *>reply.head.address + header
        reply.end = <uint8_t *>reply.head.address + self.threshold
        reply.payload_length = 0
        try:
            if self.direct.answer(call, size, reply):
                return True
        except BaseException:
            reply.drop()
            raise
        reply.drop()
        return False

    cdef bint send(
        self, uint32_t xid, long grant, const uint8_t *chunk, size_t segments, bint invalidates, uint32_t handle
    ) except -1:
        """Post the reply that stands in ``reply``, its payload in the Write chunk if there is one. Returns True."""
        cdef DirectReply reply = self.reply
        cdef Target targets[SEGMENTS]
        cdef size_t index, length, count = 0, left = reply.payload_length
        cdef uint8_t *at = <uint8_t *>reply.head.address
        cdef Written *written
        cdef Lease head, payload
        cdef Pipe pipe
        at = store64(at, (<uint64_t>xid << 32) | VERSION_ONE)
        at = store32(store64(at, <uint64_t>grant << 32), 0)
        if segments:
            at = store32(store32(at, 1), <uint32_t>segments)
            for index in range(segments):
                length = min(<size_t>load32(chunk + 16 * index + 4), left)
                left -= length
                memcpy(at, chunk + 16 * index, 16)
                store32(at + 4, <uint32_t>length)
                at += 16
                if length:
                    targets[count].handle = load32(chunk + 16 * index)
                    targets[count].offset = load64(chunk + 16 * index + 8)
                    targets[count].length = length
                    count += 1
        store64(at, 0)
        if count:
            written = &self.written[self.latest]
            self.latest = (self.latest + 1) % REMEMBERED
            written.xid, written.count = xid, <uint32_t>count
            for index in range(count):
                written.handles[index] = targets[index].handle
            self.writes += count
            self.write_octets += reply.payload_length
        else:
            reply.forget_payload()
        self.answered_calls += 1
        self.invalidations += invalidates
        self.credits.unsent += 1
        length = reply.at - <uint8_t *>reply.head.address
        head, payload, reply.head, reply.payload = reply.head, reply.payload, None, None
        if reply.pipe is not None:
            pipe, reply.pipe = reply.pipe, None
            self.endpoint.post_pages(targets, count, pipe, head, length, invalidates, handle)
        else:
            self.endpoint.post_reply(targets, count, payload, head, length, invalidates, handle)
        return True

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
        if not self.fetches or self.crowded():
            return self.leave(octets, size, CREDITS if self.fetches else MEMORY)
        while at + 4 <= size and load32(octets + at) == 1:
            if count == SEGMENTS or at + READ_SEGMENT + 4 > size or load32(octets + at + 4) != load32(octets + 20):
                return self.leave(octets, size, CHUNKS)
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
            return self.leave(octets, size, CHUNKS if at + 20 > size or load32(octets + at + 4) else REPLY_CHUNK)
        at += 12
        if position == 0 or position & 3 or position > size - at:
            return self.leave(octets, size, CHUNKS)
        if load32(octets + at) != load32(octets) or load32(octets + at + 4) != 0:
            return False
        if size & 3:
            return False  # so is the position: an error, for the responder to say (RFC 8166 section 3.4.5)
        if length > self.most or SMALLEST_HEADER >= self.threshold:
            return self.leave(octets, size, SIZE)
        try:
            receive = self.receive_account.lease(self.receive_buffer)
        except OutOfMemory:
            return self.leave(octets, size, MEMORY)
        try:
            sink = self.reply.account.lease(length)
        except OutOfMemory:
            # The responder waits for some, and who comes later waits behind it.
            self.fetches = False
            receive.release()
            return self.leave(octets, size, MEMORY)
        call = Fetch.__new__(Fetch)
        call.message, call.size, call.offset = message, size, at
        call.sink, call.length = sink, length
        self.received_calls += 1
        self.credits.asked = load32(octets + 8)
        self.reads += count
        self.read_octets += length
        self.credits.outstanding += 1
        self.endpoint.repost(receive)
        self.endpoint.post_fetch(sources, count, call)
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
        cdef DirectReply reply = self.reply
        cdef const uint8_t *octets = <const uint8_t *>call.message.address
        cdef uint32_t xid = load32(octets), handle = load32(octets + 24)
        cdef long grant = self.credits.grant()
        cdef bint answered
        if grant <= 0:
            return False
        reply.reduced = False
        reply.bulk, reply.bulk_size = <const uint8_t *>call.sink.address, call.length
        reply.bulk_at = octets + call.offset + load32(octets + 20)
        try:
            answered = self.write_reply(octets + call.offset, call.size - call.offset, SMALLEST_HEADER)
        finally:
            reply.bulk, reply.bulk_size, reply.bulk_at = NULL, 0, NULL
        if not answered:
            return False
        self.credits.outstanding -= 1
        self.send(xid, grant, NULL, 0, self.invalidate, handle)
        call.message.release()
        call.sink.release()
        call.message = call.sink = None
        return True

    def refused_call(self, handle):
        cdef size_t back, index
        cdef Written *written
        if handle is None:
            return None
        for back in range(1, REMEMBERED + 1):
            written = &self.written[(self.latest + REMEMBERED - back) % REMEMBERED]
            for index in range(written.count):
                if written.handles[index] == <uint32_t>handle:
                    return written.xid
        return None
