"""C declarations of the header of RPC calls."""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    RPC_VERSION = 2
    CALL_HEADER = 40        # octets of a header with empty credential and verifier
    BODY = 32               # where the credential's body begins

cpdef enum Flaw:            # why a message is no call that can be executed
    FLAWLESS = 0
    NO_CALL = 1             # or too short for it to be told
    OTHER_VERSION = 2       # of RPC
    CUT_SHORT = 3           # it ends in the header
    LONG_CREDENTIAL = 4     # longer than one may be

cdef struct call_header_t:
    uint32_t xid
    uint32_t program
    uint32_t version
    uint32_t procedure
    uint32_t flavor             # of the credential,
    uint32_t length             # and octets of its body
    size_t verifier             # where that stands
    uint32_t verifier_flavor
    uint32_t verifier_length
    size_t arguments            # where they begin; perhaps behind the end of the message

cdef Flaw read_call(const uint8_t *message, size_t size, call_header_t *header) noexcept nogil


cdef class CallHeader:
    cdef call_header_t header
    cdef readonly int flaw
    cdef object octets          # of the message
