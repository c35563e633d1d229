"""The state directory: nobody but the server may read it or put anything into it.

Owns the directory's checks; imports nothing of the project. With the handle key one can make a handle of any file. With
write access one can make the server believe anything about clients, or write to where a symbolic link leads.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat

_log = logging.getLogger(__name__)

_SECRETS = ("handle.key", "server-id", "holder")
_ADVICE = (
    "; with it handles of any exported file can be made: if somebody may have read it, remove it while the server is "
    "stopped, and have clients mount again"
)


class StateDirError(Exception):
    """The directory cannot be used; the text says why, and what to do."""


def take(path: str) -> int:
    """Make the directory if it is missing, see that it is the server's alone, and lock it. Returns the descriptor that
    holds the lock. Raises StateDirError, OSError."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_purpose(directory, path)
        _check(directory, path, 0o700)
        for name in _SECRETS:
            _check_file(directory, path, name)
        # Not through a link: what it led to would be made, or locked.
        lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StateDirError(f"{path} is in use by another rdma-nfsd") from None
    return lock


def examine(path: str) -> bool:
    """See whether :func:`take` could have it, without changing anything; whether a server has it now. Raises
    StateDirError, OSError."""
    existing = path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing) or "."
    directory = os.open(existing, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
            raise StateDirError(
                f"{existing} may not be written by uid {os.geteuid()}; let the server's user write there, or name "
                "another directory"
            )
        if existing != path:
            return False
        _check_purpose(directory, path)
        _check(directory, path, 0o700, mend=False)
        for name in _SECRETS:
            _check_file(directory, path, name, mend=False)
        return _is_locked(directory)
    finally:
        os.close(directory)


def _is_locked(directory: int) -> bool:
    """Whether a server has it, asked without taking the lock, which could keep one from starting (proc_locks(5))."""
    try:
        lock = os.stat("lock", dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    name = f" {os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino} "
    with open("/proc/locks") as locks:
        return any("FLOCK" in line and name in line for line in locks)


def _check_purpose(directory: int, path: str) -> None:
    """See that what others will be locked out of is not theirs: a name that is wrong, or a link, may lead to /etc."""
    names = set(os.listdir(directory)) - {"lost+found"}  # of a file system of its own
    if names and _SECRETS[0] not in names and os.fstat(directory).st_mode & 0o055:
        raise StateDirError(
            f"{path} has other files in it, which only the server could read from then on; name an empty directory, or "
            "one that does not exist"
        )


def _check_file(directory: int, path: str, name: str, *, mend: bool = True) -> None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return
    try:
        shown = os.path.join(path, name)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StateDirError(f"{shown} is no file; move it away")
        _check(descriptor, shown, 0o600, _ADVICE if name == "handle.key" else "", mend=mend)
    finally:
        os.close(descriptor)


def _check(descriptor: int, shown: str, mode: int, advice: str = "", *, mend: bool = True) -> None:
    """See that this is the server's own, and that no others have a part in it."""
    status = os.fstat(descriptor)
    if status.st_uid not in (os.geteuid(), 0):
        raise StateDirError(
            f"{shown} belongs to uid {status.st_uid}, who could have put anything there; look at it, then chown it "
            f"to uid {os.geteuid()}, or name another directory"
        )
    if status.st_mode & 0o022:
        raise StateDirError(
            f"{shown} may be written by others than its owner (mode {stat.S_IMODE(status.st_mode):04o}), who "
            f"could have put anything there; look at it, then chmod {mode:o}"
        )
    if status.st_mode & 0o055 and mend:
        _log.warning(
            "%s could be read by others (mode %04o), and no longer can%s", shown, status.st_mode & 0o7777, advice
        )
        os.fchmod(descriptor, mode)


def identity(path: str) -> bytes:
    """Who the server is to NFSv4 clients, the same over restarts (RFC 8881 section 2.10.4). Raises OSError."""
    return _made_once(path, "server-id")


def holder(path: str) -> bytes:
    """Who this is among the hosts that may have the server's records. It never leaves the directory. Raises OSError."""
    return _made_once(path, "holder")


def keep(path: str, name: str, octets: bytes) -> None:
    """Have this in a file of the directory, on the disk when this returns. Raises OSError."""
    path = os.path.join(path, name)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(octets)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def _made_once(path: str, name: str) -> bytes:
    try:
        with open(os.path.join(path, name), "rb") as file:
            found = file.read(64)
        if len(found) == 32:
            return found
    except FileNotFoundError:
        pass
    made = os.urandom(16).hex().encode()
    keep(path, name, made)
    return made
