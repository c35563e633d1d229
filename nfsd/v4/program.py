"""The procedures of NFS version 4: NULL and COMPOUND (RFC 7530 section 15, RFC 8881 section 16)."""

from __future__ import annotations

from collections.abc import Mapping

import nfsd.v4.ops  # noqa: F401 - fills the table of operations
from nfsd.v4.compound import compound
from nfsd.v4.procedures import Nfs4Procedures
from nfsd.v4.server import Nfs4Server
from nfsd.v4.unguarded import unguarded
from rpcrdma.rpc.program import Call, Procedure


def nfs4_procedures(server: Nfs4Server, native: Nfs4Procedures | None = None) -> Mapping[int, Procedure]:
    """The table of version 4 of program 100003. ``native`` carries out the operations that have a native body; without
    it they are carried out by one of their own."""
    native = native or Nfs4Procedures(server)

    async def null(call: Call, arguments: None) -> None:
        """Do nothing."""

    async def run(call: Call) -> None:
        await compound(server, native, call)

    return {0: Procedure("NULL", null), 1: Procedure("COMPOUND", run, raw=True, replay=unguarded)}
