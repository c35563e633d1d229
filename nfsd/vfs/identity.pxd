"""C declarations of identities: whom a thread's system calls act as."""

from libc.stdint cimport uint32_t, uint64_t

ctypedef struct identity_t:
    unsigned int uid
    unsigned int gid
    int ngroups
    unsigned int *groups

ctypedef struct server_identity_t:
    identity_t own              # the server itself
    uint64_t effective          # its capabilities
    uint64_t permitted
    uint64_t inheritable
    int can_switch              # whether it may act as others: it has been tried
    uint64_t switches           # how often a thread has become somebody else; for statistics, not exact

ctypedef enum whose_t:
    OWN                         # the server itself; what a thread is that starts
    CALLERS                     # the caller in ``now``
    BROKEN                      # nobody knows: it does nothing for anybody any more

ctypedef struct thread_state_t:
    whose_t whose
    identity_t now              # of a caller's, with a groups array of its own
    int groups_room

cdef inline bint is_somebody(identity_t *who) noexcept nogil:
    """Whether these are ids that somebody can have: (uid_t)-1 and (gid_t)-1 are "as it is" to the kernel."""
    cdef uint32_t nobody = 0xFFFFFFFF
    cdef int position
    for position in range(who.ngroups):
        if who.groups[position] == nobody:
            return False
    return who.uid != nobody and who.gid != nobody


cdef int identity_become_own(server_identity_t *server, thread_state_t *thread) noexcept nogil
cdef int identity_become_caller(server_identity_t *server, thread_state_t *thread, identity_t *who) noexcept nogil


cdef class Switch:
    """Who the server is, and whom the loop's thread acts as."""

    cdef server_identity_t server
    cdef thread_state_t loop
    cdef readonly str reason    # why the server cannot act as others

    cdef bint become(self, identity_t *who) noexcept
    cdef void become_own(self) noexcept
    cdef void see_to_it(self) noexcept
