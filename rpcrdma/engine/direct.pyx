"""Direct calls over RPC-over-RDMA version One: short messages answered in the stack in which they arrive.

Owns :class:`DirectResponder`, which stands before a connection's :class:`~rpcrdma.engine.responder.Responder` and
shares its credits, counters and thresholds. Imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.place` and the vocabulary of
:mod:`rpcrdma.verbs`.

A message is taken up here if it is an RDMA_MSG without Read list and Reply chunk, with at most one Write chunk, in the
version that the connection has settled on (RFC 8166 section 4.2); everything else, and every call that is declined, is
the responder's. What is sent is what the responder would send: the DDP-eligible result in the Write chunk (RFC 8267
section 6.4.1), the rest inline, chunks returned with the lengths written (RFC 8166 section 4.3.2), Send-with-Invalidate
of the chunk's first handle where both sides can (RFC 8797 section 4.1).

Credits. A call answered here never counts as outstanding: its Receive is posted again, the very same buffer, before its
reply is posted.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from rpcrdma.memory cimport Account, Lease
from rpcrdma.place cimport Answerer, Place, load32, load64, store32, store64
from rpcrdma.verbs.native cimport NativeEndpoint, Target

from rpcrdma.memory import OutOfMemory

cdef enum:
    SEGMENTS = 16
    REMEMBERED = 64
    VERSION_ONE = 1
    SMALLEST_HEADER = 28
    CHUNK_LISTS = 12        # what ends Read list, Write list and Reply chunk


cdef struct Written:
    uint32_t xid
    uint32_t count
    uint32_t handles[SEGMENTS]


cdef class DirectReply(Place):
    """A reply's head in a send buffer, and its payload in a buffer of its own if it goes to a Write chunk."""

    cdef Account account
    cdef Lease head
    cdef bint reduced           # the payload goes to the Write chunk
    cdef size_t capacity        # of that chunk
    cdef Lease payload
    cdef size_t payload_length

    cdef uint8_t *data(self, size_t room) except? NULL:
        if not self.reduced:
            return self.at if room + 4 <= <size_t>(self.end - self.at) else NULL
        if self.payload is not None or room > self.capacity:
            return NULL
        try:
            self.payload = self.account.lease(room)
        except OutOfMemory:
            return NULL
        return <uint8_t *>self.payload.address

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
        if self.payload is not None:
            self.payload.release()
            self.payload = None
        return 0


