"""The Network Lock Manager protocol, version 4 (RFC 1813 appendix II; the procedures are those of X/Open's XNFS), under
the specifications' names.

Imports :mod:`rpcrdma.xdr`. The limits on the lengths of strings are XNFS's. svid is signed there: these are the same
octets.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from rpcrdma.xdr import DEFAULT, case, int32, opaque, struct, uint32, uint64, union

NLM_PROGRAM: Final = 100021
NLM_V4: Final = 4

MAXNETOBJ_SZ: Final = 1024
LM_MAXSTRLEN: Final = 1024
LM_MAXNAMELEN: Final = LM_MAXSTRLEN + 1

netobj = Annotated[bytes, opaque(1024)]
caller = Annotated[bytes, opaque(1024)]
maxname = Annotated[bytes, opaque(1025)]

NLMPROC4_NULL: Final = 0
NLMPROC4_TEST: Final = 1
NLMPROC4_LOCK: Final = 2
NLMPROC4_CANCEL: Final = 3
NLMPROC4_UNLOCK: Final = 4
NLMPROC4_GRANTED: Final = 5
NLMPROC4_TEST_MSG: Final = 6
NLMPROC4_LOCK_MSG: Final = 7
NLMPROC4_CANCEL_MSG: Final = 8
NLMPROC4_UNLOCK_MSG: Final = 9
NLMPROC4_GRANTED_MSG: Final = 10
NLMPROC4_TEST_RES: Final = 11
NLMPROC4_LOCK_RES: Final = 12
NLMPROC4_CANCEL_RES: Final = 13
NLMPROC4_UNLOCK_RES: Final = 14
NLMPROC4_GRANTED_RES: Final = 15
NLMPROC4_SHARE: Final = 20
NLMPROC4_UNSHARE: Final = 21
NLMPROC4_NM_LOCK: Final = 22
NLMPROC4_FREE_ALL: Final = 23


class nlm4_stats(IntEnum):
    NLM4_GRANTED = 0
    NLM4_DENIED = 1
    NLM4_DENIED_NOLOCKS = 2
    NLM4_BLOCKED = 3
    NLM4_DENIED_GRACE_PERIOD = 4
    NLM4_DEADLCK = 5
    NLM4_ROFS = 6
    NLM4_STALE_FH = 7
    NLM4_FBIG = 8
    NLM4_FAILED = 9


@struct
class nlm4_holder:
    exclusive: bool
    svid: uint32
    oh: netobj
    l_offset: uint64
    l_len: uint64


@struct
class nlm4_lock:
    caller_name: caller
    fh: netobj
    oh: netobj
    svid: uint32
    l_offset: uint64
    l_len: uint64


@struct
class nlm4_share:
    caller_name: caller
    fh: netobj
    oh: netobj
    mode: uint32
    access: uint32


@union(void=DEFAULT)
class nlm4_testrply:
    stat: nlm4_stats
    holder: Annotated[nlm4_holder | None, case(nlm4_stats.NLM4_DENIED)] = None


@struct
class nlm4_res:
    cookie: netobj
    stat: nlm4_stats


@struct
class nlm4_testres:
    cookie: netobj
    stat: nlm4_testrply


@struct
class nlm4_lockargs:
    cookie: netobj
    block: bool
    exclusive: bool
    alock: nlm4_lock
    reclaim: bool
    state: int32


@struct
class nlm4_cancargs:
    cookie: netobj
    block: bool
    exclusive: bool
    alock: nlm4_lock


@struct
class nlm4_testargs:
    cookie: netobj
    exclusive: bool
    alock: nlm4_lock


@struct
class nlm4_unlockargs:
    cookie: netobj
    alock: nlm4_lock


@struct
class nlm4_shareargs:
    cookie: netobj
    share: nlm4_share
    reclaim: bool


@struct
class nlm4_shareres:
    cookie: netobj
    stat: nlm4_stats
    sequence: int32


@struct
class nlm4_notify:
    name: maxname
    state: int32
