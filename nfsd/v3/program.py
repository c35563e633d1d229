"""NFS version 3 as the dispatcher sees it: 22 procedures (RFC 1813 section 3).

Owns the assembly of the procedure table; imports the families of procedures.

Under the replay cache are the procedures whose repetition would fail or do harm: SETATTR (the guard), CREATE, MKDIR,
SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK; and WRITE, as in Linux's server: its repetition succeeds, but a
retransmission that was held up on the way would put old data over what others have written since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nfsd.exports import ExportTable
from nfsd.protocol.nfs3 import NFSPROC3_NULL, PROCEDURES
from nfsd.v3 import attributes, creation, data, directory, filesystem, names
from nfsd.v3.request import Delegations, Limits, Operation, Request
from nfsd.vfs.service import FileService
from rpcrdma.rpc.program import Call, Procedure

OPERATIONS: Final[tuple[Operation, ...]] = (
    *attributes.OPERATIONS,
    *names.OPERATIONS,
    *data.OPERATIONS,
    *creation.OPERATIONS,
    *directory.OPERATIONS,
    *filesystem.OPERATIONS,
)


async def null(call: Call, arguments: None) -> None:
    """Answer, and do no work at all (section 3.3.0)."""


def nfs3_procedures(
    service: FileService,
    exports: ExportTable,
    limits: Limits | None = None,
    delegations: Delegations | None = None,
) -> Mapping[int, Procedure]:
    """The procedures by number, for ``Program(100003, "nfs", {3: ...})``. ``delegations``: those of NFSv4, if it is
    served too."""
    sizes = limits or Limits()

    def procedure(operation: Operation) -> Procedure:
        async def handler(call: Call, arguments: Any) -> Any:
            return await operation.handle(Request(service, exports, sizes, call, delegations), arguments)

        types = PROCEDURES[operation.number]
        return Procedure(types.name, handler, types.arguments, types.results, replay=operation.replay)

    table = {operation.number: procedure(operation) for operation in OPERATIONS}
    return {NFSPROC3_NULL: Procedure("NULL", null), **table}
