"""Replies that native code writes and posts (RFC 8166 section 4; C declarations: ``replies.pxd``).

Owns :class:`DirectReply`, where one reply is written, and :class:`Replies`, which has each call answered there and posts
what stands there. Imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.pipes`, :mod:`rpcrdma.place` and the vocabulary of
:mod:`rpcrdma.verbs`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from rpcrdma.declined cimport MEMORY
from rpcrdma.engine.credits cimport Credits
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pipes cimport Pipe, take_pipe, worth
from rpcrdma.place cimport DECLINED, Answerer, Place, load32, load64, store32, store64
from rpcrdma.verbs.native cimport NativeEndpoint, Target
from rpcrdma.wire.places cimport call_at
from rpcrdma.wire.rdma1 cimport VERSION

from rpcrdma.memory import OutOfMemory


cdef class DirectReply(Place):
    """A reply's head in a send buffer, and its payload in a buffer of its own if it goes to a Write chunk."""

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

    cdef Lease sink(self, size_t room):
        if room > self.capacity if self.reduced else room + 4 > <size_t>(self.end - self.at):
            return None
        try:
            return self.account.lease(room)
        except OutOfMemory:
            return None

    cdef bint take(self, Lease payload, size_t length) except -1:
        cdef bint first = self.payload is None and self.pipe is None
        if not (first if self.reduced else length + 4 <= <size_t>(self.end - self.at)):
            payload.release()  # behind an item of no octets, whose the chunk is is for the responder to say
            return False
        if self.reduced:
            self.payload, self.payload_length = payload, length
            return True
        memcpy(self.at, <const uint8_t *>payload.address, length)
        payload.release()
        return self.data_done(length) == 0

    cdef int drop(self) except -1:
        if self.head is not None:
            self.head.release()
            self.head = None
        return self.forget_payload()


cdef class Replies:
    def __init__(self, responder, NativeEndpoint endpoint not None, Answerer direct not None, Account account not None):
        self.responder = responder
        self.credits = responder.credits
        self.counters = responder.counters
        self.endpoint = endpoint
        self.direct = direct
        self.reply = DirectReply.__new__(DirectReply)
        self.reply.account = account
        self.reply.endpoint = endpoint

    cdef int begin(self) except -1:
        """Find out what holds until the next batch."""
        properties = self.responder.versions.properties
        self.threshold = properties.send_threshold
        self.invalidate = properties.remote_invalidation
        return 0

    cdef bint leave(self, const uint8_t *octets, size_t size, int reason) noexcept:
        """Leave a message to the responder, and count that. Returns False."""
        cdef size_t at = call_at(octets, size)
        self.direct.decline(octets + at if at else NULL, size - at, reason)
        return False

    cdef int write(self, const uint8_t *call, size_t size, size_t header) except -1:
        """Have the call answered in ``reply``, behind so many octets for the transport header. WAITS: the head's memory
        stays there."""
        cdef DirectReply reply = self.reply
        cdef int outcome
        try:
            reply.head = reply.account.lease(self.threshold)
        except OutOfMemory:
            self.direct.decline(call, size, MEMORY)
            return DECLINED
        reply.at = <uint8_t *>reply.head.address + header
        reply.end = <uint8_t *>reply.head.address + self.threshold
        reply.payload_length = 0
        try:
            outcome = self.direct.answer(call, size, reply)
        except BaseException:
            reply.drop()
            raise
        if outcome == DECLINED:
            reply.drop()
        return outcome

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
        at = store64(at, (<uint64_t>xid << 32) | VERSION)
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

    cdef object refused_call(self, handle):
        """The XID of the answered call whose memory this handle named, if it was one of the latest."""
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
