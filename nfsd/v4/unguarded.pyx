"""Which COMPOUNDs nothing but the RPC replay cache protects (contract: ``unguarded.pyi``).

Owns what is known of that before they are carried out. Imports the formats alone.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

from nfsd.wire.nfs4 cimport (
    CLAIM_NULL, OPEN4_NOCREATE, OP_ACCESS, OP_CLOSE, OP_COMMIT, OP_GETATTR, OP_GETFH, OP_LOOKUP, OP_LOOKUPP, OP_OPEN, OP_PUTFH,
    OP_PUTROOTFH, OP_READ, OP_READDIR, OP_READLINK, OP_RENEW, OP_RESTOREFH, OP_SAVEFH, READ4args_SIZE, stateid4_SIZE,
)
from rpcrdma.octets cimport load32, padded
from rpcrdma.rpc.native_program cimport AFTERWARDS, NEVER, UNDER_WAY


cdef enum:
    LISTING = 32            # READDIR up to the attributes that it asks for: its number, cookie, verifier, two sizes, a count


cdef size_t opening(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """The octets of an OPEN of a file that is there, by its name, from its number on; 0: it is another one."""
    cdef size_t size = 4 + 24
    if end - at < <ssize_t>size:
        return 0
    size += padded(load32(at + size - 4))
    if <size_t>(end - at) < size + 12 or load32(at + size) != OPEN4_NOCREATE or load32(at + size + 4) != CLAIM_NULL:
        return 0
    return size + 12 + padded(load32(at + size + 8))


cdef inline bint stands_alone(uint32_t operation) noexcept nogil:
    """Whether an operation that changes nothing has no arguments."""
    return (
        operation == OP_GETFH or operation == OP_PUTROOTFH or operation == OP_LOOKUPP or operation == OP_READLINK
        or operation == OP_SAVEFH or operation == OP_RESTOREFH
    )


cdef int changes_unguarded(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """For how long the replay cache knows a COMPOUND. One that does not decode here gets no further than to there.

    The owner of what is opened or closed keeps its last result (RFC 7530 section 9.1.9): one such operation in a COMPOUND
    that changes nothing else needs no reply kept, but a retransmission must not meet its owner busy with it."""
    cdef size_t operations, length
    cdef int known = NEVER
    if end - at < 4:
        return NEVER
    length = load32(at)
    if <size_t>(end - at) < 12 + padded(length):
        return NEVER
    at += 4 + padded(length)
    if load32(at):
        return NEVER
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
        elif stands_alone(load32(at)):
            length = 4
        elif load32(at) == OP_READDIR:
            length = LISTING if end - at < LISTING else LISTING + 4 * <size_t>load32(at + LISTING - 4)
        elif load32(at) == OP_CLOSE or load32(at) == OP_OPEN:
            length = 8 + stateid4_SIZE if load32(at) == OP_CLOSE else opening(at, end)
            if known or length == 0:
                return AFTERWARDS
            known = UNDER_WAY
        else:
            return AFTERWARDS
        if <size_t>(end - at) < length:
            return known
        at += length
    return known


def unguarded(arguments):
    cdef Py_buffer octets
    PyObject_GetBuffer(arguments, &octets, PyBUF_SIMPLE)
    try:
        return changes_unguarded(<const uint8_t *>octets.buf, <const uint8_t *>octets.buf + octets.len) != NEVER
    finally:
        PyBuffer_Release(&octets)
