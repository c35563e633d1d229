"""C declarations of LOCK and LOCKU in COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.records cimport StateEntry
from nfsd.v4.delegations cimport Nfs4Delegations
from nfsd.v4.native_compound cimport Arguments
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand

cdef struct lock_t:             # LOCK4args
    uint32_t kind
    bint reclaim
    uint64_t offset
    uint64_t length
    bint new_owner
    const uint8_t *stateid      # of the open, or of the lock
    uint32_t seqid              # of that one's owner
    uint32_t lock_seqid         # of a new lock owner
    uint64_t clientid           # likewise
    const uint8_t *owner        # its name
    uint32_t owner_length


cdef class Nfs4Locks(Nfs4Delegations):
    """Names, attributes, opens and delegations too, and byte-range locks."""

    cdef int owned(self, uint32_t number, Arguments *arguments, Place place) except -1
    cdef int failed(self, object error, Place place) except -1
    cdef int locked(self, Errand errand, const uint8_t *behind, Arguments *arguments, Place place) except -1
    cdef int lock(self, Arguments *arguments, Place place) except -1
    cdef int lock_turn(self, lock_t *asked, const uint8_t *behind, Arguments *arguments, Place place) except -1
    cdef StateEntry lock_holder(self, lock_t *asked)
    cdef int unlock(self, Arguments *arguments, Place place) except -1
