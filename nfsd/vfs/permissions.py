"""What the server is not permitted to do, found out at the start: each of these would be missing silently otherwise.

Owns nothing. A system call that a seccomp filter forbids (a unit's ``SystemCallFilter=``, a container's profile)
fails before its arguments are looked at, so that calls whose arguments make no sense tell.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

from nfsd.vfs.executor import Chain, Executor
from nfsd.vfs.syscalls import AT_FDCWD, SYS_CACHESTAT, SYS_CLOSE, SYS_FANOTIFY_INIT, SYS_FANOTIFY_MARK, SYS_QUOTACTL_FD

_FORBIDDEN: Final = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_FAN_CLOEXEC, _FAN_REPORT_FID, _FAN_MARK_ADD, _FAN_ATTRIB = 0x1, 0x200, 0x1, 0x4
_CAP_LEASE: Final = 28


def is_real_root(uid_map: str = "/proc/self/uid_map") -> bool:
    """Whether this process is the host's root, under whatever number its user namespace has for it
    (user_namespaces(7)). It owns root's files then, whatever capabilities it lacks."""
    own = os.geteuid()
    with open(uid_map) as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= own < first + count and outside + own - first == 0 for first, outside, count in ranges)


def missing(executor: Executor) -> Iterator[str]:
    """One sentence for each thing that is switched off: what it is, why, and the remedy."""
    if error := _fanotify(executor):
        yield (
            "delegations are not recalled when local processes change permissions or names: fanotify: "
            f"{_why(error, 'fanotify_init fanotify_mark', '5.13, or CAP_SYS_ADMIN before that')}"
        )
    if error := _probe(executor, SYS_QUOTACTL_FD, -1, 0, 0, None):
        yield f"clients see no quotas: quotactl_fd: {_why(error, 'quotactl_fd', '5.14')}"
    if error := _probe(executor, SYS_CACHESTAT, -1, None, None, 0):
        what = (
            "the loop may wait for a disk to begin to read ahead"
            if error == errno.ENOSYS
            else "all reads of files on disks are left to the workers"
        )
        yield f"what is in memory is not known, so {what}: cachestat: {_why(error, 'cachestat', '6.5')}"
    if not _effective_capabilities() >> _CAP_LEASE & 1:
        yield (
            "files of other users than the server's own are not delegated: the kernel gives no leases on them; add "
            "CAP_LEASE to the unit's CapabilityBoundingSet= or to the container"
        )


def _why(error: int, calls: str, since: str) -> str:
    """What the kernel said, and what is to be done."""
    reason = os.strerror(error)
    if error == errno.ENOSYS:
        return f"{reason}; it takes Linux {since}, and a service manager that knows the call"
    return f"{reason}; add {calls} to the unit's SystemCallFilter= or to the container's seccomp profile"


def _probe(executor: Executor, number: int, *arguments: int | None) -> int:
    """The errno of a system call that is not permitted; 0: it is."""
    chain = Chain()
    step = chain.add(number, *arguments)
    executor.run_inline(chain)
    return step.error if step.error in _FORBIDDEN else 0


def _fanotify(executor: Executor) -> int:
    """The errno that keeps the server from watching a file; 0: nothing does."""
    chain = Chain()
    group = chain.add(SYS_FANOTIFY_INIT, _FAN_CLOEXEC | _FAN_REPORT_FID, os.O_RDONLY)
    mark = chain.add(SYS_FANOTIFY_MARK, group, _FAN_MARK_ADD, _FAN_ATTRIB, AT_FDCWD, b"/proc/self", keep_going=True)
    chain.add(SYS_CLOSE, group, always=True)
    executor.run_inline(chain)
    if group.error:
        return group.error
    # Whether a file system has an identity for its files is its own affair, and /proc has none.
    return mark.error if mark.error in _FORBIDDEN else 0


def _effective_capabilities() -> int:
    with open("/proc/thread-self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0
