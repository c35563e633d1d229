"""C declarations of what a record stream has received."""

from rpcrdma.memory cimport Account, Lease
from rpcrdma.tls.records cimport Opening


cdef enum:
    READ_SIZE = 65536
    LAST_FRAGMENT = 0x80000000


cdef class Reading:
    cdef int fd
    cdef Account account
    cdef size_t max_fragments
    cdef readonly bint eof
    cdef bint unsure                    # whether the end may have come, and nobody will tell
    cdef readonly size_t starved
    cdef readonly unsigned long long received_octets
    cdef Opening opening                # what deciphers; None: what comes is in the clear
    # The shared read buffer: what is between start and end has been received and not been looked at.
    cdef Lease buffer
    cdef size_t start
    cdef size_t end
    # The record that has a buffer of its own.
    cdef Lease record
    cdef Lease given                    # for it, or for the read buffer
    cdef bint proven                    # a whole record has come before
    cdef size_t record_length
    cdef size_t fragment_left
    cdef size_t fragments
    # The present turn: whether there are others, and how much has been moved.
    cdef bint shared
    cdef size_t received_now

    cdef bint more(self) noexcept
    cdef int drop_buffer(self) except -1
    cdef int drop_given(self) except -1
    cdef Lease take(self, size_t size)
    cdef bint prepare_buffer(self) except -1
    cdef size_t wanted(self) noexcept
    cdef bint read(self) except -1
    cdef bint trusted(self) noexcept
    cdef bint begin_fragment(self, size_t length, size_t have) except -1
    cdef bint enlarge(self) except -1
    cdef int copy_fragment(self) except -1
