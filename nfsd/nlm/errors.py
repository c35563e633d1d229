"""What goes wrong as nlm4_stats (RFC 1813 section 6.1.1): one function. Imports the declarations and the errors
below."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from nfsd.protocol import nfs4 as codes
from nfsd.protocol.nlm4 import nlm4_stats
from nfsd.state import Nfs4Error
from nfsd.v3.errors import EXPECTED as EXPECTED3
from nfsd.vfs.types import BadHandle
from rpcrdma.memory import OutOfMemory

EXPECTED: Final = (Nfs4Error, *EXPECTED3)
"""What a procedure may raise and answer with a status."""

_STATE: Final[Mapping[int, nlm4_stats]] = {
    codes.NFS4ERR_DENIED: nlm4_stats.NLM4_DENIED,
    codes.NFS4ERR_SHARE_DENIED: nlm4_stats.NLM4_DENIED,
    codes.NFS4ERR_RECLAIM_CONFLICT: nlm4_stats.NLM4_DENIED,
    codes.NFS4ERR_DEADLOCK: nlm4_stats.NLM4_DEADLCK,
    codes.NFS4ERR_GRACE: nlm4_stats.NLM4_DENIED_GRACE_PERIOD,
    # A reclaim outside of the grace period, or of what is not on record: as Linux's server answers it.
    codes.NFS4ERR_NO_GRACE: nlm4_stats.NLM4_DENIED_GRACE_PERIOD,
    codes.NFS4ERR_RESOURCE: nlm4_stats.NLM4_DENIED_NOLOCKS,
    codes.NFS4ERR_SERVERFAULT: nlm4_stats.NLM4_DENIED_NOLOCKS,
    codes.NFS4ERR_NOSPC: nlm4_stats.NLM4_DENIED_NOLOCKS,
    codes.NFS4ERR_INVAL: nlm4_stats.NLM4_FBIG,
}
_ERRNO: Final = {
    errno.ESTALE: nlm4_stats.NLM4_STALE_FH,
    errno.EROFS: nlm4_stats.NLM4_ROFS,
    # The server's own descriptor could only be opened for reading: nobody can have the file open for writing.
    errno.EBADF: nlm4_stats.NLM4_ROFS,
    errno.EFBIG: nlm4_stats.NLM4_FBIG,
    errno.EOVERFLOW: nlm4_stats.NLM4_FBIG,
    errno.ENOLCK: nlm4_stats.NLM4_DENIED_NOLOCKS,
    errno.ENOMEM: nlm4_stats.NLM4_DENIED_NOLOCKS,
    errno.EMFILE: nlm4_stats.NLM4_DENIED_NOLOCKS,
    errno.ENFILE: nlm4_stats.NLM4_DENIED_NOLOCKS,
}


def status_of(error: BaseException) -> nlm4_stats:
    """The status for one of :data:`EXPECTED`."""
    if isinstance(error, Nfs4Error):
        return _STATE.get(error.status, nlm4_stats.NLM4_FAILED)
    if isinstance(error, BadHandle):
        return nlm4_stats.NLM4_STALE_FH
    if isinstance(error, OutOfMemory):
        return nlm4_stats.NLM4_DENIED_NOLOCKS
    if isinstance(error, OSError):
        return _ERRNO.get(error.errno or 0, nlm4_stats.NLM4_FAILED)
    return nlm4_stats.NLM4_FAILED
