"""From errno, and what else operations raise, to nfsstat4: the one table (RFC 7530 section 13, RFC 8881 section 15)."""

from __future__ import annotations

import errno

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.settable import AttributeError4
from nfsd.vfs.types import BadHandle, CrossingRefused
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import OutOfMemory
from rpcrdma.rpc.program import Transport
from rpcrdma.xdr import XdrError

_log = limited_logger(__name__)
EXPECTED = (Nfs4Error, OSError, BadHandle, AttributeError4, XdrError, CrossingRefused, OutOfMemory)
"""What operations raise for a failure to be told; everything else is the server's own."""

_STATUS: dict[int, int] = {
    errno.EPERM: p.NFS4ERR_PERM,
    errno.ENOENT: p.NFS4ERR_NOENT,
    errno.EIO: p.NFS4ERR_IO,
    errno.ENXIO: p.NFS4ERR_NXIO,
    errno.EACCES: p.NFS4ERR_ACCESS,
    errno.EEXIST: p.NFS4ERR_EXIST,
    errno.EXDEV: p.NFS4ERR_XDEV,
    errno.ENOTDIR: p.NFS4ERR_NOTDIR,
    errno.EISDIR: p.NFS4ERR_ISDIR,
    errno.EINVAL: p.NFS4ERR_INVAL,
    errno.EFBIG: p.NFS4ERR_FBIG,
    errno.ENOSPC: p.NFS4ERR_NOSPC,
    errno.EROFS: p.NFS4ERR_ROFS,
    errno.EMLINK: p.NFS4ERR_MLINK,
    errno.ENAMETOOLONG: p.NFS4ERR_NAMETOOLONG,
    errno.ENOTEMPTY: p.NFS4ERR_NOTEMPTY,
    errno.EDQUOT: p.NFS4ERR_DQUOT,
    errno.ESTALE: p.NFS4ERR_STALE,
    errno.ELOOP: p.NFS4ERR_SYMLINK,
    errno.EOPNOTSUPP: p.NFS4ERR_NOTSUPP,
    errno.ENOSYS: p.NFS4ERR_NOTSUPP,
    errno.EBUSY: p.NFS4ERR_FILE_OPEN,
    errno.ETXTBSY: p.NFS4ERR_FILE_OPEN,
    errno.EOVERFLOW: p.NFS4ERR_FBIG,
    # Shortages that pass: the client tries again.
    errno.EAGAIN: p.NFS4ERR_DELAY,
    errno.ENOMEM: p.NFS4ERR_DELAY,
    errno.EMFILE: p.NFS4ERR_DELAY,
    errno.ENFILE: p.NFS4ERR_DELAY,
    errno.ETIMEDOUT: p.NFS4ERR_DELAY,
}


def status_of(error: OSError) -> int:
    """The nfsstat4 of a file system's error; SERVERFAULT for one that no protocol foresaw."""
    return _STATUS.get(error.errno or 0, p.NFS4ERR_SERVERFAULT)


def failure_of(error: Exception) -> int:
    """The nfsstat4 of what operations raise."""
    if isinstance(error, Nfs4Error | AttributeError4):
        return error.status
    if isinstance(error, OSError):
        return status_of(error)
    if isinstance(error, BadHandle):
        return p.NFS4ERR_BADHANDLE
    if isinstance(error, CrossingRefused):
        return p.NFS4ERR_ACCESS
    if isinstance(error, OutOfMemory):
        return p.NFS4ERR_DELAY  # buffers come back as other calls end
    return p.NFS4ERR_BADXDR


def told(error: BaseException, transport: Transport) -> int:
    """The nfsstat4 of what an errand has raised. What no operation raises is logged, and SERVERFAULT."""
    if isinstance(error, EXPECTED):
        return failure_of(error)
    _log.error("an operation for %s failed", transport.peer_address, exc_info=error)
    return p.NFS4ERR_SERVERFAULT
