"""Where things stand in a transport header of version One, for native code that does not read all of it."""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.octets cimport load32
from rpcrdma.wire.rdma1 cimport SMALLEST_HEADER, VERSION

cdef enum:
    READ_SEGMENT = 24       # "one more", position, handle, length, offset


cdef inline size_t call_at(const uint8_t *octets, size_t size) noexcept nogil:
    """Where the call stands in an RDMA_MSG, whatever its chunks; 0: it is not there (RFC 8166 section 4.3)."""
    cdef size_t at = 16
    if size < SMALLEST_HEADER or load32(octets + 4) != VERSION or load32(octets + 12) != 0:
        return 0
    while at + READ_SEGMENT + 4 <= size and load32(octets + at) == 1:
        at += READ_SEGMENT
    if load32(octets + at) != 0:
        return 0
    at += 4
    while at + 12 <= size and load32(octets + at) == 1:
        if load32(octets + at + 4) > size // 16:
            return 0
        at += 8 + 16 * load32(octets + at + 4)
    if at + 12 > size or load32(octets + at) != 0:
        return 0
    at += 4
    if load32(octets + at) != 0:
        if load32(octets + at + 4) > size // 16:
            return 0
        at += 4 + 16 * load32(octets + at + 4)
    return at + 4 if at + 8 <= size else 0
