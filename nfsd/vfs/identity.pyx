"""Whom a thread's system calls act as: the server itself, or a caller (capabilities(7), setfsuid(2)).

Owns nothing but the switching. Credentials are per thread in Linux; the C library's wrappers would change all threads,
hence raw system calls. The kernel drops the file capabilities when the file system uid leaves 0; where the server itself
is not root it must be done by hand. CAP_SYS_RESOURCE goes at the start and for good: with it callers could write into
reserved blocks and past their quota.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

cdef extern from "unistd.h" nogil:
    long c_syscall "syscall"(long number, ...)

cdef extern from "sys/syscall.h" nogil:
    const long SYS_capget
    const long SYS_capset
    const long SYS_setgroups
    const long SYS_getgroups
    const long SYS_setfsuid
    const long SYS_setfsgid
    const long SYS_geteuid
    const long SYS_getegid

cdef enum:
    CAPABILITY_VERSION_3 = 0x20080522

# What a caller other than root must not have (capabilities(7)): CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID,
# LINUX_IMMUTABLE, SYS_RESOURCE, MKNOD, MAC_OVERRIDE.
cdef uint64_t CALLER_MUST_NOT = (
    (1 << 0) | (1 << 1) | (1 << 2) | (1 << 3) | (1 << 4) | (1 << 9) | (1 << 24) | (1 << 27) | (<uint64_t>1 << 32)
)
cdef uint64_t SYS_RESOURCE = 1 << 24
cdef uint64_t CAN_SWITCH = (1 << 6) | (1 << 7)   # SETGID, SETUID

ctypedef struct cap_header_t:
    uint32_t version
    int pid

ctypedef struct cap_data_t:
    uint32_t effective
    uint32_t permitted
    uint32_t inheritable

cdef int set_effective(server_identity_t *server, uint64_t effective) noexcept nogil:
    cdef cap_header_t header
    cdef cap_data_t data[2]
    cdef int half
    header.version = CAPABILITY_VERSION_3
    header.pid = 0
    for half in range(2):
        data[half].effective = <uint32_t>(effective >> (32 * half))
        data[half].permitted = <uint32_t>(server.permitted >> (32 * half))
        data[half].inheritable = <uint32_t>(server.inheritable >> (32 * half))
    return <int>c_syscall(SYS_capset, &header, data)


cdef int identity_learn(server_identity_t *server) noexcept:
    """Fill in who the server is, and give up CAP_SYS_RESOURCE for this thread and those it starts. 0, or -1 with errno."""
    cdef cap_header_t header
    cdef cap_data_t data[2]
    cdef long count
    header.version = CAPABILITY_VERSION_3
    header.pid = 0
    if c_syscall(SYS_capget, &header, data) != 0:
        return -1
    server.effective = data[0].effective | (<uint64_t>data[1].effective << 32)
    server.permitted = data[0].permitted | (<uint64_t>data[1].permitted << 32)
    server.inheritable = data[0].inheritable | (<uint64_t>data[1].inheritable << 32)
    server.can_switch = server.effective & CAN_SWITCH == CAN_SWITCH
    if server.effective & SYS_RESOURCE:
        server.effective &= ~SYS_RESOURCE
        if set_effective(server, server.effective) != 0:
            return -1
    server.own.uid = <unsigned int>c_syscall(SYS_geteuid)
    server.own.gid = <unsigned int>c_syscall(SYS_getegid)
    count = c_syscall(SYS_getgroups, <long>0, NULL)
    server.own.groups = <unsigned int *>malloc(max(1, count) * sizeof(unsigned int))
    if server.own.groups == NULL:
        return -1
    server.own.ngroups = <int>c_syscall(SYS_getgroups, count, server.own.groups)
    return 0


cdef int become(server_identity_t *server, identity_t *who, int is_caller) noexcept nogil:
    """Switch this thread; 0, or -1 with errno set and an identity that must not be used."""
    server.switches += 1
    if c_syscall(SYS_setgroups, <long>who.ngroups, who.groups) != 0:
        return -1
    c_syscall(SYS_setfsgid, <long>who.gid)
    c_syscall(SYS_setfsuid, <long>who.uid)
    # setfsuid and setfsgid report the previous value and never fail visibly: asking again is how one knows.
    if <uint32_t>c_syscall(SYS_setfsuid, <long>-1) != who.uid or <uint32_t>c_syscall(SYS_setfsgid, <long>-1) != who.gid:
        return -1
    if server.own.uid != 0:
        # Between two uids other than 0 the kernel leaves the capabilities alone.
        if is_caller and who.uid != 0:
            return set_effective(server, server.effective & ~CALLER_MUST_NOT)
        return set_effective(server, server.effective)
    return 0


cdef int same_identity(identity_t *one, identity_t *other) noexcept nogil:
    return (
        one.uid == other.uid
        and one.gid == other.gid
        and one.ngroups == other.ngroups
        and memcmp(one.groups, other.groups, one.ngroups * sizeof(unsigned int)) == 0
    )


cdef int identity_become_own(server_identity_t *server, thread_state_t *thread) noexcept nogil:
    if not thread.is_caller:
        return 0
    if become(server, &server.own, 0) != 0:
        return -1
    thread.is_caller = 0
    return 0


cdef int identity_become_caller(server_identity_t *server, thread_state_t *thread, identity_t *who) noexcept nogil:
    cdef unsigned int *room
    if server.own.uid == 0 and same_identity(&server.own, who):
        return identity_become_own(server, thread)  # root is no less than itself
    if thread.is_caller and same_identity(&thread.now, who):
        return 0
    if who.ngroups > thread.groups_room:
        room = <unsigned int *>malloc(who.ngroups * sizeof(unsigned int))
        if room == NULL:
            return -1
        free(thread.now.groups)
        thread.now.groups = room
        thread.groups_room = who.ngroups
    # Until the switch is complete this thread is nobody in particular: a failure must not look like success next time.
    thread.is_caller = 1
    thread.now.uid = <unsigned int>-1
    if become(server, who, 1) != 0:
        return -1
    thread.now.uid = who.uid
    thread.now.gid = who.gid
    thread.now.ngroups = who.ngroups
    memcpy(thread.now.groups, who.groups, who.ngroups * sizeof(unsigned int))
    return 0
