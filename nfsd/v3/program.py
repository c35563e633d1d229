"""NFS version 3 as the dispatcher sees it: 22 procedures (RFC 1813 section 3).

Owns the assembly of the procedure table; imports the families of procedures.

Procedures without a handler here are answered natively (:mod:`nfsd.v3.procedures`), and nowhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from nfsd.exports import ExportTable
from nfsd.protocol.nfs3 import (
    NFSPROC3_CREATE,
    NFSPROC3_LINK,
    NFSPROC3_MKDIR,
    NFSPROC3_MKNOD,
    NFSPROC3_NULL,
    NFSPROC3_REMOVE,
    NFSPROC3_RENAME,
    NFSPROC3_RMDIR,
    NFSPROC3_SETATTR,
    NFSPROC3_SYMLINK,
    NFSPROC3_WRITE,
    PROCEDURES,
)
from nfsd.v3 import directory, filesystem
from nfsd.v3.request import Delegations, Limits, Operation, Request
from nfsd.vfs.service import FileService
from rpcrdma.rpc.program import Call, Procedure

OPERATIONS: Final[tuple[Operation, ...]] = (
    *directory.OPERATIONS,
    *filesystem.OPERATIONS,
)

REPLAYED: Final = frozenset(
    {
        NFSPROC3_SETATTR, NFSPROC3_WRITE, NFSPROC3_CREATE, NFSPROC3_MKDIR, NFSPROC3_SYMLINK, NFSPROC3_MKNOD,
        NFSPROC3_REMOVE, NFSPROC3_RMDIR, NFSPROC3_RENAME, NFSPROC3_LINK,
    }
)  # fmt: skip
"""Under the replay cache are the procedures whose repetition would fail or do harm: SETATTR (the guard), and what
makes, removes and moves names; and WRITE, as in Linux's server: its repetition succeeds, but a retransmission that was
held up on the way would put old data over what others have written since."""


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

    def handler(operation: Operation) -> Callable[[Call, Any], Awaitable[Any]]:
        async def handle(call: Call, arguments: Any) -> Any:
            return await operation.handle(Request(service, exports, sizes, call, delegations), arguments)

        return handle

    handlers: dict[int, Callable[..., Awaitable[Any]]] = {NFSPROC3_NULL: null}
    handlers.update((operation.number, handler(operation)) for operation in OPERATIONS)
    return {
        number: Procedure(types.name, handlers.get(number), types.arguments, types.results, replay=number in REPLAYED)
        for number, types in PROCEDURES.items()
    }
