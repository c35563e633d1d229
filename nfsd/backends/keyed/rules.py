"""Who may do what in a store that has modes and owners, but no kernel to check them (POSIX.1-2017 section 4.7).

Owns nothing. None as a credential is the server itself, which may do everything.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from nfsd.backends.simple import New, SetAttributes, SetTo, Status, error
from nfsd.vfs.records import Credential
from nfsd.vfs.types import FileType

READ: Final = os.R_OK
WRITE: Final = os.W_OK
SEARCH: Final = os.X_OK


def is_root(credential: Credential | None) -> bool:
    """Whether nothing is refused."""
    return credential is None or credential.uid == 0


def in_group(credential: Credential, gid: int) -> bool:
    """Whether a caller is in a group."""
    return gid == credential.gid or gid in credential.gids


def granted(credential: Credential | None, status: Status) -> int:
    """Which of READ, WRITE and SEARCH a caller has."""
    every = READ | WRITE | SEARCH
    if credential is None:
        return every
    if credential.uid == 0:
        executable = status.type is FileType.DIR or status.mode & 0o111
        return every if executable else READ | WRITE
    shift = 6 if credential.uid == status.uid else 3 if in_group(credential, status.gid) else 0
    return status.mode >> shift & 7


def check(credential: Credential | None, status: Status, wanted: int) -> None:
    """EACCES for who has not got all that is wanted."""
    if wanted & ~granted(credential, status):
        raise error(errno.EACCES)


def check_sticky(credential: Credential | None, directory: Status, victim: Status) -> None:
    """EPERM for who removes somebody else's file from a directory like /tmp."""
    if credential is None or is_root(credential) or not directory.mode & stat.S_ISVTX:
        return
    if credential.uid not in (directory.uid, victim.uid):
        raise error(errno.EPERM)


def born(credential: Credential, directory: Status, new: New) -> tuple[New, int, int]:
    """What is to be made, with its owner and group."""
    mode, gid = new.mode, credential.gid
    if directory.mode & stat.S_ISGID:
        gid = directory.gid
        if new.type is FileType.DIR:
            mode |= stat.S_ISGID
    if new.type is not FileType.DIR and not is_root(credential) and not in_group(credential, gid):
        mode &= ~stat.S_ISGID
    return new._replace(mode=mode), credential.uid, gid


def check_changes(credential: Credential | None, status: Status, changes: SetAttributes) -> SetAttributes:
    """EPERM, EACCES for who may not set these. Returns what is to be set: set-user-id and set-group-id bits go when the
    owner or the size changes."""
    mode = changes.mode
    if credential is not None and not is_root(credential):
        mine = credential.uid == status.uid
        if mode is not None and not mine:
            raise error(errno.EPERM)
        if changes.uid is not None and (not mine or changes.uid != status.uid):
            raise error(errno.EPERM)
        if changes.gid is not None and not (mine and (changes.gid == status.gid or in_group(credential, changes.gid))):
            raise error(errno.EPERM)
        times = [one for one in (changes.atime, changes.mtime) if one is not None]
        if times and not mine:
            if any(not isinstance(one, SetTo) for one in times):
                raise error(errno.EPERM)
            if changes.size is None:
                check(credential, status, WRITE)
        if mode is not None and mode & stat.S_ISGID and not in_group(credential, status.gid):
            mode &= ~stat.S_ISGID
        if mode is None and (changes.uid, changes.gid, changes.size) != (None, None, None):
            mode = without_set_ids(status)
    if credential is not None and mode is None and (changes.uid, changes.gid) != (None, None):
        mode = without_set_ids(status)  # as chown(2): a program of root's is not made of somebody else's
    return changes if mode == changes.mode else _with_mode(changes, mode)


def without_set_ids(status: Status) -> int | None:
    """The mode of a file that somebody writes to who is not root; None: it stays."""
    if status.type is not FileType.REG or not status.mode & (stat.S_ISUID | stat.S_ISGID):
        return None
    group_too = stat.S_ISGID if status.mode & stat.S_IXGRP else 0
    mode = status.mode & ~(stat.S_ISUID | group_too)
    return None if mode == status.mode else mode


def _with_mode(changes: SetAttributes, mode: int | None) -> SetAttributes:
    return SetAttributes(mode, changes.uid, changes.gid, changes.size, changes.atime, changes.mtime)
