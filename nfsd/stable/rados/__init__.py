"""Stable storage in a pool of a Ceph cluster, so that it can move with a server's name to another host.

This package imports everywhere; :class:`~nfsd.stable.rados.storage.RadosStorage` can be made only where its extension
was built and the library is installed.
"""

from __future__ import annotations

_REMEDY = "install librados-dev (Debian) and build again, or librados2 where a package was built with it"


def why_not() -> str:
    """Why this installation cannot keep anything in RADOS; '' when it can."""
    try:
        from nfsd.stable.rados import client  # noqa: F401 (its absence is the answer)
    except ImportError as error:
        return f"{error}; {_REMEDY}"
    return ""
