"""NFSv3 procedures on directories and file systems (RFC 1813 sections 3.3.16 to 3.3.21), under the RFC's names.

Imports :mod:`rpcrdma.xdr` and :mod:`nfsd.protocol.nfs3_types`. RFC 8267 section 3 has nothing eligible for DDP here.
"""

from __future__ import annotations

from typing import Annotated, Final

from nfsd.protocol.nfs3_types import (
    CHAIN_LIMIT,
    cookie3,
    cookieverf3,
    count3,
    fileid3,
    filename3,
    nfs_fh3,
    nfsstat3,
    nfstime3,
    offset3,
    post_op_attr,
    post_op_fh3,
    size3,
    wcc_data,
    writeverf3,
)
from rpcrdma.xdr import DEFAULT, case, chain, struct, uint32, union


@struct
class READDIR3args:
    dir: nfs_fh3
    cookie: cookie3
    cookieverf: cookieverf3
    count: count3


@struct
class entry3:
    fileid: fileid3
    name: filename3
    cookie: cookie3


@struct
class dirlist3:
    entries: Annotated[list[entry3], chain(CHAIN_LIMIT)]
    eof: bool


@struct
class READDIR3resok:
    dir_attributes: post_op_attr
    cookieverf: cookieverf3
    reply: dirlist3


@struct
class READDIR3resfail:
    dir_attributes: post_op_attr


@union
class READDIR3res:
    status: nfsstat3
    resok: Annotated[READDIR3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[READDIR3resfail | None, DEFAULT] = None


@struct
class READDIRPLUS3args:
    dir: nfs_fh3
    cookie: cookie3
    cookieverf: cookieverf3
    dircount: count3
    maxcount: count3


@struct
class entryplus3:
    fileid: fileid3
    name: filename3
    cookie: cookie3
    name_attributes: post_op_attr
    name_handle: post_op_fh3


@struct
class dirlistplus3:
    entries: Annotated[list[entryplus3], chain(CHAIN_LIMIT)]
    eof: bool


@struct
class READDIRPLUS3resok:
    dir_attributes: post_op_attr
    cookieverf: cookieverf3
    reply: dirlistplus3


@struct
class READDIRPLUS3resfail:
    dir_attributes: post_op_attr


@union
class READDIRPLUS3res:
    status: nfsstat3
    resok: Annotated[READDIRPLUS3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[READDIRPLUS3resfail | None, DEFAULT] = None


@struct
class FSSTAT3args:
    fsroot: nfs_fh3


@struct
class FSSTAT3resok:
    obj_attributes: post_op_attr
    tbytes: size3
    fbytes: size3
    abytes: size3
    tfiles: size3
    ffiles: size3
    afiles: size3
    invarsec: uint32


@struct
class FSSTAT3resfail:
    obj_attributes: post_op_attr


@union
class FSSTAT3res:
    status: nfsstat3
    resok: Annotated[FSSTAT3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[FSSTAT3resfail | None, DEFAULT] = None


FSF3_LINK: Final = 0x0001
FSF3_SYMLINK: Final = 0x0002
FSF3_HOMOGENEOUS: Final = 0x0008
FSF3_CANSETTIME: Final = 0x0010


@struct
class FSINFOargs:
    fsroot: nfs_fh3


@struct
class FSINFO3resok:
    obj_attributes: post_op_attr
    rtmax: uint32
    rtpref: uint32
    rtmult: uint32
    wtmax: uint32
    wtpref: uint32
    wtmult: uint32
    dtpref: uint32
    maxfilesize: size3
    time_delta: nfstime3
    properties: uint32


@struct
class FSINFO3resfail:
    obj_attributes: post_op_attr


@union
class FSINFO3res:
    status: nfsstat3
    resok: Annotated[FSINFO3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[FSINFO3resfail | None, DEFAULT] = None


@struct
class PATHCONF3args:
    object: nfs_fh3


@struct
class PATHCONF3resok:
    obj_attributes: post_op_attr
    linkmax: uint32
    name_max: uint32
    no_trunc: bool
    chown_restricted: bool
    case_insensitive: bool
    case_preserving: bool


@struct
class PATHCONF3resfail:
    obj_attributes: post_op_attr


@union
class PATHCONF3res:
    status: nfsstat3
    resok: Annotated[PATHCONF3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[PATHCONF3resfail | None, DEFAULT] = None


@struct
class COMMIT3args:
    file: nfs_fh3
    offset: offset3
    count: count3


@struct
class COMMIT3resok:
    file_wcc: wcc_data
    verf: writeverf3


@struct
class COMMIT3resfail:
    file_wcc: wcc_data


@union
class COMMIT3res:
    status: nfsstat3
    resok: Annotated[COMMIT3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[COMMIT3resfail | None, DEFAULT] = None
