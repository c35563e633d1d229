"""Whom a thread's system calls act as: the server itself, or a caller (capabilities(7), setfsuid(2)).

Owns the switching, for workers and for the loop's thread alike. Credentials are per thread in Linux; the C library's
wrappers would change all threads, hence raw system calls.

A thread is the server's own, a caller's, or broken. A switch that fails leads back to the server's own identity, all of
which is then read back from the kernel; a thread that cannot be brought back is broken, and never acts for anybody again.

Capabilities. While a thread is a caller's it has those of CALLERS_OWN and no others; as root (``squash: none``) those
of ROOTS_OWN too, which are what Linux's own server leaves to root (``cap_raise_nfsd_set`` without CAP_SYS_RESOURCE).
CAP_SYS_RESOURCE goes at the start and for good: with it callers could write into reserved blocks and past their quota.
"""

import logging
import os

from libc.errno cimport EACCES, EIO, ENOMEM, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from nfsd.vfs.kernel cimport (
    SYS_capget, SYS_capset, SYS_getgroups, SYS_setfsgid, SYS_setfsuid, SYS_setgroups, c_syscall,
)

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_t:
        pass
    int pthread_create(pthread_t *thread, const void *attributes, void *(*run)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)

cdef enum:
    CAPABILITY_VERSION_3 = 0x20080522

cdef uint64_t SYS_RESOURCE = 1 << 24
# SETGID and SETUID, without which the next switch would be none.
cdef uint64_t CALLERS_OWN = (1 << 6) | (1 << 7)
# The kernel's CAP_FS_SET: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE.
cdef uint64_t ROOTS_OWN = (
    (1 << 0) | (1 << 1) | (1 << 2) | (1 << 3) | (1 << 4) | (1 << 9) | (1 << 27) | (<uint64_t>1 << 32)
)

_log = logging.getLogger(__name__)

ctypedef struct cap_header_t:
    uint32_t version
    int pid

ctypedef struct cap_data_t:
    uint32_t effective
    uint32_t permitted
    uint32_t inheritable


# -- one thread ---------------------------------------------------------------------------------------------------
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


cdef uint64_t allowed(server_identity_t *server, identity_t *who) noexcept nogil:
    """The capabilities that a caller has."""
    return server.effective & (CALLERS_OWN | ROOTS_OWN if who.uid == 0 else CALLERS_OWN)


cdef bint same_groups(identity_t *one, identity_t *other) noexcept nogil:
    return one.ngroups == other.ngroups and (
        one.ngroups == 0 or memcmp(one.groups, other.groups, one.ngroups * sizeof(unsigned int)) == 0
    )


cdef bint same_identity(identity_t *one, identity_t *other) noexcept nogil:
    return one.uid == other.uid and one.gid == other.gid and same_groups(one, other)


cdef int change(
    server_identity_t *server, identity_t *now, uint64_t had, identity_t *to, uint64_t wanted
) noexcept nogil:
    """Make of a thread that is ``now``, with these capabilities, another: 0, or the error number, and nobody knows who
    it is. What is the same is left alone: each of these calls copies the kernel's credentials."""
    server.switches += 1
    if not same_groups(now, to) and c_syscall(SYS_setgroups, <long>to.ngroups, to.groups) != 0:
        return errno
    if now.gid != to.gid:
        c_syscall(SYS_setfsgid, <long>to.gid)
        # It reports the previous value and never fails visibly: asking again is how one knows.
        if <uint32_t>c_syscall(SYS_setfsgid, <long>-1) != to.gid:
            return EACCES
    if now.uid != to.uid:
        c_syscall(SYS_setfsuid, <long>to.uid)
        if <uint32_t>c_syscall(SYS_setfsuid, <long>-1) != to.uid:
            return EACCES
    # The kernel itself takes capabilities when the file system uid leaves 0 and gives them back when it returns
    # (unless securebits(7) say otherwise). What counts is said last, and said outright.
    if (had != wanted or (now.uid == 0) != (to.uid == 0)) and set_effective(server, wanted) != 0:
        return errno
    return 0


