"""Errors of the file service as nfsstat3 (RFC 1813 sections 2.5 and 2.6): one table, and the procedures' exceptions.

Owns the table; imports the declarations, the VFS's vocabulary and the buffer pool's exception. The ERRORS lists of
RFC 1813 are guides, not limits (section 3), so an errno that has an nfsstat3 of its own keeps it wherever it turns up.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from nfsd.protocol.nfs3 import nfsstat3
from nfsd.vfs.types import BadHandle, CrossingRefused
from rpcrdma.memory import OutOfMemory


class Nfs3Error(Exception):
    """A procedure ends with this status, decided by NFS itself and not by the file system."""

    def __init__(self, status: nfsstat3) -> None:
        super().__init__(status)
        self.status = status


EXPECTED: Final = (Nfs3Error, OSError, BadHandle, CrossingRefused, OutOfMemory)
"""What a procedure may raise and answer with a status. Anything else is a bug of ours and goes to the dispatcher."""

STATUS: Final[Mapping[int, nfsstat3]] = {
    errno.EPERM: nfsstat3.NFS3ERR_PERM,
    errno.ENOENT: nfsstat3.NFS3ERR_NOENT,
    errno.EIO: nfsstat3.NFS3ERR_IO,
    errno.EUCLEAN: nfsstat3.NFS3ERR_IO,
    errno.EBADMSG: nfsstat3.NFS3ERR_IO,
    errno.ENXIO: nfsstat3.NFS3ERR_NXIO,
    errno.EACCES: nfsstat3.NFS3ERR_ACCES,
    # A name that is mounted on cannot be removed or renamed; nfsstat3 has nothing closer (so does Linux's server).
    errno.EBUSY: nfsstat3.NFS3ERR_ACCES,
    errno.ETXTBSY: nfsstat3.NFS3ERR_ACCES,
    errno.EEXIST: nfsstat3.NFS3ERR_EXIST,
    errno.EXDEV: nfsstat3.NFS3ERR_XDEV,
    errno.ENODEV: nfsstat3.NFS3ERR_NODEV,
    errno.ENOTDIR: nfsstat3.NFS3ERR_NOTDIR,
    errno.EISDIR: nfsstat3.NFS3ERR_ISDIR,
    errno.EINVAL: nfsstat3.NFS3ERR_INVAL,
    errno.ELOOP: nfsstat3.NFS3ERR_INVAL,
    errno.EOVERFLOW: nfsstat3.NFS3ERR_INVAL,
    errno.EFBIG: nfsstat3.NFS3ERR_FBIG,
    errno.E2BIG: nfsstat3.NFS3ERR_FBIG,
    errno.ENOSPC: nfsstat3.NFS3ERR_NOSPC,
    errno.EROFS: nfsstat3.NFS3ERR_ROFS,
    errno.EMLINK: nfsstat3.NFS3ERR_MLINK,
    errno.ENAMETOOLONG: nfsstat3.NFS3ERR_NAMETOOLONG,
    errno.ENOTEMPTY: nfsstat3.NFS3ERR_NOTEMPTY,
    errno.EDQUOT: nfsstat3.NFS3ERR_DQUOT,
    errno.ESTALE: nfsstat3.NFS3ERR_STALE,
    errno.EBADF: nfsstat3.NFS3ERR_STALE,
    errno.EREMOTE: nfsstat3.NFS3ERR_REMOTE,
    errno.EOPNOTSUPP: nfsstat3.NFS3ERR_NOTSUPP,
    errno.ENOSYS: nfsstat3.NFS3ERR_NOTSUPP,
    # What may well succeed when the client comes again (RFC 1813 section 2.6, NFS3ERR_JUKEBOX).
    errno.EAGAIN: nfsstat3.NFS3ERR_JUKEBOX,
    errno.ETIMEDOUT: nfsstat3.NFS3ERR_JUKEBOX,
    errno.ENOMEM: nfsstat3.NFS3ERR_JUKEBOX,
    errno.ENOBUFS: nfsstat3.NFS3ERR_JUKEBOX,
    errno.EMFILE: nfsstat3.NFS3ERR_JUKEBOX,
    errno.ENFILE: nfsstat3.NFS3ERR_JUKEBOX,
}

NO_EXCEPTIONS: Final[Mapping[int, nfsstat3]] = {}

DATA_EXCEPTIONS: Final[Mapping[int, nfsstat3]] = {
    # RFC 1813 sections 3.3.6 and 3.3.7, IMPLEMENTATION: not a regular file is NFS3ERR_INVAL, never NFS3ERR_ISDIR.
    errno.EISDIR: nfsstat3.NFS3ERR_INVAL,
    # A descriptor's view of a device without a driver, or of a FIFO without a reader: no regular file either.
    errno.ENODEV: nfsstat3.NFS3ERR_INVAL,
}

DIRECTORY_EXCEPTIONS: Final[Mapping[int, nfsstat3]] = {
    # The file service's word for a cookie that it did not give out.
    errno.EINVAL: nfsstat3.NFS3ERR_BAD_COOKIE,
}


def status_of(error: BaseException, exceptions: Mapping[int, nfsstat3] = NO_EXCEPTIONS) -> nfsstat3:
    """The status for one of :data:`EXPECTED`; ``exceptions`` go before the table.

    An errno in neither is NFS3ERR_SERVERFAULT, as section 2.6 defines it."""
    if isinstance(error, Nfs3Error):
        return error.status
    if isinstance(error, OSError):
        number = error.errno or 0
        return exceptions.get(number) or STATUS.get(number, nfsstat3.NFS3ERR_SERVERFAULT)
    if isinstance(error, BadHandle):
        return nfsstat3.NFS3ERR_BADHANDLE
    if isinstance(error, CrossingRefused):
        return nfsstat3.NFS3ERR_ACCES
    return nfsstat3.NFS3ERR_JUKEBOX
