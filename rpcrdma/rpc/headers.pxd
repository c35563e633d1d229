"""Headers of replies in native code (RFC 5531 section 9)."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from rpcrdma.octets cimport store32


cdef inline uint8_t *accepted(uint8_t *at, uint32_t xid) noexcept nogil:
    """An accepted reply with an empty verifier, and SUCCESS."""
    at = store32(store32(at, xid), 1)
    memset(at, 0, 16)
    return at + 16
