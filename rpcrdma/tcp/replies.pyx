"""Where the replies of direct calls are written on their way into a record stream.

Owns :class:`DirectReplies`; imports :mod:`rpcrdma.memory` and :mod:`rpcrdma.place`. Small replies stand one behind the other
in a buffer that leaves as it is; a payload too large for that has a buffer of its own.
"""

from libc.stdint cimport uint8_t

from rpcrdma.memory cimport Account, Lease
from rpcrdma.place cimport Place

from rpcrdma.memory import OutOfMemory

cdef enum:
    REPLIES = 65536         # octets of a buffer that replies are gathered in
    LEAST_ROOM = 4096       # octets of it that a reply must find to be begun there
    LARGEST_LEASE = 4 << 20


cdef class DirectReplies(Place):
    """The buffer in which the replies of direct calls are gathered; beside it one large payload of the present reply."""

    cdef bint begin(self) except -1:
        """Begin a reply. False: no memory."""
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
        return True

    cdef int cancel(self) except -1:
        """There is no reply after all."""
        self.at = self.start
        if self.payload is not None:
            self.payload.release()
            self.payload = None
        return 0

    cdef uint8_t *data(self, size_t room) except? NULL:
        """Room for one payload; NULL when there is none."""
        if room + 4 <= <size_t>(self.end - self.at):
            return self.at
        if self.payload is not None or room > LARGEST_LEASE:
            return NULL
        try:
            self.payload = self.account.lease(room)
        except OutOfMemory:
            return NULL
        return <uint8_t *>self.payload.address

    cdef int data_done(self, size_t length) except -1:
        """The payload is there; its padding is added."""
        if self.payload is None:
            self.at += length
            while length & 3:
                self.at[0] = 0
                self.at += 1
                length += 1
        else:
            self.payload_at = self.at - self.start
            self.payload_length = length
        return 0

    cdef int drop(self) except -1:
        cdef Lease lease = self.lease
        if lease is not None:
            self.lease = None
            self.at = self.end = self.start = NULL
            lease.release()
        return 0