cdef class DirectResponder:
    cdef object responder
    cdef object credits
    cdef object counters
    cdef NativeEndpoint endpoint
    cdef Answerer direct
    cdef DirectReply reply
    # What holds for this batch.
    cdef size_t threshold
    cdef bint invalidate
    cdef long spare             # what a grant may not count on: messages of the batch that may be no calls
    # Added to the counters at its end.
    cdef long answered
    cdef long invalidations
    cdef long writes
    cdef long write_octets
    # The calls that were written to last.
    cdef Written written[REMEMBERED]
    cdef size_t latest

    def __init__(self, responder, NativeEndpoint endpoint not None, Answerer direct not None, Account account not None):
        self.responder = responder
        self.credits = responder.credits
        self.counters = responder.counters
        self.endpoint = endpoint
        self.direct = direct
        self.reply = DirectReply.__new__(DirectReply)
        self.reply.account = account

    def received(self, messages):
        cdef list rest = []
        cdef Lease lease
        if not self.responder.answers_directly:
            return messages
        properties = self.responder.versions.properties
        self.threshold = properties.send_threshold
        self.invalidate = properties.remote_invalidation
        self.spare = 0
        try:
            for message in messages:
                lease = message[0]
                if not self.answer(lease, message[1]):
                    self.spare += 1
                    rest.append(message)
        finally:
            self.direct.pause()
            self.count()
        return rest

    def execute(self, call):
        cdef const uint8_t[::1] octets
        cdef const uint8_t[::1] bulk
        cdef DirectReply reply = self.reply
        cdef Lease head, lease
        cdef size_t length
        cdef long grant
        header = call.header
        # A peer that sends before it has seen the first reply may have calls of another version under way.
        if header.version != VERSION_ONE:
            return False
        if header.writes or header.reply is not None or len(call.chunks) != 1 or not self.responder.answers_directly:
            return False
        octets = call.data
        position, data = call.chunks[0]
        grant = self.credits.grant()
        if position != octets.shape[0] or not data or grant <= 0:
            return False
        bulk = data
        properties = self.responder.versions.properties
        try:
            reply.head = reply.account.lease(properties.send_threshold)
        except OutOfMemory:
            return False
        reply.reduced = False
        reply.at = <uint8_t *>reply.head.address + SMALLEST_HEADER
        reply.end = <uint8_t *>reply.head.address + <size_t>properties.send_threshold
        reply.bulk, reply.bulk_size = &bulk[0], bulk.shape[0]
        try:
            if not self.direct.answer(&octets[0], octets.shape[0], reply):
                reply.drop()
                return False
        except BaseException:
            reply.drop()
            raise
        finally:
            reply.bulk, reply.bulk_size = NULL, 0
            self.direct.pause()
        head, reply.head = reply.head, None
        octets = bulk = None
        call.release()
        handle = call.codec.invalidates(header) if properties.remote_invalidation else None
        store64(store64(<uint8_t *>head.address, (<uint64_t>header.xid << 32) | VERSION_ONE), <uint64_t>grant << 32)
        store64(store32(<uint8_t *>head.address + 16, 0), 0)
        counters = self.counters
        counters.direct_calls += 1
        counters.replies += 1
        counters.inline_replies += 1
        if handle is not None:
            counters.invalidations += 1
        self.credits.outstanding -= 1
        self.credits.unsent += 1
        length = reply.at - <uint8_t *>head.address
        self.endpoint.post_reply(NULL, 0, None, head, length, handle is not None, 0 if handle is None else handle)
        return True

    cdef int count(self) except -1:
        counters = self.counters
        if self.answered:
            self.responder.received_messages += self.answered
            counters.receives += self.answered
            counters.calls += self.answered
            counters.replies += self.answered
            counters.inline_replies += self.answered
            counters.direct_calls += self.answered
            self.answered = 0
        if self.invalidations:
            counters.invalidations += self.invalidations
            self.invalidations = 0
        if self.writes:
            counters.writes += self.writes
            counters.write_bytes += self.write_octets
            self.writes = self.write_octets = 0
        return 0

    cdef long grant(self):
        """:meth:`rpcrdma.engine.credits.Credits.grant` for a call that takes no Receive; 0: the responder's to say."""
        credits = self.credits
        cdef long posted = credits.posted, backward = credits.backward, outstanding = credits.outstanding
        cdef long limit = credits.limit, unsent = credits.unsent
        cdef long covered = posted - backward + outstanding - self.spare
        if outstanding + unsent >= <long>credits.unfinished_limit:
            return 0  # a peer that takes no replies loses its Receives
        return min(limit, covered) if covered > 0 else 0

    cdef bint answer(self, Lease message, size_t size) except -1:
        """Answer one message, or leave it alone."""
        cdef DirectReply reply = self.reply
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef const uint8_t *chunk = NULL
        cdef size_t payload = SMALLEST_HEADER, header = SMALLEST_HEADER, segments = 0, index, length
        cdef uint32_t xid
        cdef long grant
        if size < SMALLEST_HEADER or load32(octets + 4) != VERSION_ONE or load64(octets + 12) != 0:
            return False  # RDMA_MSG and an empty Read list are zero both
        xid = load32(octets)
        reply.reduced = load32(octets + 20) == 1
        if reply.reduced:
            if size < 28:
                return False
            segments = load32(octets + 24)
            chunk = octets + 28
            payload = header = 28 + 16 * segments + 8
            if segments == 0 or segments > SEGMENTS or size < payload:
                return False
            reply.capacity = 0
            for index in range(segments):
                length = load32(chunk + 16 * index + 4)
                if length == 0:
                    return False
                reply.capacity += length
            if load64(chunk + 16 * segments) != 0:
                return False
        elif load64(octets + 20) != 0:
            return False
        if size < payload + 8 or load32(octets + payload) != xid or header >= self.threshold:
            return False
        grant = self.grant()
        if grant <= 0:
            return False
        try:
            reply.head = reply.account.lease(self.threshold)
        except OutOfMemory:
            return False
        reply.at = <uint8_t *>reply.head.address + header
        reply.end = <uint8_t *>reply.head.address + self.threshold
        reply.payload_length = 0
        try:
            if not self.direct.answer(octets + payload, size - payload, reply):
                reply.drop()
                return False
            self.send(message, xid, chunk, segments, grant)
        except BaseException:
            reply.drop()
            raise
        return True

    cdef int send(self, Lease message, uint32_t xid, const uint8_t *chunk, size_t segments, long grant) except -1:
        """Post the reply that stands in ``reply``, and the message's buffer as a Receive again."""
        cdef DirectReply reply = self.reply
        cdef Target targets[SEGMENTS]
        cdef size_t index, length, count = 0, left = reply.payload_length
        cdef uint32_t handle = 0
        cdef uint8_t *at = <uint8_t *>reply.head.address
        cdef Lease head = reply.head, payload = reply.payload
        cdef Written *written
        cdef bint invalidates = False
        at = store32(store32(store32(store32(at, xid), VERSION_ONE), <uint32_t>grant), 0)
        at = store32(at, 0)
        if segments:
            invalidates = self.invalidate
            handle = load32(chunk)
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
        elif payload is not None:
            payload.release()
            payload = None
        self.answered += 1
        self.invalidations += invalidates
        self.credits.unsent += 1
        length = reply.at - <uint8_t *>head.address
        reply.head = reply.payload = None
        self.endpoint.repost(message)
        self.endpoint.post_reply(targets, count, payload, head, length, invalidates, handle)
        return 0

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