cdef bint is_own(server_identity_t *server) noexcept nogil:
    """Whether the kernel says that this thread is the server's own, in every respect."""
    cdef cap_header_t header
    cdef cap_data_t data[2]
    cdef unsigned int *groups
    cdef long count
    cdef bint same
    if <uint32_t>c_syscall(SYS_setfsuid, <long>-1) != server.own.uid:
        return False
    if <uint32_t>c_syscall(SYS_setfsgid, <long>-1) != server.own.gid:
        return False
    header.version = CAPABILITY_VERSION_3
    header.pid = 0
    if c_syscall(SYS_capget, &header, data) != 0:
        return False
    if data[0].effective | (<uint64_t>data[1].effective << 32) != server.effective:
        return False
    count = c_syscall(SYS_getgroups, <long>0, NULL)
    if count != server.own.ngroups:
        return False
    if count == 0:
        return True
    groups = <unsigned int *>malloc(count * sizeof(unsigned int))
    if groups == NULL:
        return False
    same = (
        c_syscall(SYS_getgroups, count, groups) == count
        and memcmp(groups, server.own.groups, count * sizeof(unsigned int)) == 0
    )
    free(groups)
    return same


cdef void go_back(server_identity_t *server, thread_state_t *thread) noexcept nogil:
    """After a switch that failed: the thread is the server's own again, or broken."""
    # With the capabilities first: without CAP_SETGID the groups stay.
    set_effective(server, server.effective)
    c_syscall(SYS_setgroups, <long>server.own.ngroups, server.own.groups)
    c_syscall(SYS_setfsgid, <long>server.own.gid)
    c_syscall(SYS_setfsuid, <long>server.own.uid)
    set_effective(server, server.effective)
    thread.whose = OWN if is_own(server) else BROKEN


cdef int identity_become_own(server_identity_t *server, thread_state_t *thread) noexcept nogil:
    """0; or the error number, and then the thread is broken."""
    if thread.whose == OWN:
        return 0
    if thread.whose == CALLERS:
        if change(server, &thread.now, allowed(server, &thread.now), &server.own, server.effective) == 0:
            thread.whose = OWN
        else:
            go_back(server, thread)
    return 0 if thread.whose == OWN else EIO


cdef int identity_become_caller(server_identity_t *server, thread_state_t *thread, identity_t *who) noexcept nogil:
    """0; or the error number, and then the thread is the server's own, or broken."""
    cdef unsigned int *room
    cdef int error
    if thread.whose == CALLERS and same_identity(&thread.now, who):
        return 0
    if thread.whose == BROKEN:
        return EIO
    error = 0 if is_somebody(who) else EACCES
    if error == 0 and who.ngroups > thread.groups_room:
        room = <unsigned int *>malloc(who.ngroups * sizeof(unsigned int))
        if room == NULL:
            error = ENOMEM
        else:
            if thread.now.ngroups > 0:
                memcpy(room, thread.now.groups, thread.now.ngroups * sizeof(unsigned int))
            free(thread.now.groups)
            thread.now.groups = room
            thread.groups_room = who.ngroups
    if error == 0:
        if thread.whose == CALLERS:
            error = change(server, &thread.now, allowed(server, &thread.now), who, allowed(server, who))
        else:
            error = change(server, &server.own, server.effective, who, allowed(server, who))
    if error != 0:
        go_back(server, thread)
        if thread.whose == BROKEN:
            return EIO
        # setgroups(2): groups that the user namespace does not know, or groups that it does not let one have.
        return ENOMEM if error == ENOMEM else EACCES
    thread.whose = CALLERS
    thread.now.uid = who.uid
    thread.now.gid = who.gid
    thread.now.ngroups = who.ngroups
    if who.ngroups > 0:
        memcpy(thread.now.groups, who.groups, who.ngroups * sizeof(unsigned int))
    return 0


# -- the server ---------------------------------------------------------------------------------------------------
ctypedef struct trial_t:
    server_identity_t *server
    identity_t who
    int succeeded


cdef void *try_it(void *argument) noexcept nogil:
    """On a thread of its own, which ends with it whatever it is then: become somebody, and oneself again."""
    cdef trial_t *trial = <trial_t *>argument
    cdef thread_state_t thread
    memset(&thread, 0, sizeof(thread))
    trial.succeeded = (
        identity_become_caller(trial.server, &thread, &trial.who) == 0
        and identity_become_own(trial.server, &thread) == 0
        and is_own(trial.server)
    )
    free(thread.now.groups)
    return NULL


