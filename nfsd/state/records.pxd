"""The hot records of the state engine, for native paths to read directly."""


cdef class Slot:
    cdef readonly unsigned int seqid
    cdef readonly bint in_use
    cdef readonly bint used
    cdef readonly bint renewed
    cdef public unsigned int generation
    cdef readonly bint cachethis
    cdef readonly unsigned int fingerprint
    cdef public unsigned long long promised
    cdef readonly object reply
    cpdef int begin(self, unsigned int seqid, bint cachethis, unsigned int fingerprint)
    cdef bint used_before
    cdef unsigned int generation_before
    cpdef void finish(self, object reply)
    cdef void withdraw(self) noexcept


cdef class ClientRecord:
    cdef public object clock            # the engine's
    cdef public double lease            # seconds
    cdef public int minor
    cdef public unsigned long long clientid
    cdef public dict hosts
    cdef public bint recorded
    cdef public Py_ssize_t longest_result
    cdef public double lease_end
    cdef public bint courtesy
    cdef public bint unheard
    cdef public bint binds
    cdef public long revoked
    cdef public bint expired
    cdef public bint may_reclaim
    cdef public bint reclaim_complete
    cdef public bytes tag
    cdef public object account          # a HostAccount
    cdef public dict states             # StateEntry by ``other``
    cdef public dict open_owners        # OpenOwner by name
    cdef public long lock_states
    cdef public long delegations

    cpdef int renew(self) except -1


cdef class BackchannelRecord:
    cdef readonly list connections
    cdef readonly set silent
    cdef public bint fault
    cdef public bint lapsed
    cdef public tuple credentials       # what callbacks are sent with: one, or none that can be
    cdef bint is_up(self) noexcept
    cdef bint is_usable(self) noexcept


cpdef bint backchannel_usable(client) except -1


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
    cdef readonly BackchannelRecord backchannel
    cdef public bint wants_backchannel
    # Of the fore channel.
    cdef size_t max_request
    cdef size_t max_response
    cdef size_t max_cached
    cdef size_t max_operations
    cpdef unsigned int status_flags(self) except? 0xFFFFFFFF


cdef object stateid_of(unsigned int seqid, bytes other)


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
    cdef public bint disclaimed
    cdef public object recall_by
    cdef public object opened
    cdef public object lease
    cdef public object referring
    cdef public object change
    cdef public object times
    cdef public object handle
