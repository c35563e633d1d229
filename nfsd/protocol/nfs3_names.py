"""NFSv3 procedures on names (RFC 1813 sections 3.3.8 to 3.3.15), under the RFC's names.

Imports :mod:`rpcrdma.xdr` and :mod:`nfsd.protocol.nfs3_types`. What is marked DDP is what RFC 8267 section 3 lists.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from nfsd.protocol.nfs3_types import (
    NAME_LIMIT,
    createverf3,
    diropargs3,
    ftype3,
    nfs_fh3,
    nfsstat3,
    post_op_attr,
    post_op_fh3,
    sattr3,
    specdata3,
    wcc_data,
)
from rpcrdma.xdr import DDP, DEFAULT, case, opaque, struct, union


class createmode3(IntEnum):
    UNCHECKED = 0
    GUARDED = 1
    EXCLUSIVE = 2


@union
class createhow3:
    mode: createmode3
    obj_attributes: Annotated[sattr3 | None, case(createmode3.UNCHECKED, createmode3.GUARDED)] = None
    verf: Annotated[createverf3 | None, case(createmode3.EXCLUSIVE)] = None


@struct
class CREATE3args:
    where: diropargs3
    how: createhow3


@struct
class CREATE3resok:
    obj: post_op_fh3
    obj_attributes: post_op_attr
    dir_wcc: wcc_data


@struct
class CREATE3resfail:
    dir_wcc: wcc_data


@union
class CREATE3res:
    status: nfsstat3
    resok: Annotated[CREATE3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[CREATE3resfail | None, DEFAULT] = None


@struct
class MKDIR3args:
    where: diropargs3
    attributes: sattr3


@struct
class MKDIR3resok:
    obj: post_op_fh3
    obj_attributes: post_op_attr
    dir_wcc: wcc_data


@struct
class MKDIR3resfail:
    dir_wcc: wcc_data


@union
class MKDIR3res:
    status: nfsstat3
    resok: Annotated[MKDIR3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[MKDIR3resfail | None, DEFAULT] = None


@struct
class symlinkdata3:
    symlink_attributes: sattr3
    symlink_data: Annotated[memoryview, opaque(NAME_LIMIT), DDP]


@struct
class SYMLINK3args:
    where: diropargs3
    symlink: symlinkdata3


@struct
class SYMLINK3resok:
    obj: post_op_fh3
    obj_attributes: post_op_attr
    dir_wcc: wcc_data


@struct
class SYMLINK3resfail:
    dir_wcc: wcc_data


@union
class SYMLINK3res:
    status: nfsstat3
    resok: Annotated[SYMLINK3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[SYMLINK3resfail | None, DEFAULT] = None


@struct
class devicedata3:
    dev_attributes: sattr3
    spec: specdata3


@union(void=DEFAULT)
class mknoddata3:
    type: ftype3
    device: Annotated[devicedata3 | None, case(ftype3.NF3CHR, ftype3.NF3BLK)] = None
    pipe_attributes: Annotated[sattr3 | None, case(ftype3.NF3SOCK, ftype3.NF3FIFO)] = None


@struct
class MKNOD3args:
    where: diropargs3
    what: mknoddata3


@struct
class MKNOD3resok:
    obj: post_op_fh3
    obj_attributes: post_op_attr
    dir_wcc: wcc_data


@struct
class MKNOD3resfail:
    dir_wcc: wcc_data


@union
class MKNOD3res:
    status: nfsstat3
    resok: Annotated[MKNOD3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[MKNOD3resfail | None, DEFAULT] = None


@struct
class REMOVE3args:
    object: diropargs3


@struct
class REMOVE3resok:
    dir_wcc: wcc_data


@struct
class REMOVE3resfail:
    dir_wcc: wcc_data


@union
class REMOVE3res:
    status: nfsstat3
    resok: Annotated[REMOVE3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[REMOVE3resfail | None, DEFAULT] = None


@struct
class RMDIR3args:
    object: diropargs3


@struct
class RMDIR3resok:
    dir_wcc: wcc_data


@struct
class RMDIR3resfail:
    dir_wcc: wcc_data


@union
class RMDIR3res:
    status: nfsstat3
    resok: Annotated[RMDIR3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[RMDIR3resfail | None, DEFAULT] = None


@struct
class RENAME3args:
    from_: diropargs3
    to: diropargs3


@struct
class RENAME3resok:
    fromdir_wcc: wcc_data
    todir_wcc: wcc_data


@struct
class RENAME3resfail:
    fromdir_wcc: wcc_data
    todir_wcc: wcc_data


@union
class RENAME3res:
    status: nfsstat3
    resok: Annotated[RENAME3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[RENAME3resfail | None, DEFAULT] = None


@struct
class LINK3args:
    file: nfs_fh3
    link: diropargs3


@struct
class LINK3resok:
    file_attributes: post_op_attr
    linkdir_wcc: wcc_data


@struct
class LINK3resfail:
    file_attributes: post_op_attr
    linkdir_wcc: wcc_data


@union
class LINK3res:
    status: nfsstat3
    resok: Annotated[LINK3resok | None, case(nfsstat3.NFS3_OK)] = None
    resfail: Annotated[LINK3resfail | None, DEFAULT] = None
