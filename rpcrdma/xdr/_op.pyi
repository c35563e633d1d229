"""Declarations compiled for C."""

from rpcrdma.xdr.schema import Node

class Op:
    """A node, compiled."""

    def __init__(self, node: Node) -> None: ...
    uses_slots: bool
    """Whether fields are stored by offset; for tests."""
