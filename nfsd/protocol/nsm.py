"""The Network Status Monitor protocol, version 1 (X/Open's XNFS), as far as hosts speak it with each other.

Imports :mod:`rpcrdma.xdr`. What a host's own lock manager asks its status monitor (SM_MON and the like) is not here:
this server needs no other process to remember whom it has to tell of a restart.
"""

from __future__ import annotations

from typing import Annotated, Final

from rpcrdma.xdr import int32, opaque, struct

SM_PROGRAM: Final = 100024
SM_VERS: Final = 1

SM_NULL: Final = 0
SM_STAT: Final = 1
SM_NOTIFY: Final = 6


STAT_SUCC: Final = 0


@struct
class sm_name:
    mon_name: Annotated[bytes, opaque(1024)]


@struct
class sm_stat_res:
    res_stat: int32
    state: int32


@struct
class stat_chge:
    mon_name: Annotated[bytes, opaque(1024)]
    state: int32
