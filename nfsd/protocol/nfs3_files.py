"""NFSv3 procedures on files (RFC 1813 sections 3.3.1 to 3.3.7), under the RFC's names.

Imports :mod:`rpcrdma.xdr` and :mod:`nfsd.protocol.nfs3_types`. What is marked DDP is what RFC 8267 section 3 lists.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from nfsd.protocol.nfs3_types import (
    DATA_LIMIT,
    NAME_LIMIT,
    count3,
    diropargs3,
    fattr3,
    nfs_fh3,
    nfsstat3,
    nfstime3,
    offset3,
    post_op_attr,
    sattr3,
    wcc_data,
    writeverf3,
)
from rpcrdma.xdr import DDP, DEFAULT, Payload, case, opaque, struct, uint32, union


@struct
class GETATTR3args:
    object: nfs_fh3


@struct
class GETATTR3resok:
    obj_attributes: fattr3


@union(void=DEFAULT)
class GETATTR3res:
    status: nfsstat3
    resok: Annotated[GETATTR3resok | None, case(nfsstat3.NFS3_OK)] = None


sattrguard3 = nfstime3 | None


@struct
class SETATTR3args:
    object: nfs_fh3
    new_attributes: sattr3
    guard: sattrguard3


@struct
class SETATTR3resok:
    obj_wcc: wcc_data


@struct
class SETATTR3resfail:
    obj_wcc: wcc_data


@union
class SETATTR3res:
    status: nfsstat3
    resok: Annotated[SETATTR3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[SETATTR3resfail | None, DEFAULT] = None


@struct
class LOOKUP3args:
    what: diropargs3


@struct
class LOOKUP3resok:
    object: nfs_fh3
    obj_attributes: post_op_attr
    dir_attributes: post_op_attr


@struct
class LOOKUP3resfail:
    dir_attributes: post_op_attr


@union
class LOOKUP3res:
    status: nfsstat3
    resok: Annotated[LOOKUP3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[LOOKUP3resfail | None, DEFAULT] = None


ACCESS3_READ: Final = 0x0001
ACCESS3_LOOKUP: Final = 0x0002
ACCESS3_MODIFY: Final = 0x0004
ACCESS3_EXTEND: Final = 0x0008
ACCESS3_DELETE: Final = 0x0010
ACCESS3_EXECUTE: Final = 0x0020


@struct
class ACCESS3args:
    object: nfs_fh3
    access: uint32


@struct
class ACCESS3resok:
    obj_attributes: post_op_attr
    access: uint32


@struct
class ACCESS3resfail:
    obj_attributes: post_op_attr


@union
class ACCESS3res:
    status: nfsstat3
    resok: Annotated[ACCESS3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[ACCESS3resfail | None, DEFAULT] = None


@struct
class READLINK3args:
    symlink: nfs_fh3


@struct
class READLINK3resok:
    symlink_attributes: post_op_attr
    data: Annotated[Payload | bytes | memoryview, opaque(NAME_LIMIT), DDP]


@struct
class READLINK3resfail:
    symlink_attributes: post_op_attr


@union
class READLINK3res:
    status: nfsstat3
    resok: Annotated[READLINK3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[READLINK3resfail | None, DEFAULT] = None


@struct
class READ3args:
    file: nfs_fh3
    offset: offset3
    count: count3


@struct
class READ3resok:
    file_attributes: post_op_attr
    count: count3
    eof: bool
    data: Annotated[Payload | bytes | memoryview, opaque(DATA_LIMIT), DDP]


@struct
class READ3resfail:
    file_attributes: post_op_attr


@union
class READ3res:
    status: nfsstat3
    resok: Annotated[READ3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[READ3resfail | None, DEFAULT] = None


class stable_how(IntEnum):
    UNSTABLE = 0
    DATA_SYNC = 1
    FILE_SYNC = 2


@struct
class WRITE3args:
    file: nfs_fh3
    offset: offset3
    count: count3
    stable: stable_how
    data: Annotated[memoryview, opaque(DATA_LIMIT), DDP]


@struct
class WRITE3resok:
    file_wcc: wcc_data
    count: count3
    committed: stable_how
    verf: writeverf3


@struct
class WRITE3resfail:
    file_wcc: wcc_data


@union
class WRITE3res:
    status: nfsstat3
    resok: Annotated[WRITE3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[WRITE3resfail | None, DEFAULT] = None
