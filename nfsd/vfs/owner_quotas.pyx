"""What the kernel has on one owner's quotas, asked as that owner: for its own quotas everybody may ask, for another's only
CAP_SYS_ADMIN, which is nearly all of root (contract: ``owner_quotas.pyi``).

The kernel goes by the effective ids here, not by those of setfsuid(2). A thread that changed them would have to become
the server again; this one ends instead, so that nothing can go wrong on the way back.

The real and the saved ids stay the server's: a local user may send signals to a thread that has its own there (kill(2)),
and one that ends a thread ends the process.
"""

from libc.errno cimport errno
from libc.string cimport memset

from nfsd.vfs.kernel cimport SYS_QUOTACTL_FD, SYS_getegid, SYS_geteuid, SYS_setresgid, SYS_setresuid, c_syscall

cdef enum:
    GETQUOTA = 0x800007
    BLOCK_SIZE = 72         # struct if_dqblk


cdef int become_owner(unsigned int uid, unsigned int gid) noexcept nogil:
    """Make this thread act as the owner, until it ends; 0, or an errno."""
    if uid == <unsigned int>-1 or gid == <unsigned int>-1:
        return 22  # EINVAL: to the kernel these say "leave it as it is"
    # Ids that are these already ask for no privilege.
    if <unsigned int>c_syscall(SYS_getegid) != gid and c_syscall(SYS_setresgid, <long>-1, <long>gid, <long>-1) != 0:
        return errno
    if <unsigned int>c_syscall(SYS_geteuid) != uid and c_syscall(SYS_setresuid, <long>-1, <long>uid, <long>-1) != 0:
        return errno
    return 0


def ask(int fd, unsigned int uid, unsigned int gid, tuple kinds):
    cdef char blocks[2][BLOCK_SIZE]
    cdef int errors[2]
    cdef int wanted[2]
    cdef int index, error
    cdef int count = len(kinds)
    if count > 2:
        raise ValueError("there are quotas of users and of groups")
    for index in range(count):
        wanted[index] = kinds[index]
    memset(blocks, 0, sizeof(blocks))
    with nogil:
        error = become_owner(uid, gid)
        for index in range(count):
            errors[index] = error
            if error == 0 and c_syscall(
                SYS_QUOTACTL_FD, fd, GETQUOTA << 8 | wanted[index], <long>(gid if wanted[index] else uid), &blocks[index]
            ) != 0:
                errors[index] = errno
    return [(errors[index], <bytes>blocks[index][:BLOCK_SIZE]) for index in range(count)]
