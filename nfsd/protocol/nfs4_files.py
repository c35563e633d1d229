"""NFSv4 operations on files and names (RFC 7530 section 16, RFC 8881 section 18), under the RFC's names.

Imports the declarations of types and attributes. What is marked DDP is what RFC 8267 section 6.1 lists.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from nfsd.protocol.nfs4_attrs import fattr4
from nfsd.protocol.nfs4_errors import nfsstat4
from nfsd.protocol.nfs4_types import (
    ARRAY_LIMIT,
    CHAIN_LIMIT,
    DATA_LIMIT,
    NAME_LIMIT,
    bitmap4,
    change_info4,
    component4,
    count4,
    nfs_cookie4,
    nfs_fh4,
    nfs_ftype4,
    offset4,
    qop4,
    sec_oid4,
    specdata4,
    stateid4,
    verifier4,
)
from rpcrdma.rpc.messages import auth_flavor
from rpcrdma.xdr import DDP, DEFAULT, Payload, array, case, chain, opaque, struct, uint32, union


class stable_how4(IntEnum):
    UNSTABLE4 = 0
    DATA_SYNC4 = 1
    FILE_SYNC4 = 2


ACCESS4_READ: Final = 0x00000001
ACCESS4_LOOKUP: Final = 0x00000002
ACCESS4_MODIFY: Final = 0x00000004
ACCESS4_EXTEND: Final = 0x00000008
ACCESS4_DELETE: Final = 0x00000010
ACCESS4_EXECUTE: Final = 0x00000020
ACCESS4_XAREAD: Final = 0x00000040
ACCESS4_XAWRITE: Final = 0x00000080
ACCESS4_XALIST: Final = 0x00000100


@struct
class ACCESS4args:
    access: uint32


@struct
class ACCESS4resok:
    supported: uint32
    access: uint32


@union(void=DEFAULT)
class ACCESS4res:
    status: nfsstat4
    resok4: Annotated[ACCESS4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class COMMIT4args:
    offset: offset4
    count: count4


@struct
class COMMIT4resok:
    writeverf: verifier4


@union(void=DEFAULT)
class COMMIT4res:
    status: nfsstat4
    resok4: Annotated[COMMIT4resok | None, case(nfsstat4.NFS4_OK)] = None


@union(void=DEFAULT)
class createtype4:
    type: nfs_ftype4
    linkdata: Annotated[Annotated[memoryview, opaque(NAME_LIMIT), DDP] | None, case(nfs_ftype4.NF4LNK)] = None
    devdata: Annotated[specdata4 | None, case(nfs_ftype4.NF4BLK, nfs_ftype4.NF4CHR)] = None


@struct
class CREATE4args:
    objtype: createtype4
    objname: component4
    createattrs: fattr4


@struct
class CREATE4resok:
    cinfo: change_info4
    attrset: bitmap4


@union(void=DEFAULT)
class CREATE4res:
    status: nfsstat4
    resok4: Annotated[CREATE4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class GETATTR4args:
    attr_request: bitmap4


@struct
class GETATTR4resok:
    obj_attributes: fattr4


@union(void=DEFAULT)
class GETATTR4res:
    status: nfsstat4
    resok4: Annotated[GETATTR4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class GETFH4resok:
    object: nfs_fh4


@union(void=DEFAULT)
class GETFH4res:
    status: nfsstat4
    resok4: Annotated[GETFH4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class LINK4args:
    newname: component4


@struct
class LINK4resok:
    cinfo: change_info4


@union(void=DEFAULT)
class LINK4res:
    status: nfsstat4
    resok4: Annotated[LINK4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class LOOKUP4args:
    objname: component4


@struct
class LOOKUP4res:
    status: nfsstat4


@struct
class LOOKUPP4res:
    status: nfsstat4


@struct
class NVERIFY4args:
    obj_attributes: fattr4


@struct
class NVERIFY4res:
    status: nfsstat4


@struct
class PUTFH4args:
    object: nfs_fh4


@struct
class PUTFH4res:
    status: nfsstat4


@struct
class PUTPUBFH4res:
    status: nfsstat4


@struct
class PUTROOTFH4res:
    status: nfsstat4


@struct
class READ4args:
    stateid: stateid4
    offset: offset4
    count: count4


@struct
class READ4resok:
    eof: bool
    data: Annotated[Payload | bytes | memoryview, opaque(DATA_LIMIT), DDP]


@union(void=DEFAULT)
class READ4res:
    status: nfsstat4
    resok4: Annotated[READ4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class READDIR4args:
    cookie: nfs_cookie4
    cookieverf: verifier4
    dircount: count4
    maxcount: count4
    attr_request: bitmap4


@struct
class entry4:
    cookie: nfs_cookie4
    name: component4
    attrs: fattr4


@struct
class dirlist4:
    entries: Annotated[list[entry4], chain(CHAIN_LIMIT)]
    eof: bool


@struct
class READDIR4resok:
    cookieverf: verifier4
    reply: dirlist4


@union(void=DEFAULT)
class READDIR4res:
    status: nfsstat4
    resok4: Annotated[READDIR4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class READLINK4resok:
    link: Annotated[Payload | bytes | memoryview, opaque(NAME_LIMIT), DDP]


@union(void=DEFAULT)
class READLINK4res:
    status: nfsstat4
    resok4: Annotated[READLINK4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class REMOVE4args:
    target: component4


@struct
class REMOVE4resok:
    cinfo: change_info4


@union(void=DEFAULT)
class REMOVE4res:
    status: nfsstat4
    resok4: Annotated[REMOVE4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class RENAME4args:
    oldname: component4
    newname: component4


@struct
class RENAME4resok:
    source_cinfo: change_info4
    target_cinfo: change_info4


@union(void=DEFAULT)
class RENAME4res:
    status: nfsstat4
    resok4: Annotated[RENAME4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class RESTOREFH4res:
    status: nfsstat4


@struct
class SAVEFH4res:
    status: nfsstat4


@struct
class SECINFO4args:
    name: component4


class rpc_gss_svc_t(IntEnum):
    RPC_GSS_SVC_NONE = 1
    RPC_GSS_SVC_INTEGRITY = 2
    RPC_GSS_SVC_PRIVACY = 3


@struct
class rpcsec_gss_info:
    oid: sec_oid4
    qop: qop4
    service: rpc_gss_svc_t


@union(void=DEFAULT)
class secinfo4:
    flavor: uint32
    flavor_info: Annotated[rpcsec_gss_info | None, case(auth_flavor.RPCSEC_GSS)] = None


SECINFO4resok = Annotated[list[secinfo4], array(ARRAY_LIMIT)]


@union(void=DEFAULT)
class SECINFO4res:
    status: nfsstat4
    resok4: Annotated[SECINFO4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class SETATTR4args:
    stateid: stateid4
    obj_attributes: fattr4


@struct
class SETATTR4res:
    status: nfsstat4
    attrsset: bitmap4


@struct
class VERIFY4args:
    obj_attributes: fattr4


@struct
class VERIFY4res:
    status: nfsstat4


@struct
class WRITE4args:
    stateid: stateid4
    offset: offset4
    stable: stable_how4
    data: Annotated[memoryview, opaque(DATA_LIMIT), DDP]


@struct
class WRITE4resok:
    count: count4
    committed: stable_how4
    writeverf: verifier4


@union(void=DEFAULT)
class WRITE4res:
    status: nfsstat4
    resok4: Annotated[WRITE4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class ILLEGAL4res:
    status: nfsstat4
