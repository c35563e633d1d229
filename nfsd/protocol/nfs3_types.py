"""NFSv3's basic types (RFC 1813 section 2), under the RFC's names.

Imports :mod:`rpcrdma.xdr` only. ``post_op_attr`` and the like, unions of TRUE and nothing, are ``T | None``: the same
octets. Sizes that the RFC leaves open have the limits below.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from rpcrdma.xdr import DEFAULT, case, fixed, opaque, struct, uint32, uint64, union

DATA_LIMIT: Final = 4 << 20
"""Octets of file data in one call or reply; no more is ever advertised (FSINFO)."""
NAME_LIMIT: Final = 1 << 16
"""Octets of a name or a link's text that decode: far more than a file system takes, which NFS3ERR_NAMETOOLONG tells."""
CHAIN_LIMIT: Final = 1 << 17
"""Entries of one READDIR reply."""

NFS3_FHSIZE: Final = 64
NFS3_COOKIEVERFSIZE: Final = 8
NFS3_CREATEVERFSIZE: Final = 8
NFS3_WRITEVERFSIZE: Final = 8
filename3 = Annotated[bytes, opaque(NAME_LIMIT)]
nfspath3 = Annotated[bytes, opaque(NAME_LIMIT)]
fileid3 = uint64
cookie3 = uint64
cookieverf3 = Annotated[bytes, fixed(8)]
createverf3 = Annotated[bytes, fixed(8)]
writeverf3 = Annotated[bytes, fixed(8)]
uid3 = uint32
gid3 = uint32
size3 = uint64
offset3 = uint64
mode3 = uint32
count3 = uint32


class nfsstat3(IntEnum):
    NFS3_OK = 0
    NFS3ERR_PERM = 1
    NFS3ERR_NOENT = 2
    NFS3ERR_IO = 5
    NFS3ERR_NXIO = 6
    NFS3ERR_ACCES = 13
    NFS3ERR_EXIST = 17
    NFS3ERR_XDEV = 18
    NFS3ERR_NODEV = 19
    NFS3ERR_NOTDIR = 20
    NFS3ERR_ISDIR = 21
    NFS3ERR_INVAL = 22
    NFS3ERR_FBIG = 27
    NFS3ERR_NOSPC = 28
    NFS3ERR_ROFS = 30
    NFS3ERR_MLINK = 31
    NFS3ERR_NAMETOOLONG = 63
    NFS3ERR_NOTEMPTY = 66
    NFS3ERR_DQUOT = 69
    NFS3ERR_STALE = 70
    NFS3ERR_REMOTE = 71
    NFS3ERR_BADHANDLE = 10001
    NFS3ERR_NOT_SYNC = 10002
    NFS3ERR_BAD_COOKIE = 10003
    NFS3ERR_NOTSUPP = 10004
    NFS3ERR_TOOSMALL = 10005
    NFS3ERR_SERVERFAULT = 10006
    NFS3ERR_BADTYPE = 10007
    NFS3ERR_JUKEBOX = 10008


