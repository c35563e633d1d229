"""What a component4 may be (RFC 7530 section 12.4, RFC 8881 section 14.5)."""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error

NAME_MAX = 255
"""Octets of a name in the pseudo file system, as its MAXNAME attribute says."""


def check_name(name: bytes) -> None:
    """Refuse what is no name of one directory entry. Names that are not UTF-8 are taken as they are: a file that is
    already there must be reachable, and the Linux server does the same."""
    if not name:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    if name in (b".", b".."):
        raise Nfs4Error(p.NFS4ERR_BADNAME)
    if b"/" in name or b"\0" in name:
        raise Nfs4Error(p.NFS4ERR_BADCHAR)
