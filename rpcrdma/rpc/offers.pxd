"""C declarations of the places in which the replies of general calls are written."""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.memory cimport Lease
from rpcrdma.place cimport Place

cdef enum:
    HEAD = 4096             # octets of a reply, without data: as many as a transport's own path has


cdef class ReplyPlace(Place):
    """Where the reply of one general call is written: there is room for any."""

    cdef uint8_t octets[HEAD]
    cdef uint8_t *head      # these, or those of ``ground``
    cdef size_t size        # of the head
    cdef Lease ground
    cdef size_t growing     # so much room the head is to have
    cdef object call
    cdef object lent_to     # told when the transport has lent memory, or refused to
    cdef readonly list payloads     # (where in the head, Payload)
    cdef bint aside         # there are some that whoever goes on has meanwhile
    cdef Lease room         # for the payload that is being written
    cdef Lease spare        # what was lent and is not in use
    cdef bint asking        # the transport is still to say whether it lends something
    cdef bint over
    cdef Py_buffer chunk    # the present one of the call's chunks
    cdef bint has_chunk
    cdef size_t used        # so many chunks come before it
    cdef size_t before      # octets of these, padded
    cdef const uint8_t *message

    cdef int begin(self, uint32_t xid) except -1
    cdef bint grow(self) except -1
    cdef bint full(self) noexcept
    cdef int stand_in(self, Lease lease) except -1
    cdef Lease borrow(self, size_t size)
    cdef bint holds(self) except -1
    cdef int give_back(self) except -1
    cdef int finish(self) except -1
    cdef object reply(self, uint32_t xid)
    cdef int add(self, Lease lease, size_t length) except -1
    cdef int put(self, const uint8_t *octets, size_t length, object payloads) except -1
    cdef int forget_behind(self, const uint8_t *at) except -1
    cdef list set_aside(self)
    cdef int take_back(self, list payloads) except -1
    cdef void let_go(self) noexcept
    cdef int go_to_chunk(self, size_t used) except -1
    cdef object decoder(self, const uint8_t *at)
    cdef const uint8_t *decoded(self, object decoder) except NULL
