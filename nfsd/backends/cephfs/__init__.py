"""CephFS as an export, by Ceph's own client library, without a mount of the kernel's.

This package imports everywhere; :class:`~nfsd.backends.cephfs.store.CephStore` can be made only where its extension was
built and the library is installed.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nfsd.backends.cephfs.store import CephStore

_REMEDY = "install libcephfs-dev (Debian) and build again, or libcephfs2 where a package was built with it"


def why_not() -> str:
    """Why no CephFS can be served by this installation; '' when it can."""
    try:
        from nfsd.backends.cephfs import client  # noqa: F401 (its absence is the answer)
    except ImportError as error:
        return f"{error}; {_REMEDY}"
    return ""


def make_store(**options: Any) -> CephStore:
    """The store of an export with ``backend: cephfs``. Waits for the cluster. Raises OSError where there is none;
    TypeError or ValueError for what is wrong with the options."""
    missing = why_not()
    if missing:
        raise OSError(errno.ENODEV, f"CephFS cannot be served: {missing}")
    from nfsd.backends.cephfs.store import CephStore

    return CephStore(**options)
