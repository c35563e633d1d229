"""Errors of a server as Python's exceptions. Owns the tables from NFS's status
codes to errno; imports the protocols' declarations.

Every error of a file is an OSError of the class that Python has for its errno (FileNotFoundError, PermissionError…),
with the server's own word for it in a note. RFC 1813 section 2.6, RFC 8881 section 15.1.
"""

from __future__ import annotations

import errno
import os
from enum import IntEnum
from typing import Final

from nfsd.protocol.nfs3_types import nfsstat3
from nfsd.protocol.nfs4_errors import nfsstat4

_BY_NAME: Final = {
    "PERM": errno.EPERM, "NOENT": errno.ENOENT, "IO": errno.EIO, "NXIO": errno.ENXIO, "ACCES": errno.EACCES,
    "ACCESS": errno.EACCES, "EXIST": errno.EEXIST, "XDEV": errno.EXDEV, "NODEV": errno.ENODEV, "NOTDIR": errno.ENOTDIR,
    "ISDIR": errno.EISDIR, "INVAL": errno.EINVAL, "FBIG": errno.EFBIG, "NOSPC": errno.ENOSPC, "ROFS": errno.EROFS,
    "MLINK": errno.EMLINK, "NAMETOOLONG": errno.ENAMETOOLONG, "NOTEMPTY": errno.ENOTEMPTY, "DQUOT": errno.EDQUOT,
    "STALE": errno.ESTALE, "FHEXPIRED": errno.ESTALE, "BADHANDLE": errno.ESTALE, "REMOTE": errno.EREMOTE,
    "NOTSUPP": errno.EOPNOTSUPP, "ATTRNOTSUPP": errno.EOPNOTSUPP, "BADTYPE": errno.EINVAL,
    "SERVERFAULT": errno.EREMOTEIO, "RESOURCE": errno.EREMOTEIO,
    "JUKEBOX": errno.ETIMEDOUT, "DELAY": errno.ETIMEDOUT, "GRACE": errno.ETIMEDOUT,
    "SYMLINK": errno.ELOOP, "WRONG_TYPE": errno.EINVAL, "LOCKED": errno.EAGAIN, "DENIED": errno.EAGAIN,
    "SHARE_DENIED": errno.EACCES, "FILE_OPEN": errno.EBUSY, "OPENMODE": errno.EBADF, "MOVED": errno.EREMOTE,
    "WRONGSEC": errno.EACCES, "BADCHAR": errno.EILSEQ, "BADNAME": errno.EINVAL, "BADOWNER": errno.EINVAL,
    "EXPIRED": errno.EIO, "BAD_STATEID": errno.EIO, "STALE_STATEID": errno.EIO, "ADMIN_REVOKED": errno.EIO,
}  # fmt: skip
"""By the status's name without what it begins with; all others are EREMOTEIO."""

_REMEDIES: Final = {
    "GRACE": "the server has been restarted, and waits for its earlier clients; try again in a minute or two",
    "DELAY": "the server is still busy with the file; try again later",
    "JUKEBOX": "the server is still busy with the file; try again later",
    "MOVED": "the server refers to another one for this directory; name that server",
    "WRONGSEC": "the export demands another kind of authentication than AUTH_SYS",
}


class NfsClientError(Exception):
    """The server or the way to it cannot be used; the text says why, and what to do about it."""


class Untold(OSError):
    """The server has left out of a file's attributes what nothing can be done without."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EREMOTEIO, f"the server does not say {what}")


def describe(status: IntEnum | int, version: int) -> str:
    """The protocol's name for a status."""
    try:
        return (nfsstat3 if version == 3 else nfsstat4)(status).name
    except ValueError:
        return f"status {int(status)}"


def os_error(status: IntEnum | int, version: int, path: str | None = None) -> OSError:
    """The OSError for a status of NFSv3 or NFSv4, not raised; ``path`` is what the operation was about."""
    name = describe(status, version)
    kind = name.removeprefix("NFS3ERR_").removeprefix("NFS4ERR_")
    number = _BY_NAME.get(kind, errno.EREMOTEIO)
    text = os.strerror(number)
    if number == errno.EREMOTEIO:
        text += f" ({name})"
    if kind in _REMEDIES:
        text += f": {_REMEDIES[kind]}"
    error = OSError(number, text) if path is None else OSError(number, text, path)
    error.add_note(name)
    return error
