"""Attributes that clients give files. Implemented in ``given.pyx``."""

from nfsd.idnames import IdNames
from nfsd.protocol import nfs4 as p
from nfsd.vfs.types import SetAttributes

def decoded(
    names: IdNames, minor: int, given: p.fattr4
) -> tuple[int, SetAttributes, int | bytes | None, int | bytes | None, bytes | None, tuple[int, int]]:
    """The values of a fattr4: NFS4_OK or the nfsstat4 that keeps them from being set; those that are what they are; the
    owner and the group, an id or a name to be looked up; an ACL (fattr4_acl), if there is one; a mode_masked4."""
