"""NFS_ACL version 3, the side protocol by which NFSv3 clients read and set POSIX ACLs.

No RFC describes it; Solaris brought it about, and Linux's client and server speak it, whose wire format this is. Every
list of entries comes with its length twice: how many entries the ACL has, and how many follow (none when only the count
was asked for). Imports :mod:`rpcrdma.xdr` and NFSv3's types. Nothing in it is DDP-eligible.
"""

from __future__ import annotations

from typing import Annotated, Final

from nfsd.protocol.nfs3_types import nfs_fh3, nfsstat3, post_op_attr
from rpcrdma.xdr import DEFAULT, array, case, struct, uint32, union

NFSACL_PROGRAM: Final = 100227
NFSACL_V3: Final = 3

ACLPROC3_NULL: Final = 0
ACLPROC3_GETACL: Final = 1
ACLPROC3_SETACL: Final = 2

NFS_ACL: Final = 0x0001
"""The ACL."""
NFS_ACLCNT: Final = 0x0002
"""How many entries it has."""
NFS_DFACL: Final = 0x0004
"""The default ACL."""
NFS_DFACLCNT: Final = 0x0008
NFS_ACL_MASK: Final = 0x000F
NFS_ACL_DEFAULT: Final = 0x1000
"""Set in the types of a default ACL's entries."""
NFS_ACL_MAX_ENTRIES: Final = 1024


@struct
class aclent:
    type: uint32
    id: uint32
    perm: uint32


@struct
class secattr:
    aclcnt: uint32
    aclents: Annotated[list[aclent], array(NFS_ACL_MAX_ENTRIES)]
    dfaclcnt: uint32
    dfaclents: Annotated[list[aclent], array(NFS_ACL_MAX_ENTRIES)]


@struct
class GETACL3args:
    fh: nfs_fh3
    mask: uint32


@struct
class GETACL3resok:
    attr: post_op_attr
    mask: uint32
    acl: secattr


@struct
class GETACL3resfail:
    attr: post_op_attr


@union
class GETACL3res:
    status: nfsstat3
    resok: Annotated[GETACL3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[GETACL3resfail | None, DEFAULT] = None


@struct
class SETACL3args:
    fh: nfs_fh3
    mask: uint32
    acl: secattr


@struct
class SETACL3resok:
    attr: post_op_attr


@struct
class SETACL3resfail:
    attr: post_op_attr


@union
class SETACL3res:
    status: nfsstat3
    resok: Annotated[SETACL3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[SETACL3resfail | None, DEFAULT] = None
