"""Composing the Send of a reply: header and head in one leased buffer, bulk gathered from where it is.

Owns :func:`compose`; imports :mod:`rpcrdma.wire`, :mod:`rpcrdma.memory` and this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rpcrdma.engine.reduce import Reduction
from rpcrdma.memory import Lease, OutOfMemory
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.header import RDMA_NOMSG, Header

MOST_GATHERED = 6
"""Payloads gathered by one Send. With what lies between them, thirteen segments: devices take sixteen and more."""


class Leases(Protocol):
    """A source of send buffers."""

    def lease(self, size: int) -> Lease:
        """A buffer, or OutOfMemory."""


def _buffer(memory: Leases, size: int) -> tuple[Lease | None, memoryview]:
    """A registered buffer, or one off the heap when the account is used up.

    A reply must not wait for memory: the payloads of waiting replies may be what uses it up. No more than one
    message of the inline threshold per credit is ever taken from the heap.
    """
    try:
        lease = memory.lease(size)
    except OutOfMemory:
        return None, memoryview(bytearray(size))
    return lease, lease.view


def compose(
    codec: Codec,
    call: Header,
    grant: int,
    reduction: Reduction,
    header_size: int,
    pull_up: int,
    memory: Leases,
) -> tuple[Lease | None, Sequence[memoryview]]:
    """The segments of the reply's Send, and the lease that holds what is not payload.

    Payloads smaller than ``pull_up`` are copied: that costs less than another segment.
    """
    stream: Sequence[memoryview] = () if reduction.procedure == RDMA_NOMSG else reduction.stream
    gathered = [index for index in reduction.bulk if len(stream[index]) >= pull_up][:MOST_GATHERED] if stream else []
    size = header_size + sum(map(len, stream)) - sum(len(stream[index]) for index in gathered)
    lease, buffer = _buffer(memory, size)
    end = codec.encode_reply(buffer, call, grant, reduction.procedure, reduction.written, reduction.in_reply)
    if not gathered:
        for piece in stream:
            buffer[end : end + len(piece)] = piece
            end += len(piece)
        return lease, (buffer[:end],)
    segments = []
    start = 0
    for index, piece in enumerate(stream):
        if index in gathered:
            segments.append(buffer[start:end])
            segments.append(piece)
            start = end
        else:
            buffer[end : end + len(piece)] = piece
            end += len(piece)
    if end > start:
        segments.append(buffer[start:end])
    return lease, [segment for segment in segments if segment]
