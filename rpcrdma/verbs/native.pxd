"""C declarations of what endpoints offer to native code."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.memory cimport Lease


cdef struct Target:
    uint32_t handle
    uint64_t offset
    size_t length       # octets to write there


cdef class NativeEndpoint:
    cdef int repost(self, Lease lease) except -1
    cdef int post_reply(
        self, const Target *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1
