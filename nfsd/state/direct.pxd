"""C declarations of what native COMPOUNDs ask the state engine."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.records cimport ClientRecord, OpenState, SessionRecord, StateEntry


cdef struct SequenceRequest:
    # SEQUENCE4args
    const uint8_t *sessionid
    uint32_t sequenceid
    uint32_t slotid
    uint32_t highest_slotid
    bint cachethis
    # Of the COMPOUND
    size_t operations
    size_t octets


cdef class DirectState:
    """The state engine, for native COMPOUNDs."""

    cdef readonly object engine
    cdef dict sessions
    cdef dict entries

    cdef SessionRecord expected(self, object connection, const SequenceRequest *request)
    cdef uint32_t begin(self, SessionRecord session, const SequenceRequest *request, uint32_t fingerprint) except? 0xFFFFFFFF
    cdef int withdraw(self, SessionRecord session, const SequenceRequest *request) except -1
    cdef int finish(self, SessionRecord session, const SequenceRequest *request, bytes reply) except -1
    cdef StateEntry current(self, ClientRecord client, const uint8_t *stateid, bytes file_key)
    cdef object opened_of(self, ClientRecord client, const uint8_t *stateid, bytes file_key, bint write)
    cdef OpenState open_of(self, ClientRecord client, const uint8_t *stateid, bytes file_key)
