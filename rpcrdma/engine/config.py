"""What an RPC-over-RDMA responder may be told (RFC 8166, RFC 8797). Imports :mod:`rpcrdma.wire` only."""

from __future__ import annotations

from dataclasses import dataclass

from rpcrdma.wire.private_data import PrivateData

LARGEST_LEASE = 4 << 20


@dataclass(frozen=True, slots=True)
class ResponderOptions:
    """The settings of one responder; every connection of a listener has the same."""

    send_size: int = 4096
    """Octets of the largest RDMA Send we transmit: 1024 to 262144, a multiple of 1024 (RFC 8797 section 4.2)."""
    receive_size: int = 4096
    """Octets of each Receive buffer; bounds as for ``send_size``."""
    credits: int = 128
    """Calls a peer may have outstanding. Each is backed by a posted Receive (RFC 8166 section 3.3.1)."""
    backward_credits: int = 4
    """Backward calls we keep outstanding, each with a further Receive for its reply (RFC 8167 section 4.3.2)."""
    max_call_size: int = (1 << 20) + (128 << 10)
    """Octets of all Read chunks of one call together. Bounded by the largest lease, 4 MiB."""
    max_segments: int = 4096
    """Segments in the chunk lists of one call. RFC 8267 section 6.4.2 demands sixteen in each of four chunks."""
    pull_up: int = 512
    """An inline payload below this many octets is copied behind the header instead of being gathered by the Send."""
    remote_invalidation: bool = True
    """Set the R bit, and use Send With Invalidate when the peer set it too (RFC 8797 section 4.1)."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        self.private_data.encode()
        if self.credits < 1 or self.backward_credits < 0:
            raise ValueError("at least one credit is needed, and no fewer than no backward credits")
        if not 1024 <= self.max_call_size <= LARGEST_LEASE:
            raise ValueError(f"max_call_size must be from 1024 to {LARGEST_LEASE}")
        if self.max_segments < 64:
            raise ValueError("RFC 8267 section 6.4.2 demands sixteen segments in each of four chunks")

    @property
    def private_data(self) -> PrivateData:
        """What we tell our peers."""
        return PrivateData(self.remote_invalidation, self.send_size, self.receive_size)

    @property
    def receives(self) -> int:
        """Receives posted on an idle connection."""
        return self.credits + self.backward_credits
