"""C declarations of :mod:`rpcrdma.digest`."""

from libc.stdint cimport uint8_t, uint64_t


cdef enum:
    DIGEST_LANES = 6
    DIGEST_BLOCK = 96


cdef struct Digest:
    uint64_t lanes[DIGEST_LANES]
    uint64_t total                  # octets so far
    size_t held                     # of them, in ``block``
    uint8_t block[DIGEST_BLOCK]


cdef void digest_begin(Digest *digest) noexcept nogil
cdef void digest_add(Digest *digest, const void *octets, size_t size) noexcept nogil
cdef uint64_t digest_end(Digest *digest) noexcept nogil
