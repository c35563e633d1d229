"""A reply's record in pieces, as a capture sees it. Owns :func:`record_parts`."""

from __future__ import annotations

from typing import Any


def record_parts(reply: Any) -> list[bytes | memoryview]:
    """The pieces of an :class:`rpcrdma.rpc.program.RpcReply` in the order in which they are sent: the head's, payloads,
    padding."""
    parts: list[bytes | memoryview] = []
    done = 0
    head = memoryview(reply.head)
    for offset, payload in reply.payloads:
        parts.append(head[done:offset])
        done = offset
        parts.append(payload.view)
        parts.append(bytes(-len(payload.view) & 3))
    parts.append(head[done:])
    return parts
