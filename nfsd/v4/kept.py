"""Replies as slots keep them for retransmissions (RFC 8881 section 2.10.6.1).

Owns :class:`KeptReply`, and how a reply becomes one and is given again. The octets are the same for every way a
retransmission may come; where its DDP-eligible items stand is kept beside them, since over RDMA each retransmission
brings Write chunks of its own, where they MUST go (RFC 8166 section 4.3.2, RFC 8267 section 6.4.1). Imports the XDR
layer only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rpcrdma.xdr import Encoder
from rpcrdma.xdr.payload import Payload

_ITEM = struct.Struct(">II")


class KeptReply(bytes):
    """A COMPOUND4res in one piece that has DDP-eligible items in it. A reply without any is kept as plain bytes."""

    items: bytes
    """Where the items' octets stand: (start, length without padding) of each, ascending; packed, since a COMPOUND may
    have as many as it has operations."""


def keep(head: bytes, payloads: Sequence[tuple[int, Payload]]) -> bytes:
    """A reply: its head, and what belongs into that at the offsets given."""
    whole, items, last = bytearray(), bytearray(), 0
    for offset, payload in payloads:
        whole += head[last:offset]
        if payload.eligible:
            items += _ITEM.pack(len(whole), len(payload))
        whole += payload.view
        whole += bytes(-len(payload) & 3)
        last = offset
    whole += head[last:]
    if not items:
        return bytes(whole)
    kept = KeptReply(whole)
    kept.items = bytes(items)
    return kept


def give(kept: bytes, results: Encoder) -> None:
    """Add a kept reply to ``results``, its items as what they were."""
    if not isinstance(kept, KeptReply):
        results.append(kept)
        return
    view, done = memoryview(kept), 0
    for start, length in _ITEM.iter_unpack(kept.items):
        results.append(view[done : start - 4])
        results.bulk(Payload(view[start : start + length]))  # its length stands before it
        done = start + length + (-length & 3)
    results.append(view[done:])
