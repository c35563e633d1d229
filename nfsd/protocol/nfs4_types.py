"""NFSv4's basic types (RFC 7530 section 2, RFC 8881 section 3), under the names of RFC 7531, 5662 and 7863.

Imports :mod:`rpcrdma.xdr` only. Sizes that the RFCs leave open have the limits below.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from rpcrdma.xdr import DEFAULT, array, case, fixed, int64, opaque, struct, uint32, uint64, union

DATA_LIMIT: Final = 4 << 20
"""Octets of file data in one operation; no more is ever advertised (maxread, maxwrite, session limits)."""
NAME_LIMIT: Final = 1 << 16
"""Octets of a string that decode: far more than a file system takes, which NFS4ERR_NAMETOOLONG tells."""
ATTRIBUTES_LIMIT: Final = 1 << 18
"""Octets of attribute values, an ACL among them."""
BODY_LIMIT: Final = 1 << 16
"""Octets of opaque data for which the RFC gives no bound."""
BITMAP_LIMIT: Final = 64
"""Words of a bitmap; attributes are in the first three."""
PATH_LIMIT: Final = 1024
"""Components of a path name."""
ACL_LIMIT: Final = 8192
"""Entries of an ACL."""
ARRAY_LIMIT: Final = 1024
"""Elements of an array for which the RFC gives no bound."""
CHAIN_LIMIT: Final = 1 << 17
"""Entries of one READDIR reply."""
XATTR_LIMIT: Final = 1 << 20
"""Octets of an extended attribute's value that decode; NFS4ERR_XATTR2BIG tells what the file system takes."""
XATTR_NAMES_LIMIT: Final = 1 << 16
"""Names in one LISTXATTRS reply."""


NFS4_FHSIZE: Final = 128
NFS4_VERIFIER_SIZE: Final = 8
NFS4_OTHER_SIZE: Final = 12
NFS4_OPAQUE_LIMIT: Final = 1024
NFS4_SESSIONID_SIZE: Final = 16
NFS4_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
NFS4_UINT64_MAX: Final = 0xFFFFFFFFFFFFFFFF
NFS4_INT32_MAX: Final = 0x7FFFFFFF
NFS4_UINT32_MAX: Final = 0xFFFFFFFF
NFS4_MAXFILELEN: Final = 0xFFFFFFFFFFFFFFFF
NFS4_MAXFILEOFF: Final = 0xFFFFFFFFFFFFFFFE


class nfs_ftype4(IntEnum):
    NF4REG = 1
    NF4DIR = 2
    NF4BLK = 3
    NF4CHR = 4
    NF4LNK = 5
    NF4SOCK = 6
    NF4FIFO = 7
    NF4ATTRDIR = 8
    NF4NAMEDATTR = 9


attrlist4 = Annotated[bytes, opaque(ATTRIBUTES_LIMIT)]
bitmap4 = Annotated[list[uint32], array(BITMAP_LIMIT)]
changeid4 = uint64
clientid4 = uint64
count4 = uint32
length4 = uint64
mode4 = uint32
nfs_cookie4 = uint64
nfs_fh4 = Annotated[bytes, opaque(128)]
offset4 = uint64
qop4 = uint32
sec_oid4 = Annotated[bytes, opaque(BODY_LIMIT)]
sequenceid4 = uint32
seqid4 = uint32
sessionid4 = Annotated[bytes, fixed(16)]
slotid4 = uint32
utf8string = Annotated[bytes, opaque(NAME_LIMIT)]
utf8str_cis = utf8string
utf8str_cs = utf8string
utf8str_mixed = utf8string
component4 = utf8str_cs
linktext4 = Annotated[bytes, opaque(NAME_LIMIT)]
ascii_REQUIRED4 = utf8string
pathname4 = Annotated[list[component4], array(PATH_LIMIT)]
verifier4 = Annotated[bytes, fixed(8)]
policy4 = uint32


@struct
class nfstime4:
    seconds: int64
    nseconds: uint32


class time_how4(IntEnum):
    SET_TO_SERVER_TIME4 = 0
    SET_TO_CLIENT_TIME4 = 1


@union(void=DEFAULT)
class settime4:
    set_it: time_how4
    time: Annotated[nfstime4 | None, case(time_how4.SET_TO_CLIENT_TIME4)] = None


@struct
class fsid4:
    major: uint64
    minor: uint64


MODE4_SUID: Final = 0x800
MODE4_SGID: Final = 0x400
MODE4_SVTX: Final = 0x200
MODE4_RUSR: Final = 0x100
MODE4_WUSR: Final = 0x080
MODE4_XUSR: Final = 0x040
MODE4_RGRP: Final = 0x020
MODE4_WGRP: Final = 0x010
MODE4_XGRP: Final = 0x008
MODE4_ROTH: Final = 0x004
MODE4_WOTH: Final = 0x002
MODE4_XOTH: Final = 0x001


@struct
class mode_masked4:
    mm_value_to_set: mode4
    mm_mask_bits: mode4


@struct
class specdata4:
    specdata1: uint32
    specdata2: uint32


FH4_PERSISTENT: Final = 0x00000000
FH4_NOEXPIRE_WITH_OPEN: Final = 0x00000001
FH4_VOLATILE_ANY: Final = 0x00000002
FH4_VOL_MIGRATION: Final = 0x00000004
FH4_VOL_RENAME: Final = 0x00000008


@struct
class netaddr4:
    na_r_netid: Annotated[bytes, opaque(BODY_LIMIT)]
    na_r_addr: Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class nfs_impl_id4:
    nii_domain: utf8str_cis
    nii_name: utf8str_cs
    nii_date: nfstime4


@struct
class stateid4:
    seqid: uint32
    other: Annotated[bytes, fixed(12)]


class netloc_type4(IntEnum):
    NL4_NAME = 1
    NL4_URL = 2
    NL4_NETADDR = 3


@union
class netloc4:
    nl_type: netloc_type4
    nl_name: Annotated[utf8str_cis | None, case(netloc_type4.NL4_NAME)] = None
    nl_url: Annotated[utf8str_cis | None, case(netloc_type4.NL4_URL)] = None
    nl_addr: Annotated[netaddr4 | None, case(netloc_type4.NL4_NETADDR)] = None


@struct
class change_info4:
    atomic: bool
    before: changeid4
    after: changeid4


clientaddr4 = netaddr4


@struct
class cb_client4:
    cb_program: uint32
    cb_location: netaddr4


@struct
class nfs_client_id4:
    verifier: verifier4
    id: Annotated[bytes, opaque(1024)]


@struct
class client_owner4:
    co_verifier: verifier4
    co_ownerid: Annotated[bytes, opaque(1024)]


@struct
class server_owner4:
    so_minor_id: uint64
    so_major_id: Annotated[bytes, opaque(1024)]


@struct
class state_owner4:
    clientid: clientid4
    owner: Annotated[bytes, opaque(1024)]


open_owner4 = state_owner4
lock_owner4 = state_owner4


class nfs_lock_type4(IntEnum):
    READ_LT = 1
    WRITE_LT = 2
    READW_LT = 3
    WRITEW_LT = 4
