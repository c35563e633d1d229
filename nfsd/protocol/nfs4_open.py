"""NFSv4 operations on open, lock and client state (RFC 7530 section 16, RFC 8881 section 18), under the RFC's names.

Imports the declarations of types, access control lists and attributes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from nfsd.protocol.nfs4_acl import nfsace4
from nfsd.protocol.nfs4_attrs import fattr4
from nfsd.protocol.nfs4_errors import nfsstat4
from nfsd.protocol.nfs4_types import (
    bitmap4,
    cb_client4,
    change_info4,
    clientaddr4,
    clientid4,
    component4,
    length4,
    lock_owner4,
    nfs_client_id4,
    nfs_lock_type4,
    offset4,
    open_owner4,
    seqid4,
    stateid4,
    verifier4,
)
from rpcrdma.xdr import DEFAULT, case, struct, uint32, uint64, union


class createmode4(IntEnum):
    UNCHECKED4 = 0
    GUARDED4 = 1
    EXCLUSIVE4 = 2
    EXCLUSIVE4_1 = 3


@struct
class creatverfattr:
    cva_verf: verifier4
    cva_attrs: fattr4


@union
class createhow4:
    mode: createmode4
    createattrs: Annotated[fattr4 | None, case(createmode4.UNCHECKED4, createmode4.GUARDED4)] = None
    createverf: Annotated[verifier4 | None, case(createmode4.EXCLUSIVE4)] = None
    ch_createboth: Annotated[creatverfattr | None, case(createmode4.EXCLUSIVE4_1)] = None


class opentype4(IntEnum):
    OPEN4_NOCREATE = 0
    OPEN4_CREATE = 1


@union(void=DEFAULT)
class openflag4:
    opentype: opentype4
    how: Annotated[createhow4 | None, case(opentype4.OPEN4_CREATE)] = None


class limit_by4(IntEnum):
    NFS_LIMIT_SIZE = 1
    NFS_LIMIT_BLOCKS = 2


@struct
class nfs_modified_limit4:
    num_blocks: uint32
    bytes_per_block: uint32


@union
class nfs_space_limit4:
    limitby: limit_by4
    filesize: Annotated[uint64 | None, case(limit_by4.NFS_LIMIT_SIZE)] = None
    mod_blocks: Annotated[nfs_modified_limit4 | None, case(limit_by4.NFS_LIMIT_BLOCKS)] = None


OPEN4_SHARE_ACCESS_READ: Final = 0x00000001
OPEN4_SHARE_ACCESS_WRITE: Final = 0x00000002
OPEN4_SHARE_ACCESS_BOTH: Final = 0x00000003
OPEN4_SHARE_DENY_NONE: Final = 0x00000000
OPEN4_SHARE_DENY_READ: Final = 0x00000001
OPEN4_SHARE_DENY_WRITE: Final = 0x00000002
OPEN4_SHARE_DENY_BOTH: Final = 0x00000003
OPEN4_SHARE_ACCESS_WANT_DELEG_MASK: Final = 0xFF00
OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE: Final = 0x0000
OPEN4_SHARE_ACCESS_WANT_READ_DELEG: Final = 0x0100
OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG: Final = 0x0200
OPEN4_SHARE_ACCESS_WANT_ANY_DELEG: Final = 0x0300
OPEN4_SHARE_ACCESS_WANT_NO_DELEG: Final = 0x0400
OPEN4_SHARE_ACCESS_WANT_CANCEL: Final = 0x0500
OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: Final = 0x10000
OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED: Final = 0x20000


class open_delegation_type4(IntEnum):
    OPEN_DELEGATE_NONE = 0
    OPEN_DELEGATE_READ = 1
    OPEN_DELEGATE_WRITE = 2
    OPEN_DELEGATE_NONE_EXT = 3
    OPEN_DELEGATE_READ_ATTRS_DELEG = 4  # RFC 9754 section 5
    OPEN_DELEGATE_WRITE_ATTRS_DELEG = 5


class open_claim_type4(IntEnum):
    CLAIM_NULL = 0
    CLAIM_PREVIOUS = 1
    CLAIM_DELEGATE_CUR = 2
    CLAIM_DELEGATE_PREV = 3
    CLAIM_FH = 4
    CLAIM_DELEG_CUR_FH = 5
    CLAIM_DELEG_PREV_FH = 6


@struct
class open_claim_delegate_cur4:
    delegate_stateid: stateid4
    file: component4


@union(
    void=(
        open_claim_type4.CLAIM_FH,
        open_claim_type4.CLAIM_DELEG_PREV_FH,
    )
)
class open_claim4:
    claim: open_claim_type4
    file: Annotated[component4 | None, case(open_claim_type4.CLAIM_NULL)] = None
    delegate_type: Annotated[open_delegation_type4 | None, case(open_claim_type4.CLAIM_PREVIOUS)] = None
    delegate_cur_info: Annotated[open_claim_delegate_cur4 | None, case(open_claim_type4.CLAIM_DELEGATE_CUR)] = None
    file_delegate_prev: Annotated[component4 | None, case(open_claim_type4.CLAIM_DELEGATE_PREV)] = None
    oc_delegate_stateid: Annotated[stateid4 | None, case(open_claim_type4.CLAIM_DELEG_CUR_FH)] = None


@struct
class OPEN4args:
    seqid: seqid4
    share_access: uint32
    share_deny: uint32
    owner: open_owner4
    openhow: openflag4
    claim: open_claim4


@struct
class open_read_delegation4:
    stateid: stateid4
    recall: bool
    permissions: nfsace4


@struct
class open_write_delegation4:
    stateid: stateid4
    recall: bool
    space_limit: nfs_space_limit4
    permissions: nfsace4


class why_no_delegation4(IntEnum):
    WND4_NOT_WANTED = 0
    WND4_CONTENTION = 1
    WND4_RESOURCE = 2
    WND4_NOT_SUPP_FTYPE = 3
    WND4_WRITE_DELEG_NOT_SUPP_FTYPE = 4
    WND4_NOT_SUPP_UPGRADE = 5
    WND4_NOT_SUPP_DOWNGRADE = 6
    WND4_CANCELLED = 7
    WND4_IS_DIR = 8


@union(void=DEFAULT)
class open_none_delegation4:
    ond_why: why_no_delegation4
    ond_server_will_push_deleg: Annotated[bool | None, case(why_no_delegation4.WND4_CONTENTION)] = None
    ond_server_will_signal_avail: Annotated[bool | None, case(why_no_delegation4.WND4_RESOURCE)] = None


@union(void=(open_delegation_type4.OPEN_DELEGATE_NONE,))
class open_delegation4:
    delegation_type: open_delegation_type4
    read: Annotated[
        open_read_delegation4 | None,
        case(open_delegation_type4.OPEN_DELEGATE_READ, open_delegation_type4.OPEN_DELEGATE_READ_ATTRS_DELEG),
    ] = None
    write: Annotated[
        open_write_delegation4 | None,
        case(open_delegation_type4.OPEN_DELEGATE_WRITE, open_delegation_type4.OPEN_DELEGATE_WRITE_ATTRS_DELEG),
    ] = None
    od_whynone: Annotated[open_none_delegation4 | None, case(open_delegation_type4.OPEN_DELEGATE_NONE_EXT)] = None


OPEN4_RESULT_CONFIRM: Final = 0x00000002
OPEN4_RESULT_LOCKTYPE_POSIX: Final = 0x00000004
OPEN4_RESULT_PRESERVE_UNLINKED: Final = 0x00000008
OPEN4_RESULT_NO_OPEN_STATEID: Final = 0x00000010  # RFC 9754 section 4
OPEN4_RESULT_MAY_NOTIFY_LOCK: Final = 0x00000020


@struct
class OPEN4resok:
    stateid: stateid4
    cinfo: change_info4
    rflags: uint32
    attrset: bitmap4
    delegation: open_delegation4


@union(void=DEFAULT)
class OPEN4res:
    status: nfsstat4
    resok4: Annotated[OPEN4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class OPENATTR4args:
    createdir: bool


@struct
class OPENATTR4res:
    status: nfsstat4


@struct
class OPEN_CONFIRM4args:
    open_stateid: stateid4
    seqid: seqid4


@struct
class OPEN_CONFIRM4resok:
    open_stateid: stateid4


@union(void=DEFAULT)
class OPEN_CONFIRM4res:
    status: nfsstat4
    resok4: Annotated[OPEN_CONFIRM4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class OPEN_DOWNGRADE4args:
    open_stateid: stateid4
    seqid: seqid4
    share_access: uint32
    share_deny: uint32


@struct
class OPEN_DOWNGRADE4resok:
    open_stateid: stateid4


@union(void=DEFAULT)
class OPEN_DOWNGRADE4res:
    status: nfsstat4
    resok4: Annotated[OPEN_DOWNGRADE4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class CLOSE4args:
    seqid: seqid4
    open_stateid: stateid4


@union(void=DEFAULT)
class CLOSE4res:
    status: nfsstat4
    open_stateid: Annotated[stateid4 | None, case(nfsstat4.NFS4_OK)] = None


@struct
class DELEGPURGE4args:
    clientid: clientid4


@struct
class DELEGPURGE4res:
    status: nfsstat4


@struct
class DELEGRETURN4args:
    deleg_stateid: stateid4


@struct
class DELEGRETURN4res:
    status: nfsstat4


@struct
class open_to_lock_owner4:
    open_seqid: seqid4
    open_stateid: stateid4
    lock_seqid: seqid4
    lock_owner: lock_owner4


@struct
class exist_lock_owner4:
    lock_stateid: stateid4
    lock_seqid: seqid4


@union
class locker4:
    new_lock_owner: bool
    open_owner: Annotated[open_to_lock_owner4 | None, case(True)] = None
    lock_owner: Annotated[exist_lock_owner4 | None, case(False)] = None


@struct
class LOCK4args:
    locktype: nfs_lock_type4
    reclaim: bool
    offset: offset4
    length: length4
    locker: locker4


@struct
class LOCK4denied:
    offset: offset4
    length: length4
    locktype: nfs_lock_type4
    owner: lock_owner4


@struct
class LOCK4resok:
    lock_stateid: stateid4


@union(void=DEFAULT)
class LOCK4res:
    status: nfsstat4
    resok4: Annotated[LOCK4resok | None, case(nfsstat4.NFS4_OK)] = None
    denied: Annotated[LOCK4denied | None, case(nfsstat4.NFS4ERR_DENIED)] = None


@struct
class LOCKT4args:
    locktype: nfs_lock_type4
    offset: offset4
    length: length4
    owner: lock_owner4


@union(void=DEFAULT)
class LOCKT4res:
    status: nfsstat4
    denied: Annotated[LOCK4denied | None, case(nfsstat4.NFS4ERR_DENIED)] = None


@struct
class LOCKU4args:
    locktype: nfs_lock_type4
    seqid: seqid4
    lock_stateid: stateid4
    offset: offset4
    length: length4


@union(void=DEFAULT)
class LOCKU4res:
    status: nfsstat4
    lock_stateid: Annotated[stateid4 | None, case(nfsstat4.NFS4_OK)] = None


@struct
class RENEW4args:
    clientid: clientid4


@struct
class RENEW4res:
    status: nfsstat4


@struct
class SETCLIENTID4args:
    client: nfs_client_id4
    callback: cb_client4
    callback_ident: uint32


@struct
class SETCLIENTID4resok:
    clientid: clientid4
    setclientid_confirm: verifier4


@union(void=DEFAULT)
class SETCLIENTID4res:
    status: nfsstat4
    resok4: Annotated[SETCLIENTID4resok | None, case(nfsstat4.NFS4_OK)] = None
    client_using: Annotated[clientaddr4 | None, case(nfsstat4.NFS4ERR_CLID_INUSE)] = None


@struct
class SETCLIENTID_CONFIRM4args:
    clientid: clientid4
    setclientid_confirm: verifier4


@struct
class SETCLIENTID_CONFIRM4res:
    status: nfsstat4


@struct
class RELEASE_LOCKOWNER4args:
    lock_owner: lock_owner4


@struct
class RELEASE_LOCKOWNER4res:
    status: nfsstat4
