"""RPC messages as RFC 5531 declares them (sections 8.2, 9, 10 and appendix A); declarations only.

Imports :mod:`rpcrdma.xdr`. Where the RFC's unions are anonymous the field that holds them gives the name.
A procedure's arguments follow :class:`call_body`, its results follow the SUCCESS arm of :class:`reply_data`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from rpcrdma.xdr import DEFAULT, array, case, opaque, open_enum, struct, uint32, union

RPC_VERSION: Final = 2
MAX_AUTH_BYTES: Final = 400
"""Bound of an authentication body (section 8.2)."""
MAX_MACHINE_NAME: Final = 255
MAX_GIDS: Final = 16


class auth_flavor(IntEnum):
    AUTH_NONE = 0
    AUTH_SYS = 1
    AUTH_SHORT = 2
    AUTH_DH = 3
    RPCSEC_GSS = 6
    AUTH_TLS = 7  # RFC 9289 section 4.1


class msg_type(IntEnum):
    CALL = 0
    REPLY = 1


class reply_stat(IntEnum):
    MSG_ACCEPTED = 0
    MSG_DENIED = 1


class accept_stat(IntEnum):
    SUCCESS = 0
    PROG_UNAVAIL = 1
    PROG_MISMATCH = 2
    PROC_UNAVAIL = 3
    GARBAGE_ARGS = 4
    SYSTEM_ERR = 5


class reject_stat(IntEnum):
    RPC_MISMATCH = 0
    AUTH_ERROR = 1


class auth_stat(IntEnum):
    AUTH_OK = 0
    AUTH_BADCRED = 1
    AUTH_REJECTEDCRED = 2
    AUTH_BADVERF = 3
    AUTH_REJECTEDVERF = 4
    AUTH_TOOWEAK = 5
    AUTH_INVALIDRESP = 6
    AUTH_FAILED = 7
    AUTH_KERB_GENERIC = 8
    AUTH_TIMEEXPIRE = 9
    AUTH_TKT_FILE = 10
    AUTH_DECODE = 11
    AUTH_NET_ADDR = 12
    RPCSEC_GSS_CREDPROBLEM = 13
    RPCSEC_GSS_CTXPROBLEM = 14


@struct
class opaque_auth:
    """Section 8.2. Flavors are assigned by IANA: an unknown one stays an integer."""

    flavor: Annotated[int, open_enum(auth_flavor)]
    body: Annotated[bytes, opaque(MAX_AUTH_BYTES)]


@struct
class authsys_parms:
    """The body of an AUTH_SYS credential (appendix A)."""

    stamp: uint32
    machinename: Annotated[bytes, opaque(MAX_MACHINE_NAME)]
    uid: uint32
    gid: uint32
    gids: Annotated[list[uint32], array(MAX_GIDS)]


@struct
class call_body:
    """Section 9. The layout is that of version 2: look at ``rpcvers`` before decoding the rest of it."""

    rpcvers: uint32
    prog: uint32
    vers: uint32
    proc: uint32
    cred: opaque_auth
    verf: opaque_auth


@struct
class mismatch_info:
    """The lowest and the highest version supported."""

    low: uint32
    high: uint32


@union(void=DEFAULT)
class reply_data:
    """How an accepted call went; the results follow SUCCESS."""

    stat: accept_stat
    mismatch_info: Annotated[mismatch_info | None, case(accept_stat.PROG_MISMATCH)] = None


@struct
class accepted_reply:
    verf: opaque_auth
    reply_data: reply_data


@union
class rejected_reply:
    """Why a call was denied; the RFC calls the discriminant and the second arm both ``stat``."""

    stat: reject_stat
    mismatch_info: Annotated[mismatch_info | None, case(reject_stat.RPC_MISMATCH)] = None
    auth_stat: Annotated[auth_stat | None, case(reject_stat.AUTH_ERROR)] = None


@union
class reply_body:
    stat: reply_stat
    areply: Annotated[accepted_reply | None, case(reply_stat.MSG_ACCEPTED)] = None
    rreply: Annotated[rejected_reply | None, case(reply_stat.MSG_DENIED)] = None


@union
class rpc_body:
    mtype: msg_type
    cbody: Annotated[call_body | None, case(msg_type.CALL)] = None
    rbody: Annotated[reply_body | None, case(msg_type.REPLY)] = None


@struct
class rpc_msg:
    xid: uint32
    body: rpc_body


NULL_AUTH: Final = opaque_auth(auth_flavor.AUTH_NONE, b"")
