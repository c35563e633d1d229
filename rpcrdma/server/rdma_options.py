"""The settings of an RDMA server. Owns :class:`RdmaServerOptions`; imports the responder's."""

from __future__ import annotations

from dataclasses import dataclass, field

from rpcrdma.engine.config import LARGEST_LEASE, ResponderOptions

SMALLEST_BLOCK = 1024
"""Of the pool: a lease takes a power of two of octets, and no fewer."""


@dataclass(frozen=True, slots=True)
class RdmaServerOptions:
    """The settings of an RDMA server."""

    responder: ResponderOptions = field(default_factory=ResponderOptions)
    connection_memory: int = 64 << 20
    """Octets one connection may use for payloads: sinks of Read chunks, results, send buffers."""
    max_reads: int = 16
    """RDMA Reads to keep outstanding on a connection, if the peer lets us."""
    lease_timeout: float = 20.0
    """Seconds an operation waits for a buffer before it fails with OutOfMemory."""
    idle_time: float = 360.0
    """Seconds without a message after which a connection is closed."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        if self.connection_memory < 2 * LARGEST_LEASE:
            raise ValueError(f"connection_memory must be at least {2 * LARGEST_LEASE}")
        if self.max_reads < 1:
            raise ValueError("max_reads must be positive")


def receive_memory(options: ResponderOptions) -> int:
    """Octets of the Receives that a connection may hold: posted, and under the calls being worked on."""
    block = SMALLEST_BLOCK
    while block < options.receive_buffer:
        block *= 2
    return block * (3 * options.credits + 2 * options.backward_credits)
