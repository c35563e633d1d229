# distutils: extra_compile_args = -O2
"""Where the replies of native calls are written on their way into a record stream.

Owns :class:`NativeReplies`; imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.place` and :mod:`rpcrdma.pipes`. Small replies stand one behind the other
in a buffer that leaves as it is; a payload too large for that has a buffer of its own, or stays in the pages of its file.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memset

from rpcrdma.memory cimport Account, Lease
from rpcrdma.octets cimport padded
from rpcrdma.place cimport LONG_WHOLE, Place, aside_t, span_t
from rpcrdma.pipes cimport Pipe, worth

from rpcrdma.memory import OutOfMemory

cdef enum:
    REPLIES = 65536         # octets of a buffer that replies are gathered in
    LEAST_ROOM = 4096       # octets of it that a reply must find to be begun there
    LARGEST_LEASE = 4 << 20


cdef class NativeReplies(Place):
    """The buffer in which the replies of native calls are gathered; beside it one large payload of the present reply."""

    cdef bint begin(self) except -1:
        """Begin a reply. False: no memory."""
        if self.whole:
            self.whole, self.end = False, <uint8_t *>self.lease.address + self.lease.capacity
        if self.lease is None or <size_t>(self.end - self.at) < LEAST_ROOM:
            self.drop()
            try:
                self.lease = self.account.lease(REPLIES)
            except OutOfMemory:
                return False
            self.at = <uint8_t *>self.lease.address
            self.end = self.at + self.lease.capacity
        self.start = self.at
        self.at += 4
        self.wants = False
        return True

    cdef int cancel(self) except -1:
        """There is no reply after all."""
        self.at = self.start
        return self.forget_payload()

    cdef int forget_payload(self) except -1:
        """Let go of the payload, or of what was to become it."""
        if self.payload is not None:
            self.payload.release()
            self.payload = None
        if self.pipe is not None:
            self.pipe.release()
            self.pipe = None
        return 0

    cdef bint takes_pages(self, uint64_t offset, size_t count) except -1:
        return not (self.shown or self.whole) and self.payload is None and self.pipe is None and worth(offset, count)

    cdef bint take_pages(self, Pipe pipe, size_t length) except -1:
        self.forget_payload()
        if length == 0 or self.shown or self.whole:
            pipe.release()
            return length == 0
        self.pipe = pipe
        self.payload_at = self.at - self.start
        self.payload_length = length
        return True

    cdef ssize_t pages(self, int fd, uint64_t offset, size_t count) except -2:
        """A payload out of a file that is in memory, without a copy."""
        cdef ssize_t got
        self.pipe = self.vessel(offset, count)
        if self.pipe is None:
            return -1
        got = self.pipe.fill(fd, offset, count)
        if got < 0:
            self.forget_payload()
        return got

    cdef uint8_t *data(self, size_t room) except? NULL:
        """Room for one payload; NULL when there is none."""
        if not self.may_have(room):
            return NULL
        if room + 4 <= <size_t>(self.end - self.at) and not (self.whole and room > LONG_WHOLE):
            return self.at
        if self.payload is not None or self.pipe is not None:
            return NULL
        try:
            self.payload = self.account.lease(padded(room))
        except OutOfMemory:
            return NULL
        return <uint8_t *>self.payload.address

    cdef Lease sink(self, size_t room):
        if not self.may_have(room):
            return None
        try:
            return self.account.lease(padded(room))
        except OutOfMemory:
            return None

    cdef bint take(self, Lease payload, size_t length) except -1:
        self.forget_payload()
        if length == 0:
            payload.release()
            return True
        self.payload = payload
        self.payload_at = self.at - self.start
        self.payload_length = length
        return True

    cdef int data_done(self, size_t length) except -1:
        """The payload is there; its padding is added."""
        if length == 0:
            # What was to hold it must not be taken for that of the next one, which may find its room elsewhere.
            return self.forget_payload()
        if self.payload is None and self.pipe is None:
            self.at += length
            while length & 3:
                self.at[0] = 0
                self.at += 1
                length += 1
        else:
            self.payload_at = self.at - self.start
            self.payload_length = length
        return 0

    cdef bint may_have(self, size_t room) noexcept:
        """Whether a payload may be so long."""
        if self.whole and room > LONG_WHOLE and not self.kept:
            self.wants = True
            return False
        return room <= LARGEST_LEASE

    cdef bint protect(self, size_t behind) except -1:
        if <size_t>(self.end - self.at) <= behind:
            return False
        self.whole = True
        self.end -= behind
        return True

    cdef int spans(self, uint8_t *begin, span_t *spans) except -1:
        cdef size_t length = self.payload_length
        spans[0].at, spans[0].length = begin, self.at - begin
        if self.payload is None:
            return 1
        spans[0].length = self.start + self.payload_at - begin
        spans[1].at, spans[1].length = <uint8_t *>self.payload.address, padded(length)
        memset(spans[1].at + length, 0, padded(length) - length)
        spans[2].at, spans[2].length = self.start + self.payload_at, self.at - self.start - self.payload_at
        self.payload_length = padded(length)
        return 3

    cdef bint long_payload(self) except -1:
        return self.kept and self.payload is not None and self.payload_length > LONG_WHOLE

    cdef Lease put_by(self, aside_t *aside):
        cdef Lease payload = self.payload
        self.payload = None
        aside.size, aside.payload_at, aside.payload_length = self.at - self.start, self.payload_at, self.payload_length
        return payload

    cdef int bring_back(self, Lease payload, const aside_t *aside) except -1:
        self.at = self.start + aside.size
        self.payload, self.payload_at, self.payload_length = payload, aside.payload_at, aside.payload_length
        return 0

    cdef int drop(self) except -1:
        cdef Lease lease = self.lease
        self.whole = False
        if lease is not None:
            self.lease = None
            self.at = self.end = self.start = NULL
            lease.release()
        return 0
