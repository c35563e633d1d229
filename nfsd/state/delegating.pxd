"""C declarations of how delegations come and go."""

from nfsd.state.charges cimport Figures
from nfsd.state.entries cimport StateEntries
from nfsd.state.files cimport FileState
from nfsd.state.grace cimport GraceRules
from nfsd.state.opens cimport OpenTable
from nfsd.state.records cimport ClientRecord, Delegation


cdef class Delegating:
    cdef readonly object _engine
    cdef OpenTable opens
    cdef StateEntries stateids
    cdef GraceRules grace
    cdef Figures ledger
    cdef readonly long count
    cdef readonly long granted
    cdef readonly long granted_directories
    cdef readonly long reclaimed
    cdef readonly long returned
    cdef public object on_gone
    cdef readonly dict _holds           # how often each file is held, by key
    cdef readonly dict _paused          # until when, by key
    cdef readonly dict _recalling       # delegations, in their order
    cdef readonly dict _to_recall

    cpdef object offer(self, ClientRecord client, bytes file_key, bint write, bint reclaim=*)
    cpdef object refusal(self, ClientRecord client, bytes file_key, bint write, bint reclaim=*)
    cdef bint contended(self, ClientRecord client, bytes file_key, bint write) except -1
    cdef bint in_pause(self, bytes file_key) except -1
    cpdef bint settle(self, Delegation delegation, bint directory=*) except -1
    cpdef bint holds(self, Delegation delegation) except -1
    cpdef Delegation held_by(self, ClientRecord client, bytes file_key)
    cpdef Delegation writing(self, FileState file)
    cpdef int give_back(self, Delegation delegation) except -1
    cpdef int release(self, Delegation delegation) except -1
