"""The procedures of NFS version 4: NULL and COMPOUND (RFC 7530 section 15, RFC 8881 section 16)."""

from __future__ import annotations

from collections.abc import Mapping

import nfsd.v4.ops  # noqa: F401 - fills the table of operations
from nfsd.v4.unguarded import unguarded
from rpcrdma.rpc.program import Call, Procedure

_MANY = 1 << 16


def nfs4_procedures() -> Mapping[int, Procedure]:
    """The table of version 4 of program 100003. COMPOUND has its body in :class:`nfsd.v4.procedures.Nfs4Procedures`,
    which the dispatcher is made with."""

    async def null(call: Call, arguments: None) -> None:
        """Do nothing."""

    return {0: Procedure("NULL", null), 1: Procedure("COMPOUND", replay=unguarded, chunks=_MANY)}
