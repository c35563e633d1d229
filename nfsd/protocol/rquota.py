"""The remote quota protocol, versions 1 and 2 (rquota.x of Sun and of Linux's quota tools), under its own names.

Imports :mod:`rpcrdma.xdr`. Version 2 tells users from groups. What sets quotas is here to be refused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from rpcrdma.xdr import DEFAULT, case, int32, opaque, struct, uint32, union

RQUOTA_PROGRAM: Final = 100011
RQUOTA_V1: Final = 1
RQUOTA_V2: Final = 2
RQ_PATHLEN: Final = 1024
USRQUOTA: Final = 0
GRPQUOTA: Final = 1

RQUOTAPROC_NULL: Final = 0
RQUOTAPROC_GETQUOTA: Final = 1
RQUOTAPROC_GETACTIVEQUOTA: Final = 2
RQUOTAPROC_SETQUOTA: Final = 3
RQUOTAPROC_SETACTIVEQUOTA: Final = 4

pathname = Annotated[bytes, opaque(RQ_PATHLEN)]


class gqr_status(IntEnum):
    Q_OK = 1
    Q_NOQUOTA = 2
    Q_EPERM = 3


@struct
class getquota_args:
    gqa_pathp: pathname
    gqa_uid: uint32


@struct
class ext_getquota_args:
    gqa_pathp: pathname
    gqa_type: int32
    gqa_id: uint32


@struct
class sq_dqblk:
    rq_bhardlimit: uint32
    rq_bsoftlimit: uint32
    rq_curblocks: uint32
    rq_fhardlimit: uint32
    rq_fsoftlimit: uint32
    rq_curfiles: uint32
    rq_btimeleft: uint32
    rq_ftimeleft: uint32


@struct
class setquota_args:
    sqa_qcmd: int32
    sqa_pathp: pathname
    sqa_id: uint32
    sqa_dqblk: sq_dqblk


@struct
class ext_setquota_args:
    sqa_qcmd: int32
    sqa_pathp: pathname
    sqa_id: uint32
    sqa_type: int32
    sqa_dqblk: sq_dqblk


@struct
class rquota:
    rq_bsize: int32
    """Octets of a block, in which the next three are."""
    rq_active: bool
    rq_bhardlimit: uint32
    rq_bsoftlimit: uint32
    rq_curblocks: uint32
    rq_fhardlimit: uint32
    rq_fsoftlimit: uint32
    rq_curfiles: uint32
    rq_btimeleft: uint32
    """Seconds; clients take it for a signed number."""
    rq_ftimeleft: uint32


@union(void=DEFAULT)
class getquota_rslt:
    """Also what SETQUOTA is answered with, as ``setquota_rslt``."""

    status: gqr_status
    gqr_rquota: Annotated[rquota | None, case(gqr_status.Q_OK)] = None
