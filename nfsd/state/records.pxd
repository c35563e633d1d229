"""The hot records of the state engine, for native paths to read directly."""


cdef class Slot:
    cdef readonly unsigned int seqid
    cdef readonly bint in_use
    cdef readonly bint used
    cdef readonly bint renewed
    cdef public unsigned int generation
    cdef readonly bint cachethis
    cdef readonly unsigned int fingerprint
    cdef readonly object reply
    cpdef int begin(self, unsigned int seqid, bint cachethis, unsigned int fingerprint)
    cdef bint used_before
    cdef unsigned int generation_before
    cpdef void finish(self, object reply)
    cdef void withdraw(self) noexcept


cdef class ClientRecord:
    cdef public int minor
    cdef public double lease_end
    cdef public bint courtesy
    cdef public bint unheard
    cdef public long revoked


cdef class SessionRecord:
    cdef readonly bytes sessionid
    cdef readonly ClientRecord client
    cdef readonly object fore
    cdef readonly list slots
    cdef public unsigned int highest_slotid
    cdef public unsigned int target_highest_slotid
    cdef public unsigned int generation
    cdef public bint tells
    cdef readonly list retired
    cdef readonly set connections
    # Of the fore channel.
    cdef size_t max_request
    cdef size_t max_response
    cdef size_t max_cached
    cdef size_t max_operations


cdef class StateEntry:
    cdef readonly int kind
    cdef readonly bytes other
    cdef public unsigned int seqid
    cdef public int status
    cdef readonly object client
    cdef readonly object file
    cpdef void bump(self)


cdef class OpenState(StateEntry):
    cdef readonly object owner
    cdef public int access
    cdef public int deny
    cdef public unsigned int combos
    cdef public object opened
    cdef readonly dict lock_states


cdef class LockState(StateEntry):
    cdef readonly object owner
    cdef readonly OpenState open_state


cdef class Delegation(StateEntry):
    cdef readonly bint write
    cdef public bint offered
    cdef public bint unwanted
    cdef public object recall_by
    cdef public object opened
    cdef public object lease
    cdef public object referring
    cdef public object change
    cdef public object handle
