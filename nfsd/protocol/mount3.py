"""MOUNT version 3 (RFC 1813 appendix I), under the RFC's names.

Imports :mod:`rpcrdma.xdr`. The linked lists are Python lists; the limits on their lengths are ours.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from rpcrdma.xdr import DEFAULT, array, case, chain, int32, opaque, struct, union

CHAIN_LIMIT: Final = 1 << 16
"""Entries of a list in a reply."""
ARRAY_LIMIT: Final = 64
"""Authentication flavors of one export."""

MNTPATHLEN: Final = 1024
MNTNAMLEN: Final = 255
FHSIZE3: Final = 64
fhandle3 = Annotated[bytes, opaque(64)]
dirpath = Annotated[bytes, opaque(1024)]
name = Annotated[bytes, opaque(255)]


class mountstat3(IntEnum):
    MNT3_OK = 0
    MNT3ERR_PERM = 1
    MNT3ERR_NOENT = 2
    MNT3ERR_IO = 5
    MNT3ERR_ACCES = 13
    MNT3ERR_NOTDIR = 20
    MNT3ERR_INVAL = 22
    MNT3ERR_NAMETOOLONG = 63
    MNT3ERR_NOTSUPP = 10004
    MNT3ERR_SERVERFAULT = 10006


@struct
class mountres3_ok:
    fhandle: fhandle3
    auth_flavors: Annotated[list[int32], array(ARRAY_LIMIT)]


@union(void=DEFAULT)
class mountres3:
    fhs_status: mountstat3
    mountinfo: Annotated[mountres3_ok | None, case(mountstat3.MNT3_OK)] = None


@struct
class mountbody:
    ml_hostname: name
    ml_directory: dirpath


mountlist = Annotated[list[mountbody], chain(CHAIN_LIMIT)]


@struct
class groupnode:
    gr_name: name


groups = Annotated[list[groupnode], chain(CHAIN_LIMIT)]


@struct
class exportnode:
    ex_dir: dirpath
    ex_groups: groups


exports = Annotated[list[exportnode], chain(CHAIN_LIMIT)]

MOUNT_PROGRAM: Final = 100005
MOUNT_V3: Final = 3

MOUNTPROC3_NULL: Final = 0
MOUNTPROC3_MNT: Final = 1
MOUNTPROC3_DUMP: Final = 2
MOUNTPROC3_UMNT: Final = 3
MOUNTPROC3_UMNTALL: Final = 4
MOUNTPROC3_EXPORT: Final = 5
