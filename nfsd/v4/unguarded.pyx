"""Which COMPOUNDs nothing but the RPC replay cache protects (contract: ``unguarded.pyi``).

Owns what is known of that before they are carried out. Imports the formats alone.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t

from nfsd.wire.nfs4 cimport (
    OP_ACCESS, OP_COMMIT, OP_GETATTR, OP_GETFH, OP_LOOKUP, OP_PUTFH, OP_READ, OP_RENEW, READ4args_SIZE,
)
from rpcrdma.octets cimport load32, padded


cdef bint changes_unguarded(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """See the .pyi. One that does not decode here gets no further than to there."""
    cdef size_t operations, length
    if end - at < 4:
        return False
    length = load32(at)
    if <size_t>(end - at) < 12 + padded(length):
        return False
    at += 4 + padded(length)
    if load32(at):
        return False
    operations = load32(at + 4)
    at += 8
    while operations and end - at >= 4:
        operations -= 1
        length = 0 if end - at < 8 else load32(at + 4)
        if load32(at) == OP_PUTFH or load32(at) == OP_LOOKUP:
            length = 8 + padded(<size_t>length)
        elif load32(at) == OP_GETATTR:
            length = 8 + 4 * length
        elif load32(at) == OP_READ:
            length = 4 + READ4args_SIZE
        elif load32(at) == OP_ACCESS:
            length = 8
        elif load32(at) == OP_COMMIT:
            length = 16
        elif load32(at) == OP_RENEW:
            length = 12
        elif load32(at) == OP_GETFH:
            length = 4
        else:
            return True
        if <size_t>(end - at) < length:
            return False
        at += length
    return False


def unguarded(arguments):
    cdef Py_buffer octets
    PyObject_GetBuffer(arguments, &octets, PyBUF_SIMPLE)
    try:
        return changes_unguarded(<const uint8_t *>octets.buf, <const uint8_t *>octets.buf + octets.len)
    finally:
        PyBuffer_Release(&octets)
