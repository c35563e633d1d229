# distutils: extra_compile_args = -O2
"""Replies that native code writes and posts (RFC 8166 section 4; C declarations: ``replies.pxd``).

Owns :class:`NativeReply`, where one reply is written, and :class:`Replies`, which has each call answered there and posts
what stands there. Imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.pipes`, :mod:`rpcrdma.place`, :mod:`rpcrdma.wire` and the
vocabulary of :mod:`rpcrdma.verbs`.

A reply's parts go where :mod:`rpcrdma.engine.reduce` has them go. One payload is written natively, so it is the first
DDP-eligible result: it goes into the first Write chunk unless that has no segments (RFC 8267 section 6.4.1). The rest
goes inline when it fits, though a Reply chunk be offered (RFC 8166 section 4.3.3), else into the Reply chunk. Which of
the two is known only at the end: until then a payload that may be too large stands *beside* the head, in a buffer of its
own with its padding, and the head says where it belongs.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from rpcrdma.declined cimport CHUNKS, MEMORY, SIZE
from rpcrdma.engine.credits cimport Credits
from rpcrdma.memory cimport Account, Lease
from rpcrdma.octets cimport padded
from rpcrdma.pipes cimport Pipe, worth
from rpcrdma.place cimport DECLINED, LONG_WHOLE, Answerer, Place, aside_t, load32, load64, span_t
from rpcrdma.verbs.native cimport NativeEndpoint, Target
from rpcrdma.wire.chunk_lists cimport SEGMENT_SIZE
from rpcrdma.wire.rdma cimport RDMA_MSG, RDMA_NOMSG
from rpcrdma.wire.transport_header cimport (
    header_t,
    invalidates,
    reply_header_size,
    reply_segments,
    store_reply_header,
    write_segments,
)

from rpcrdma.memory import OutOfMemory


cdef size_t capacity_of(const uint8_t *segments, size_t count) noexcept nogil:
    """Octets that a chunk has room for."""
    cdef size_t index, sum = 0
    for index in range(count):
        sum += load32(segments + SEGMENT_SIZE * index + 4)
    return sum


cdef int open_chunk(Filling *filling, const uint8_t *segments, size_t count) noexcept nogil:
    """What comes next goes into this chunk."""
    filling.segment = segments
    filling.segments_end = segments + SEGMENT_SIZE * count
    filling.room = 0
    return 0


cdef int fill(Filling *filling, const uint8_t *source, size_t length) noexcept nogil:
    """Put ``length`` octets behind what is in the chunk already, for which there is room. NULL: they come from a pipe."""
    cdef Target *target
    cdef size_t there
    while length:
        while filling.room == 0:
            if filling.segment == filling.segments_end:
                return 0
            filling.room = load32(filling.segment + 4)
            filling.offset = load64(filling.segment + 8)
            if filling.room:
                filling.handles[filling.handle_count] = load32(filling.segment)
                filling.handle_count += 1
            filling.segment += SEGMENT_SIZE
        there = min(length, filling.room)
        target = &filling.targets[filling.count]
        filling.count += 1
        target.handle = filling.handles[filling.handle_count - 1]
        target.offset = filling.offset
        target.length = there
        target.source = source
        filling.offset += there
        filling.room -= there
        length -= there
        if source != NULL:
            source += there
    return 0


cdef class NativeReply(Place):
    """A reply's head in a send buffer, and its payload in a buffer of its own if it goes to a Write chunk, or may go to
    the Reply chunk."""

    cdef int begin(self, size_t header, size_t threshold) except -1:
        """A reply is written into ``head``, behind so many octets for the transport header."""
        self.start = self.at = <uint8_t *>self.head.address + header
        self.limit = self.end = <uint8_t *>self.head.address + threshold
        self.split = NULL
        self.payload_length = self.behind = 0
        self.wants = False
        return 0

    cdef bint protect(self, size_t behind) except -1:
        """Nothing of the reply is placed by itself (RFC 8166 section 3.4.1)."""
        if <size_t>(self.limit - self.at) <= behind:
            return False
        self.reduced, self.behind = False, behind
        self.limit -= behind
        self.end = self.limit
        self.long_capacity -= min(self.long_capacity, behind)
        return True

    cdef int spans(self, uint8_t *begin, span_t *spans) except -1:
        cdef size_t length = self.payload_length
        self.limit += self.behind
        self.behind = 0
        spans[0].at, spans[0].length = begin, self.at - begin
        if self.split == NULL:
            return 1
        spans[0].length = self.split - begin
        spans[1].at, spans[1].length = <uint8_t *>self.payload.address, padded(length)
        memset(spans[1].at + length, 0, padded(length) - length)
        spans[2].at, spans[2].length = self.split, self.at - self.split
        self.payload_length = padded(length)
        return 3

    cdef bint long_payload(self) except -1:
        return self.kept and self.split != NULL and self.payload_length > LONG_WHOLE

    cdef Lease put_by(self, aside_t *aside):
        cdef Lease payload = self.payload
        self.payload = None
        aside.size, aside.payload_at, aside.payload_length = self.at - self.start, self.split - self.start, self.payload_length
        self.split = NULL
        return payload

    cdef int bring_back(self, Lease payload, const aside_t *aside) except -1:
        self.at, self.split = self.start + aside.size, self.start + aside.payload_at
        self.payload, self.payload_length = payload, aside.payload_length
        return 0

    cdef bint fits_inline(self, size_t length) noexcept:
        """Whether a payload of so many octets stands in the head. None does behind one that stands beside it."""
        return not self.reduced and self.split == NULL and length + 4 <= <size_t>(self.end - self.at)

    cdef bint fits_beside(self, size_t length) noexcept:
        """Whether a payload of so many octets may stand beside the head: the Reply chunk has room for both."""
        if self.payload is not None or self.pipe is not None or length > self.long_capacity:
            return False
        if (self.at - self.start) + padded(length) > self.long_capacity:
            return False
        if self.behind and length > LONG_WHOLE and not self.kept:
            self.wants = True
            return False
        return True

    cdef int set_beside(self, Lease payload, size_t room) except -1:
        """A payload of up to so many octets belongs here. What follows must leave room for it in the Reply chunk."""
        self.payload = payload
        self.split = self.at
        self.end = self.start + min(<size_t>(self.end - self.start), self.long_capacity - padded(room))
        return 0

    cdef uint8_t *data(self, size_t room) except? NULL:
        cdef Lease payload
        if self.fits_inline(room):
            return self.at
        if self.payload is not None or self.pipe is not None or room > self.capacity if self.reduced else (
            not self.fits_beside(room)
        ):
            return NULL
        try:
            payload = self.account.lease(room if self.reduced else padded(room))
        except OutOfMemory:
            return NULL
        if self.reduced:
            self.payload = payload
        else:
            self.set_beside(payload, room)
        return <uint8_t *>payload.address

    cdef bint takes_pages(self, uint64_t offset, size_t count) except -1:
        if not self.reduced or self.payload is not None or self.pipe is not None or count > self.capacity:
            return False
        return worth(offset, count) and self.endpoint.takes_pages()

    cdef bint take_pages(self, Pipe pipe, size_t length) except -1:
        if self.reduced and self.payload is None and self.pipe is None and length <= self.capacity:
            if self.endpoint.takes_pages():  # which may have begun to be shown to somebody
                self.pipe, self.payload_length = pipe, length
                return True
        pipe.release()
        return False

    cdef ssize_t pages(self, int fd, uint64_t offset, size_t count) except -2:
        cdef ssize_t got
        self.pipe = self.vessel(offset, count)
        if self.pipe is None:
            return -1
        got = self.pipe.fill(fd, offset, count)
        if got < 0:
            self.forget_pipe()
        return got

    cdef int forget_payload(self) except -1:
        self.payload_length = 0
        self.split = NULL
        self.end = self.limit
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

    cdef bint reduces(self) noexcept:
        return self.reduced

    cdef int data_done(self, size_t length) except -1:
        if self.split != NULL and length == 0:
            # What was to hold it must not be taken for that of the next one, which may find its room elsewhere.
            return self.forget_payload()
        if self.reduced or self.split != NULL:
            self.payload_length = length
            return 0
        self.at += length
        while length & 3:
            self.at[0] = 0
            self.at += 1
            length += 1
        return 0

    cdef Lease sink(self, size_t room):
        if self.reduced:
            if room > self.capacity:
                return None
        elif room + 4 > <size_t>(self.end - self.at) and not self.fits_beside(room):
            return None
        try:
            return self.account.lease(room if self.reduced else padded(room))
        except OutOfMemory:
            return None

    cdef bint take(self, Lease payload, size_t length) except -1:
        cdef bint first = self.payload is None and self.pipe is None
        if self.reduced and first:
            self.payload, self.payload_length = payload, length
            return True
        if self.fits_inline(length):
            memcpy(self.at, <const uint8_t *>payload.address, length)
            payload.release()
            return self.data_done(length) == 0
        if not self.reduced and self.fits_beside(length):
            self.set_beside(payload, length)
            self.payload_length = length
            return True
        payload.release()  # behind an item of no octets, whose the chunk is is for the responder to say
        return False

    cdef int fold(self) except -1:
        """Put the payload that stands beside the head into it, where there is room for it."""
        cdef size_t length = self.payload_length
        memmove(self.split + padded(length), self.split, self.at - self.split)
        memcpy(self.split, <const uint8_t *>self.payload.address, length)
        memset(self.split + length, 0, padded(length) - length)
        self.at += padded(length)
        return self.forget_payload()

    cdef int drop(self) except -1:
        if self.head is not None:
            self.head.release()
            self.head = None
        return self.forget_payload()


cdef class Replies:
    def __init__(
        self, ResponderState responder not None, NativeEndpoint endpoint not None, Answerer native not None,
        Account account not None,
    ):
        self.responder = responder
        self.credits = responder.credits
        self.counters = responder.counters
        self.endpoint = endpoint
        self.native = native
        self.reply = NativeReply.__new__(NativeReply)
        self.reply.account = account
        self.reply.endpoint = endpoint

    cdef bint learn(self) except -1:
        """Find out what holds for the connection's remaining life. Whether that is settled."""
        versions = self.responder.versions
        if versions.settled is None:
            return False
        properties = versions.properties
        self.threshold = properties.send_threshold
        self.invalidate = properties.remote_invalidation
        self.version = versions.settled
        return True

    cdef bint leave(self, const uint8_t *octets, size_t size, const header_t *header, int reason) noexcept:
        """Leave a message to the responder, and count that; NULL: it is not known which call it is. Returns False."""
        if header == NULL or header.procedure != RDMA_MSG:
            self.native.decline(NULL, 0, reason)
        else:
            self.native.decline(octets + header.payload, size - header.payload, reason)
        return False

    cdef int prepare(self, const uint8_t *octets, const header_t *header) except -2:
        """See where the parts of a call's reply may go. -1: it may be answered; else why it is left to the responder."""
        cdef NativeReply reply = self.reply
        if header.write_size + header.reply_size > SEGMENTS or (header.write_size == 0 and header.write_count > 1):
            return CHUNKS  # in the latter case, a second result would have a chunk of its own
        if reply_header_size(header) >= self.threshold:
            return SIZE
        reply.reduced = header.write_size != 0
        reply.capacity = capacity_of(octets + write_segments(header), header.write_size)
        reply.long_capacity = capacity_of(octets + reply_segments(header), header.reply_size)
        return -1

    cdef int write(self, const uint8_t *call, size_t size, const header_t *header) except -1:
        """Have the call answered in ``reply``, for which it has been prepared. WAITS: the head's memory stays there."""
        cdef NativeReply reply = self.reply
        cdef int outcome
        try:
            reply.head = reply.account.lease(self.threshold)
        except OutOfMemory:
            self.native.decline(call, size, MEMORY)
            return DECLINED
        reply.begin(reply_header_size(header), self.threshold)
        try:
            outcome = self.native.answer(call, size, reply)
        except BaseException:
            reply.drop()
            raise
        if outcome == DECLINED:
            reply.drop()
        return outcome

    cdef bint send(self, const uint8_t *octets, const header_t *header, long grant, Lease receive) except -1:
        """Post the reply that stands in ``reply`` to the call whose header this is; and before it ``receive``, if there is
        one: the call's own, which may be overwritten from then on. Returns True."""
        cdef NativeReply reply = self.reply
        cdef Filling filling
        cdef size_t in_write = 0, in_reply = 0, length, beside
        cdef uint32_t handle = 0
        cdef bint invalidating = self.invalidate and invalidates(octets, header, &handle)
        cdef uint8_t *at = <uint8_t *>reply.head.address
        cdef const uint8_t *content
        cdef Lease head, payload
        cdef Pipe pipe
        filling.count = filling.handle_count = 0
        if reply.split != NULL:
            beside = padded(reply.payload_length)
            if beside <= <size_t>(reply.limit - reply.at):
                reply.fold()
            else:
                at = <uint8_t *>reply.payload.address
                memset(at + reply.payload_length, 0, beside - reply.payload_length)
                in_reply = (reply.at - reply.start) + beside
                open_chunk(&filling, octets + reply_segments(header), header.reply_size)
                fill(&filling, reply.start, reply.split - reply.start)
                fill(&filling, at, beside)
                fill(&filling, reply.split, reply.at - reply.split)
        elif reply.payload_length:
            in_write = reply.payload_length
            open_chunk(&filling, octets + write_segments(header), header.write_size)
            content = <const uint8_t *>NULL if reply.payload is None else <const uint8_t *>reply.payload.address
            fill(&filling, content, in_write)
        at = store_reply_header(
            <uint8_t *>reply.head.address, octets, header, <uint32_t>grant, RDMA_NOMSG if in_reply else RDMA_MSG, &in_write,
            1, in_reply,
        )
        length = (at if in_reply else reply.at) - <uint8_t *>reply.head.address
        if filling.count:
            self.remember(header.xid, &filling)
            self.writes += filling.count
            self.write_octets += in_write + in_reply
        else:
            reply.forget_payload()
        self.answered_calls += 1
        self.long_replies += in_reply != 0
        self.long_calls += header.procedure == RDMA_NOMSG
        self.invalidations += invalidating
        self.credits.unsent += 1
        head, payload, reply.head, reply.payload = reply.head, reply.payload, None, None
        reply.split = NULL
        if receive is not None:
            self.endpoint.repost(receive)
        if reply.pipe is not None:
            pipe, reply.pipe = reply.pipe, None
            self.endpoint.post_pages(filling.targets, filling.count, pipe, head, length, invalidating, handle)
        else:
            self.endpoint.post_reply(filling.targets, filling.count, payload, head, length, invalidating, handle)
        return True

    cdef int remember(self, uint32_t xid, const Filling *filling) except -1:
        """Whose memory is written to, in case the peer refuses it (section 4.5.3)."""
        cdef Written *written = &self.written[self.latest]
        self.latest = (self.latest + 1) % REMEMBERED
        written.xid, written.count = xid, <uint32_t>filling.handle_count
        memcpy(written.handles, filling.handles, filling.handle_count * sizeof(uint32_t))
        return 0

    cdef int count(self) except -1:
        cdef Counters counters = self.counters
        if self.received_calls:
            self.responder.received_messages += self.received_calls
            counters.receives += self.received_calls
            counters.calls += self.received_calls
            self.credits.taken += self.received_calls
            self.received_calls = 0
        if self.answered_calls:
            counters.replies += self.answered_calls
            counters.inline_replies += self.answered_calls - self.long_replies
            counters.long_replies += self.long_replies
            counters.long_calls += self.long_calls
            counters.native_calls += self.answered_calls
            self.answered_calls = self.long_replies = self.long_calls = 0
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
