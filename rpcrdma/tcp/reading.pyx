"""What a record stream has received: buffers, and what the socket puts into them.

Owns :class:`Reading`, the half of a :class:`~rpcrdma.tcp.stream.RecordStream` that takes octets from the socket; imports
:mod:`rpcrdma.memory` and TLS's records. What it does with them, and within which bounds, the stream says.
"""

from libc.errno cimport EAGAIN, errno

from rpcrdma.copying cimport copy_octets, move_octets
from rpcrdma.memory cimport Account, Lease
from rpcrdma.tcp.receiving cimport iovec, load_mark, plenty, receive_into
from rpcrdma.tls.records cimport iovec as place_t
from rpcrdma.turns cimport SLICE

import os

from rpcrdma.memory import OutOfMemory

cdef enum:
    NEXT_HEAD = 4096


class RecordError(Exception):
    """The peer broke the record format or its bounds; the connection is of no use any more."""


cdef class Reading:
    def give(self, Lease lease not None):
        """Memory of the size that ``starved`` said; the next :meth:`receive` takes it, or releases it."""
        if self.given is not None:
            self.given.release()
        self.given = lease

    @property
    def missing(self):
        """Octets of the present record that have not been received, as far as is known."""
        cdef size_t have = self.end - self.start, wanted
        if self.opening is not None:
            have += self.opening.holds()
        if self.record is not None:
            return self.fragment_left - min(self.fragment_left, have)
        if self.end - self.start < 4:
            return 4 - have if 0 < have < 4 else 0
        wanted = 4 + (load_mark(<char *>self.buffer.address + self.start) & ~<size_t>LAST_FRAGMENT)
        return wanted - min(wanted, have)

    @property
    def partial(self):
        """Whether part of a record, or of its header, has arrived."""
        return self.record is not None or self.end > self.start or (self.opening is not None and self.opening.holds() > 0)

    cdef bint more(self) noexcept:
        """Whether there is more to read that has come from the socket already."""
        return self.opening is not None and not self.starved and not self.eof and self.opening.more()

    cdef int drop_buffer(self) except -1:
        cdef Lease buffer = self.buffer
        self.buffer = None
        self.start = self.end = 0
        buffer.release()
        return 0

    cdef int drop_given(self) except -1:
        given, self.given = self.given, None
        given.release()
        return 0

    cdef Lease take(self, size_t size):
        """A buffer, or None with ``starved`` set."""
        cdef Lease given = self.given
        if given is not None and given.capacity >= size:
            self.given = None
            return given
        try:
            return self.account.lease(<Py_ssize_t>size)
        except OutOfMemory:
            self.starved = size
            return None

    cdef bint prepare_buffer(self) except -1:
        """Make room behind ``end`` for the rest of a record that fits the read buffer. False: no memory."""
        cdef Lease fresh
        cdef size_t have = self.end - self.start
        if self.buffer is not None:
            if self.buffer.count == 1 and self.start:
                move_octets(<char *>self.buffer.address, <char *>self.buffer.address + self.start, have)
                self.start, self.end = 0, have
            # Records cut out earlier may leave little room: a new buffer, unless there is enough for a good read.
            if self.buffer.capacity - self.start >= READ_SIZE // 2 and self.wanted() <= self.buffer.capacity - self.start:
                return True
        fresh = self.take(READ_SIZE)
        if fresh is None:
            return False
        if self.buffer is not None:
            copy_octets(<char *>fresh.address, <char *>self.buffer.address + self.start, have)
            self.drop_buffer()
        self.buffer = fresh
        self.start, self.end = 0, have
        return True

    cdef size_t wanted(self) noexcept:
        """Octets that the record at ``start`` takes in the read buffer, as far as is known; no more than are looked at
        before it gets a buffer of its own."""
        if self.end - self.start < 4:
            return 4
        return min(
            4 + (load_mark(<char *>self.buffer.address + self.start) & ~<size_t>LAST_FRAGMENT), <size_t>READ_SIZE // 2
        )

    cdef bint read(self) except -1:
        """Receive once. Returns whether there may be more."""
        cdef iovec vectors[2]
        cdef size_t room = 0, count = 0, direct
        cdef ssize_t got
        if self.opening is not None and self.opening.buffer is None:
            lease = self.take(READ_SIZE)
            if lease is None:
                return False
            self.opening.begin(lease)
        if self.record is not None and self.fragment_left:
            if self.record_length == self.record.capacity and not self.enlarge():
                return False
            vectors[0].iov_base = <char *>self.record.address + self.record_length
            room = min(self.fragment_left, self.record.capacity - self.record_length)
            if self.shared:
                room = min(room, SLICE - self.received_now)
            vectors[0].iov_len = room
            count = 1
        if count and room < self.fragment_left:
            pass
        elif self.prepare_buffer():
            vectors[count].iov_base = <char *>self.buffer.address + self.end
            vectors[count].iov_len = self.buffer.capacity - self.end
            if room >= READ_SIZE and vectors[count].iov_len > NEXT_HEAD:
                # What follows on much data is likely the head of as much again, which should not come by way of here.
                vectors[count].iov_len = NEXT_HEAD
            room += vectors[count].iov_len
            count += 1
        elif count:
            self.starved = 0
        else:
            return False
        if self.opening is None:
            got = receive_into(self.fd, vectors, count)
        else:
            got = self.opening.receive(self.fd, <place_t *>vectors, count)
        if got < 0:
            if errno == EAGAIN:
                return False
            raise OSError(errno, os.strerror(errno))
        if got == 0:
            self.eof = True
            return False
        self.received_octets += got
        self.received_now += got
        if self.record is not None and self.fragment_left:
            direct = min(<size_t>got, self.fragment_left)
            self.record_length += direct
            self.fragment_left -= direct
            self.end += got - direct
        else:
            self.end += got
        return <size_t>got == room

    cdef bint trusted(self) noexcept:
        """Whether a promise will do to get much memory."""
        return self.proven and plenty(self.account)

    cdef bint begin_fragment(self, size_t length, size_t have) except -1:
        """Begin a fragment, the record's first in a buffer of its own. False: no memory, nothing is changed."""
        if self.record is None:
            self.record = self.take(length if self.trusted() else min(length, 4 * have))
            if self.record is None:
                return False
            self.record_length = 0
            self.fragments = 0
        self.fragments += 1
        if self.fragments > self.max_fragments:
            raise RecordError(f"a record of more than {self.max_fragments} fragments")
        self.fragment_left = length
        return True

    cdef bint enlarge(self) except -1:
        """Have room for more of the present record than fills its buffer. False: no memory, nothing is changed."""
        cdef size_t whole = self.record_length + self.fragment_left
        cdef Lease larger = self.take(whole if self.trusted() else min(whole, 4 * self.record_length))
        if larger is None:
            return False
        copy_octets(<char *>larger.address, <char *>self.record.address, self.record_length)
        self.record.release()
        self.record = larger
        return True

    cdef int copy_fragment(self) except -1:
        cdef size_t part = min(self.end - self.start, self.fragment_left, self.record.capacity - self.record_length)
        copy_octets(
            <char *>self.record.address + self.record_length, <char *>self.buffer.address + self.start, part
        )
        self.record_length += part
        self.fragment_left -= part
        self.start += part
        return 0
