"""Keys of files in CephFS: the inode's number, and the snapshot's that it is of. Owns nothing."""

from __future__ import annotations

import errno
import os
import struct
from typing import Final

from nfsd.backends.cephfs.mounted import DIRECTORY_OF_SNAPSHOTS, NOT_OF_A_SNAPSHOT

_KEY: Final = struct.Struct("=QQ")
SNAPSHOTS_NAME: Final = b".snap"
"""client_snapdir, unless somebody has configured another: then it is a name like any other here."""
NAME_MAX: Final = 255


def _snapshot(key: bytes) -> int:
    number: int = _KEY.unpack(key)[1]
    return number


def is_live(key: bytes) -> bool:
    """Whether a file is of no snapshot, nor a directory of snapshots: so that it can be changed."""
    return _snapshot(key) == NOT_OF_A_SNAPSHOT


def is_in_snapshot(key: bytes) -> bool:
    """Whether a file is a snapshot's, so that nobody can change it."""
    return _snapshot(key) not in (NOT_OF_A_SNAPSHOT, DIRECTORY_OF_SNAPSHOTS)


def is_directory_of_snapshots(key: bytes) -> bool:
    """Whether a directory is a ``.snap``, where directories are snapshots."""
    return _snapshot(key) == DIRECTORY_OF_SNAPSHOTS


def live(key: bytes) -> bytes:
    """The directory that a ``.snap`` is in."""
    return _KEY.pack(_KEY.unpack(key)[0], NOT_OF_A_SNAPSHOT)


def snapshots_of(key: bytes) -> bytes:
    """The ``.snap`` of a directory."""
    return _KEY.pack(_KEY.unpack(key)[0], DIRECTORY_OF_SNAPSHOTS)


def check_changeable(*keys: bytes) -> None:
    """EROFS for files of snapshots, and for directories of snapshots: who administers the cluster makes those."""
    if not all(map(is_live, keys)):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def check_new(name: bytes, *keys: bytes) -> None:
    """That something can have this name there. Every directory has its ``.snap``; the library would make another one,
    which nobody could ever reach."""
    check_name(name)
    check_changeable(*keys)
    if name == SNAPSHOTS_NAME:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))


def check_name(name: bytes) -> None:
    """ENAMETOOLONG, EINVAL for what can be no name."""
    if len(name) > NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    if b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
