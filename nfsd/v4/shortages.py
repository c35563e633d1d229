"""What a client is told when there is no place for one more descriptor. Owns :func:`shortage_told`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.vfs.service import FileService


@contextlib.contextmanager
def shortage_told(service: FileService, host: str, minor: int, status: int) -> Iterator[None]:
    """A host that holds as many files open as it may is not told to come again (EMFILE, hence DELAY): it would do so
    for ever. It gets ``status``, one that the operation may have; in v4.0 there is RESOURCE for this."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EMFILE and service.shares.is_held(host):
            raise Nfs4Error(status if minor else p.NFS4ERR_RESOURCE, str(error)) from error
        raise
