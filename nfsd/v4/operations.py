"""The table of operations: one row each, filled by the modules of operations as they are imported.

Owns :class:`Operation` and the decorator; imports the protocol's own table of numbers and argument types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs4_ops import OPERATIONS
from rpcrdma.rpc.program import ENCODED as ENCODED
from rpcrdma.rpc.program import Encoded as Encoded
from rpcrdma.xdr.schema import UNION, Node, node_of

Handler = Callable[..., Awaitable[Any]]

NATIVE: Final[Mapping[int, bool]] = {
    p.OP_ACCESS: False, p.OP_CLOSE: True, p.OP_COMMIT: False, p.OP_CREATE: True, p.OP_DELEGRETURN: True,
    p.OP_GETATTR: False, p.OP_GETFH: False, p.OP_GET_DIR_DELEGATION: True, p.OP_LINK: True, p.OP_LOCK: True,
    p.OP_LOCKU: True, p.OP_LOOKUP: False, p.OP_OPEN: True, p.OP_OPEN_CONFIRM: True, p.OP_OPEN_DOWNGRADE: True,
    p.OP_PUTFH: False, p.OP_PUTPUBFH: False, p.OP_PUTROOTFH: False, p.OP_READ: False, p.OP_READDIR: False,
    p.OP_REMOVE: True, p.OP_RENAME: True,
    p.OP_RENEW: False, p.OP_RESTOREFH: False, p.OP_SAVEFH: False, p.OP_SEQUENCE: False,
    p.OP_SETATTR: True, p.OP_WRITE: True,
}  # fmt: skip
"""The operations that have a native body, and whether they change anything."""

ROOM_FOR_RESULT = 256
"""Octets of reply that must be left before an operation that changes anything is begun: its result will fit."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. ``handler(compound[, arguments])`` returns the OK arm's value (None where that is void), or a
    whole result (``READ4res``…) where a failure carries data; it raises for every other failure. Without a handler the
    operation is its native function."""

    number: int
    name: str
    handler: Handler | None
    arguments: Any
    result: Any
    succeeded: Node | None
    """What follows NFS4_OK; None: nothing."""
    minors: frozenset[int]
    changes: bool
    """Whether it changes files or state, so that it must not begin when its reply could not be sent."""
    alone: bool
    """Whether it may stand in a COMPOUND without SEQUENCE, then as the only operation (RFC 8881 section 2.10.3)."""


TABLE: dict[int, Operation] = {}
"""Operation number to row, for everything implemented."""


def operation(number: int, *, changes: bool = False, alone: bool = False) -> Callable[[Handler], Handler]:
    """Register the handler of an operation; argument and result types come from the protocol's table."""

    def register(handler: Handler) -> Handler:
        TABLE[number] = _row(number, handler, changes=changes, alone=alone)
        return handler

    return register


def _row(number: int, handler: Handler | None, *, changes: bool, alone: bool = False) -> Operation:
    declared = OPERATIONS[number]
    return Operation(
        number=number,
        name=declared.name,
        handler=handler,
        arguments=declared.arguments,
        result=declared.results,
        succeeded=_succeeded(node_of(declared.results)),
        minors=frozenset(declared.minors),
        changes=changes,
        alone=alone,
    )


def _succeeded(result: Node) -> Node | None:
    """The node after the status in a successful result."""
    if result.kind == UNION:
        arm = result.arms.get(0, result.default)
        return result.fields[arm][1] if arm else None
    rest = result.fields[1:]
    if len(rest) > 1:
        raise TypeError(f"{result.name}: more than one field after the status")
    return rest[0][1] if rest else None


TABLE.update({number: _row(number, None, changes=changes) for number, changes in NATIVE.items()})
