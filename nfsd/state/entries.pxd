"""C declarations of the table of all stateids."""

from nfsd.state.owners cimport SeqidOwner
from nfsd.state.records cimport ClientRecord, StateEntry


cdef class StateEntries:
    cdef readonly dict entries          # StateEntry by ``other``
    cdef readonly list counts
    cdef readonly dict _closed          # SeqidOwner by ``other``
    cdef readonly bytes _epoch
    cdef object _draw
    cdef bytes _random
    cdef Py_ssize_t _drawn

    cpdef bytes new_other(self, ClientRecord client)
    cpdef int add(self, StateEntry entry) except -1
    cpdef int remove(self, StateEntry entry) except -1
    cpdef SeqidOwner owner_of(self, bytes other)
    cpdef int remember_closed(self, bytes other, owner) except -1
    cpdef int forget_closed(self, owner) except -1
