"""C declarations of identities: whom a thread's system calls act as."""

from libc.stdint cimport uint64_t

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
    int can_switch              # whether it may act as others
    uint64_t switches           # how often a thread has become somebody else; for statistics, not exact

ctypedef struct thread_state_t:
    int is_caller               # whether this thread is somebody else than the server now
    identity_t now              # who, with a groups array of its own
    int groups_room

cdef int identity_learn(server_identity_t *server) noexcept
cdef int identity_become_own(server_identity_t *server, thread_state_t *thread) noexcept nogil
cdef int identity_become_caller(server_identity_t *server, thread_state_t *thread, identity_t *who) noexcept nogil
