# ruff: noqa: F403, F405
"""The tables of NFSv4's operations: number to name, types and minor versions (RFC 8881 section 17, RFC 7862).

Imports every module of NFSv4's declarations. Operations that 4.1 says must not be implemented are 4.0's alone
(RFC 8881 section 17).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from nfsd.protocol.nfs4_callback import *
from nfsd.protocol.nfs4_files import *
from nfsd.protocol.nfs4_layout import *
from nfsd.protocol.nfs4_open import *
from nfsd.protocol.nfs4_opnums import *
from nfsd.protocol.nfs4_session import *
from nfsd.protocol.nfs4_v42 import *

NFS4_PROGRAM: Final = 100003
NFS_V4: Final = 4
NFSPROC4_NULL: Final = 0
NFSPROC4_COMPOUND: Final = 1

NFS_CB: Final = 1
CB_NULL: Final = 0
CB_COMPOUND: Final = 1

ALL: Final = frozenset((0, 1, 2))
ONLY_0: Final = frozenset((0,))
FROM_1: Final = frozenset((1, 2))
FROM_2: Final = frozenset((2,))


class Operation(NamedTuple):
    """One operation: its name, the types of its arguments (None: void) and results, the minor versions that have it."""

    name: str
    arguments: Any
    results: Any
    minors: frozenset[int]


OPERATIONS: Final[dict[int, Operation]] = {
    OP_ACCESS: Operation("ACCESS", ACCESS4args, ACCESS4res, ALL),
    OP_CLOSE: Operation("CLOSE", CLOSE4args, CLOSE4res, ALL),
    OP_COMMIT: Operation("COMMIT", COMMIT4args, COMMIT4res, ALL),
    OP_CREATE: Operation("CREATE", CREATE4args, CREATE4res, ALL),
    OP_DELEGPURGE: Operation("DELEGPURGE", DELEGPURGE4args, DELEGPURGE4res, ALL),
    OP_DELEGRETURN: Operation("DELEGRETURN", DELEGRETURN4args, DELEGRETURN4res, ALL),
    OP_GETATTR: Operation("GETATTR", GETATTR4args, GETATTR4res, ALL),
    OP_GETFH: Operation("GETFH", None, GETFH4res, ALL),
    OP_LINK: Operation("LINK", LINK4args, LINK4res, ALL),
    OP_LOCK: Operation("LOCK", LOCK4args, LOCK4res, ALL),
    OP_LOCKT: Operation("LOCKT", LOCKT4args, LOCKT4res, ALL),
    OP_LOCKU: Operation("LOCKU", LOCKU4args, LOCKU4res, ALL),
    OP_LOOKUP: Operation("LOOKUP", LOOKUP4args, LOOKUP4res, ALL),
    OP_LOOKUPP: Operation("LOOKUPP", None, LOOKUPP4res, ALL),
    OP_NVERIFY: Operation("NVERIFY", NVERIFY4args, NVERIFY4res, ALL),
    OP_OPEN: Operation("OPEN", OPEN4args, OPEN4res, ALL),
    OP_OPENATTR: Operation("OPENATTR", OPENATTR4args, OPENATTR4res, ALL),
    OP_OPEN_CONFIRM: Operation("OPEN_CONFIRM", OPEN_CONFIRM4args, OPEN_CONFIRM4res, ONLY_0),
    OP_OPEN_DOWNGRADE: Operation("OPEN_DOWNGRADE", OPEN_DOWNGRADE4args, OPEN_DOWNGRADE4res, ALL),
    OP_PUTFH: Operation("PUTFH", PUTFH4args, PUTFH4res, ALL),
    OP_PUTPUBFH: Operation("PUTPUBFH", None, PUTPUBFH4res, ALL),
    OP_PUTROOTFH: Operation("PUTROOTFH", None, PUTROOTFH4res, ALL),
    OP_READ: Operation("READ", READ4args, READ4res, ALL),
    OP_READDIR: Operation("READDIR", READDIR4args, READDIR4res, ALL),
    OP_READLINK: Operation("READLINK", None, READLINK4res, ALL),
    OP_REMOVE: Operation("REMOVE", REMOVE4args, REMOVE4res, ALL),
    OP_RENAME: Operation("RENAME", RENAME4args, RENAME4res, ALL),
    OP_RENEW: Operation("RENEW", RENEW4args, RENEW4res, ONLY_0),
    OP_RESTOREFH: Operation("RESTOREFH", None, RESTOREFH4res, ALL),
    OP_SAVEFH: Operation("SAVEFH", None, SAVEFH4res, ALL),
    OP_SECINFO: Operation("SECINFO", SECINFO4args, SECINFO4res, ALL),
    OP_SETATTR: Operation("SETATTR", SETATTR4args, SETATTR4res, ALL),
    OP_SETCLIENTID: Operation("SETCLIENTID", SETCLIENTID4args, SETCLIENTID4res, ONLY_0),
    OP_SETCLIENTID_CONFIRM: Operation("SETCLIENTID_CONFIRM", SETCLIENTID_CONFIRM4args, SETCLIENTID_CONFIRM4res, ONLY_0),
    OP_VERIFY: Operation("VERIFY", VERIFY4args, VERIFY4res, ALL),
    OP_WRITE: Operation("WRITE", WRITE4args, WRITE4res, ALL),
    OP_RELEASE_LOCKOWNER: Operation("RELEASE_LOCKOWNER", RELEASE_LOCKOWNER4args, RELEASE_LOCKOWNER4res, ONLY_0),
    OP_BACKCHANNEL_CTL: Operation("BACKCHANNEL_CTL", BACKCHANNEL_CTL4args, BACKCHANNEL_CTL4res, FROM_1),
    OP_BIND_CONN_TO_SESSION: Operation(
        "BIND_CONN_TO_SESSION", BIND_CONN_TO_SESSION4args, BIND_CONN_TO_SESSION4res, FROM_1
    ),
    OP_EXCHANGE_ID: Operation("EXCHANGE_ID", EXCHANGE_ID4args, EXCHANGE_ID4res, FROM_1),
    OP_CREATE_SESSION: Operation("CREATE_SESSION", CREATE_SESSION4args, CREATE_SESSION4res, FROM_1),
    OP_DESTROY_SESSION: Operation("DESTROY_SESSION", DESTROY_SESSION4args, DESTROY_SESSION4res, FROM_1),
    OP_FREE_STATEID: Operation("FREE_STATEID", FREE_STATEID4args, FREE_STATEID4res, FROM_1),
    OP_GET_DIR_DELEGATION: Operation("GET_DIR_DELEGATION", GET_DIR_DELEGATION4args, GET_DIR_DELEGATION4res, FROM_1),
    OP_GETDEVICEINFO: Operation("GETDEVICEINFO", GETDEVICEINFO4args, GETDEVICEINFO4res, FROM_1),
    OP_GETDEVICELIST: Operation("GETDEVICELIST", GETDEVICELIST4args, GETDEVICELIST4res, FROM_1),
    OP_LAYOUTCOMMIT: Operation("LAYOUTCOMMIT", LAYOUTCOMMIT4args, LAYOUTCOMMIT4res, FROM_1),
    OP_LAYOUTGET: Operation("LAYOUTGET", LAYOUTGET4args, LAYOUTGET4res, FROM_1),
    OP_LAYOUTRETURN: Operation("LAYOUTRETURN", LAYOUTRETURN4args, LAYOUTRETURN4res, FROM_1),
    OP_SECINFO_NO_NAME: Operation("SECINFO_NO_NAME", SECINFO_NO_NAME4args, SECINFO_NO_NAME4res, FROM_1),
    OP_SEQUENCE: Operation("SEQUENCE", SEQUENCE4args, SEQUENCE4res, FROM_1),
    OP_SET_SSV: Operation("SET_SSV", SET_SSV4args, SET_SSV4res, FROM_1),
    OP_TEST_STATEID: Operation("TEST_STATEID", TEST_STATEID4args, TEST_STATEID4res, FROM_1),
    OP_WANT_DELEGATION: Operation("WANT_DELEGATION", WANT_DELEGATION4args, WANT_DELEGATION4res, FROM_1),
    OP_DESTROY_CLIENTID: Operation("DESTROY_CLIENTID", DESTROY_CLIENTID4args, DESTROY_CLIENTID4res, FROM_1),
    OP_RECLAIM_COMPLETE: Operation("RECLAIM_COMPLETE", RECLAIM_COMPLETE4args, RECLAIM_COMPLETE4res, FROM_1),
    OP_ALLOCATE: Operation("ALLOCATE", ALLOCATE4args, ALLOCATE4res, FROM_2),
    OP_COPY: Operation("COPY", COPY4args, COPY4res, FROM_2),
    OP_COPY_NOTIFY: Operation("COPY_NOTIFY", COPY_NOTIFY4args, COPY_NOTIFY4res, FROM_2),
    OP_DEALLOCATE: Operation("DEALLOCATE", DEALLOCATE4args, DEALLOCATE4res, FROM_2),
    OP_IO_ADVISE: Operation("IO_ADVISE", IO_ADVISE4args, IO_ADVISE4res, FROM_2),
    OP_LAYOUTERROR: Operation("LAYOUTERROR", LAYOUTERROR4args, LAYOUTERROR4res, FROM_2),
    OP_LAYOUTSTATS: Operation("LAYOUTSTATS", LAYOUTSTATS4args, LAYOUTSTATS4res, FROM_2),
    OP_OFFLOAD_CANCEL: Operation("OFFLOAD_CANCEL", OFFLOAD_CANCEL4args, OFFLOAD_CANCEL4res, FROM_2),
    OP_OFFLOAD_STATUS: Operation("OFFLOAD_STATUS", OFFLOAD_STATUS4args, OFFLOAD_STATUS4res, FROM_2),
    OP_READ_PLUS: Operation("READ_PLUS", READ_PLUS4args, READ_PLUS4res, FROM_2),
    OP_SEEK: Operation("SEEK", SEEK4args, SEEK4res, FROM_2),
    OP_WRITE_SAME: Operation("WRITE_SAME", WRITE_SAME4args, WRITE_SAME4res, FROM_2),
    OP_CLONE: Operation("CLONE", CLONE4args, CLONE4res, FROM_2),
    OP_GETXATTR: Operation("GETXATTR", GETXATTR4args, GETXATTR4res, FROM_2),
    OP_SETXATTR: Operation("SETXATTR", SETXATTR4args, SETXATTR4res, FROM_2),
    OP_LISTXATTRS: Operation("LISTXATTRS", LISTXATTRS4args, LISTXATTRS4res, FROM_2),
    OP_REMOVEXATTR: Operation("REMOVEXATTR", REMOVEXATTR4args, REMOVEXATTR4res, FROM_2),
    OP_ILLEGAL: Operation("ILLEGAL", None, ILLEGAL4res, ALL),
}
"""By number. A COMPOUND is decoded one by one: the number, then ``arguments``; so is its result with ``results``."""

CALLBACK_OPERATIONS: Final[dict[int, Operation]] = {
    OP_CB_GETATTR: Operation("CB_GETATTR", CB_GETATTR4args, CB_GETATTR4res, ALL),
    OP_CB_RECALL: Operation("CB_RECALL", CB_RECALL4args, CB_RECALL4res, ALL),
    OP_CB_LAYOUTRECALL: Operation("CB_LAYOUTRECALL", CB_LAYOUTRECALL4args, CB_LAYOUTRECALL4res, FROM_1),
    OP_CB_NOTIFY: Operation("CB_NOTIFY", CB_NOTIFY4args, CB_NOTIFY4res, FROM_1),
    OP_CB_PUSH_DELEG: Operation("CB_PUSH_DELEG", CB_PUSH_DELEG4args, CB_PUSH_DELEG4res, FROM_1),
    OP_CB_RECALL_ANY: Operation("CB_RECALL_ANY", CB_RECALL_ANY4args, CB_RECALL_ANY4res, FROM_1),
    OP_CB_RECALLABLE_OBJ_AVAIL: Operation(
        "CB_RECALLABLE_OBJ_AVAIL", CB_RECALLABLE_OBJ_AVAIL4args, CB_RECALLABLE_OBJ_AVAIL4res, FROM_1
    ),
    OP_CB_RECALL_SLOT: Operation("CB_RECALL_SLOT", CB_RECALL_SLOT4args, CB_RECALL_SLOT4res, FROM_1),
    OP_CB_SEQUENCE: Operation("CB_SEQUENCE", CB_SEQUENCE4args, CB_SEQUENCE4res, FROM_1),
    OP_CB_WANTS_CANCELLED: Operation("CB_WANTS_CANCELLED", CB_WANTS_CANCELLED4args, CB_WANTS_CANCELLED4res, FROM_1),
    OP_CB_NOTIFY_LOCK: Operation("CB_NOTIFY_LOCK", CB_NOTIFY_LOCK4args, CB_NOTIFY_LOCK4res, FROM_1),
    OP_CB_NOTIFY_DEVICEID: Operation("CB_NOTIFY_DEVICEID", CB_NOTIFY_DEVICEID4args, CB_NOTIFY_DEVICEID4res, FROM_1),
    OP_CB_OFFLOAD: Operation("CB_OFFLOAD", CB_OFFLOAD4args, CB_OFFLOAD4res, FROM_2),
    OP_CB_ILLEGAL: Operation("CB_ILLEGAL", None, CB_ILLEGAL4res, ALL),
}
"""By number, for CB_COMPOUND."""