def _other_id(str path, unsigned int own):
    """An id of this user namespace that is not the server's; None if it has no other (user_namespaces(7))."""
    with open(path) as file:
        for line in file:
            first, _, count = map(int, line.split())
            if first != own:
                return first
            if count > 1:
                return first + 1
    return None


cdef class Switch:
    def __cinit__(self):
        memset(&self.server, 0, sizeof(self.server))
        memset(&self.loop, 0, sizeof(self.loop))
        self.learn()
        self.reason = self.hindrance()
        self.server.can_switch = not self.reason

    def __dealloc__(self):
        free(self.server.own.groups)
        free(self.loop.now.groups)

    def learn(self):
        """Fill in who the server is, and give up CAP_SYS_RESOURCE for this thread and those it starts."""
        cdef server_identity_t *server = &self.server
        cdef cap_header_t header
        cdef cap_data_t data[2]
        cdef long count
        header.version = CAPABILITY_VERSION_3
        header.pid = 0
        if c_syscall(SYS_capget, &header, data) != 0:
            raise OSError(errno, os.strerror(errno))
        server.effective = data[0].effective | (<uint64_t>data[1].effective << 32)
        server.permitted = data[0].permitted | (<uint64_t>data[1].permitted << 32)
        server.inheritable = data[0].inheritable | (<uint64_t>data[1].inheritable << 32)
        if server.effective & SYS_RESOURCE:
            server.effective &= ~SYS_RESOURCE
            if set_effective(server, server.effective) != 0:
                raise OSError(errno, os.strerror(errno))
        server.own.uid = <uint32_t>c_syscall(SYS_setfsuid, <long>-1)
        server.own.gid = <uint32_t>c_syscall(SYS_setfsgid, <long>-1)
        count = c_syscall(SYS_getgroups, <long>0, NULL)
        server.own.groups = <unsigned int *>malloc(max(1, count) * sizeof(unsigned int))
        if count < 0 or server.own.groups == NULL:
            raise MemoryError
        server.own.ngroups = <int>c_syscall(SYS_getgroups, count, server.own.groups)

    def hindrance(self):
        """Why the server cannot act as others; empty if it can. It is tried, for capabilities say little: a user
        namespace may have no other ids, or deny setgroups(2)."""
        cdef trial_t trial
        cdef pthread_t thread
        cdef unsigned int group
        cdef int error
        if self.server.effective & CALLERS_OWN != CALLERS_OWN:
            return "no privilege to act as other users (CAP_SETUID, CAP_SETGID)"
        uid, gid = _other_id("/proc/self/uid_map", self.server.own.uid), _other_id("/proc/self/gid_map", self.server.own.gid)
        if uid is None or gid is None:
            return "there are no other users in this user namespace"
        group = gid
        trial.server = &self.server
        trial.who.uid, trial.who.gid, trial.who.ngroups, trial.who.groups = uid, gid, 1, &group
        trial.succeeded = False
        error = pthread_create(&thread, NULL, try_it, &trial)
        if error != 0:
            raise OSError(error, "cannot start a thread: " + os.strerror(error))
        with nogil:
            pthread_join(thread, NULL)
        self.server.switches = 0
        return "" if trial.succeeded else "this system lets no thread act as another user (setgroups, setfsuid)"

    cdef bint become(self, identity_t *who) noexcept:
        """The loop's thread acts as a caller from now on, or if that cannot be, as the server; whether it could be."""
        if not self.server.can_switch or identity_become_caller(&self.server, &self.loop, who) == 0:
            return True
        self.see_to_it()
        return False

    cdef void become_own(self) noexcept:
        """The loop's thread is the server again."""
        if identity_become_own(&self.server, &self.loop) != 0:
            self.see_to_it()

    cdef void see_to_it(self) noexcept:
        """End the process if the loop's thread is broken. The server itself does everything but calls on it, with its
        own files and listeners: none of that may be done as somebody else, an orderly end included. Clients recover as
        after any other crash."""
        if self.loop.whose == BROKEN:
            _log.critical("the server could not become itself again after acting as a caller: it ends at once")
            logging.shutdown()
            os._exit(1)