NFS3_OK: Final = nfsstat3.NFS3_OK
NFS3ERR_PERM: Final = nfsstat3.NFS3ERR_PERM
NFS3ERR_NOENT: Final = nfsstat3.NFS3ERR_NOENT
NFS3ERR_IO: Final = nfsstat3.NFS3ERR_IO
NFS3ERR_NXIO: Final = nfsstat3.NFS3ERR_NXIO
NFS3ERR_ACCES: Final = nfsstat3.NFS3ERR_ACCES
NFS3ERR_EXIST: Final = nfsstat3.NFS3ERR_EXIST
NFS3ERR_XDEV: Final = nfsstat3.NFS3ERR_XDEV
NFS3ERR_NODEV: Final = nfsstat3.NFS3ERR_NODEV
NFS3ERR_NOTDIR: Final = nfsstat3.NFS3ERR_NOTDIR
NFS3ERR_ISDIR: Final = nfsstat3.NFS3ERR_ISDIR
NFS3ERR_INVAL: Final = nfsstat3.NFS3ERR_INVAL
NFS3ERR_FBIG: Final = nfsstat3.NFS3ERR_FBIG
NFS3ERR_NOSPC: Final = nfsstat3.NFS3ERR_NOSPC
NFS3ERR_ROFS: Final = nfsstat3.NFS3ERR_ROFS
NFS3ERR_MLINK: Final = nfsstat3.NFS3ERR_MLINK
NFS3ERR_NAMETOOLONG: Final = nfsstat3.NFS3ERR_NAMETOOLONG
NFS3ERR_NOTEMPTY: Final = nfsstat3.NFS3ERR_NOTEMPTY
NFS3ERR_DQUOT: Final = nfsstat3.NFS3ERR_DQUOT
NFS3ERR_STALE: Final = nfsstat3.NFS3ERR_STALE
NFS3ERR_REMOTE: Final = nfsstat3.NFS3ERR_REMOTE
NFS3ERR_BADHANDLE: Final = nfsstat3.NFS3ERR_BADHANDLE
NFS3ERR_NOT_SYNC: Final = nfsstat3.NFS3ERR_NOT_SYNC
NFS3ERR_BAD_COOKIE: Final = nfsstat3.NFS3ERR_BAD_COOKIE
NFS3ERR_NOTSUPP: Final = nfsstat3.NFS3ERR_NOTSUPP
NFS3ERR_TOOSMALL: Final = nfsstat3.NFS3ERR_TOOSMALL
NFS3ERR_SERVERFAULT: Final = nfsstat3.NFS3ERR_SERVERFAULT
NFS3ERR_BADTYPE: Final = nfsstat3.NFS3ERR_BADTYPE
NFS3ERR_JUKEBOX: Final = nfsstat3.NFS3ERR_JUKEBOX


class ftype3(IntEnum):
    NF3REG = 1
    NF3DIR = 2
    NF3BLK = 3
    NF3CHR = 4
    NF3LNK = 5
    NF3SOCK = 6
    NF3FIFO = 7


@struct
class specdata3:
    specdata1: uint32
    specdata2: uint32


@struct
class nfs_fh3:
    data: Annotated[bytes, opaque(64)]


@struct
class nfstime3:
    seconds: uint32
    nseconds: uint32


@struct
class fattr3:
    type: ftype3
    mode: mode3
    nlink: uint32
    uid: uid3
    gid: gid3
    size: size3
    used: size3
    rdev: specdata3
    fsid: uint64
    fileid: fileid3
    atime: nfstime3
    mtime: nfstime3
    ctime: nfstime3


post_op_attr = fattr3 | None


@struct
class wcc_attr:
    size: size3
    mtime: nfstime3
    ctime: nfstime3


pre_op_attr = wcc_attr | None


@struct
class wcc_data:
    before: pre_op_attr
    after: post_op_attr


post_op_fh3 = nfs_fh3 | None


class time_how(IntEnum):
    DONT_CHANGE = 0
    SET_TO_SERVER_TIME = 1
    SET_TO_CLIENT_TIME = 2


set_mode3 = mode3 | None
set_uid3 = uid3 | None
set_gid3 = gid3 | None
set_size3 = size3 | None


@union(void=DEFAULT)
class set_atime:
    set_it: time_how
    atime: Annotated[nfstime3 | None, case(time_how.SET_TO_CLIENT_TIME)] = None


@union(void=DEFAULT)
class set_mtime:
    set_it: time_how
    mtime: Annotated[nfstime3 | None, case(time_how.SET_TO_CLIENT_TIME)] = None


@struct
class sattr3:
    mode: set_mode3
    uid: set_uid3
    gid: set_gid3
    size: set_size3
    atime: set_atime
    mtime: set_mtime


@struct
class diropargs3:
    dir: nfs_fh3
    name: filename3
