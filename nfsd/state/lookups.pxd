"""C declarations of what native COMPOUNDs ask the state engine."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.opens cimport OpenTable
from nfsd.state.records cimport ClientRecord, OpenState, StateEntry


cdef class StateLookups:
    """The state engine, for native COMPOUNDs."""

    cdef readonly object engine
    cdef dict entries
    cdef readonly OpenTable opens

    cdef StateEntry current(self, ClientRecord client, const uint8_t *stateid, bytes file_key)
    cdef object opened_of(self, ClientRecord client, const uint8_t *stateid, bytes file_key, bint write)
    cdef OpenState open_of(self, ClientRecord client, const uint8_t *stateid, bytes file_key)
