"""C declarations of what endpoints offer to native code, and native code to them."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe


cdef struct Target:
    uint32_t handle
    uint64_t offset
    size_t length       # octets to write or to read there
    const uint8_t *source   # what is written; NULL: the next octets of a pipe


cdef class Fetch:
    """A call that was received and whose Read chunk is being fetched; the token of its RDMA Reads."""

    cdef Lease message
    cdef size_t size    # of the message
    cdef Lease sink
    cdef size_t length  # of the chunk


cdef class NativeOwner:
    cdef int answered(self, long count, bint ok) except -1
    cdef int fetched(self, Fetch fetch, bint ok) except -1
    cdef int pause(self) except -1


cdef class NativeEndpoint:
    cdef NativeOwner native     # who is told of what was posted natively

    cdef int repost(self, Lease lease) except -1
    cdef int post_reply(
        self, const Target *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1
    cdef bint takes_pages(self) except -1
    cdef int post_pages(
        self, const Target *targets, size_t count, Pipe pages, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1
    cdef int post_fetch(self, const Target *sources, size_t count, Fetch fetch) except -1
    cdef int tell(self, object handler, list tokens, bint ok) except -1
    cdef int handler_failed(self) except -1
