"""What an RPC-over-RDMA responder may be told (RFC 8166, RFC 8797). Imports :mod:`rpcrdma.wire` and the interface of
extensions only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rpcrdma.engine.extensions import Extension
from rpcrdma.wire.private_data import PrivateData
from rpcrdma.wire.version_two import THRESHOLD

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
    first_credits: int = 16
    """What a connection begins with, at most: it gets more when it uses them up and asks for more."""
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

    version_two: bool = True
    """Speak version Two (draft-cel-nfsv4-rpcrdma-version-two-02) with peers that do."""
    extensions: Mapping[int, Extension] = field(default_factory=dict)
    """Version Two's OPTIONAL features by rdma_opttype."""
    max_backward_size: int = 64 << 10
    """Octets of a backward call, or of its reply, that is conveyed as a Long Call or a Long Reply; 0 for none."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        self.private_data.encode()
        if self.credits < 1 or self.first_credits < 1 or self.backward_credits < 0:
            raise ValueError("at least one credit is needed, and no fewer than no backward credits")
        if not 1024 <= self.max_call_size <= LARGEST_LEASE:
            raise ValueError(f"max_call_size must be from 1024 to {LARGEST_LEASE}")
        if self.max_segments < 64:
            raise ValueError("RFC 8267 section 6.4.2 demands sixteen segments in each of four chunks")
        if not 0 <= self.max_backward_size <= LARGEST_LEASE:
            raise ValueError(f"max_backward_size must be from 0 to {LARGEST_LEASE}")

    @property
    def private_data(self) -> PrivateData:
        """What we tell our peers."""
        return PrivateData(self.remote_invalidation, self.send_size, self.receive_size)

    @property
    def receive_buffer(self) -> int:
        """Octets of each Receive. A version Two receiver takes 4096 ("Default Values"), and the change from the version
        One threshold must not cost the connection ("Responder Does Not Support..."), so they are that large from the
        start, whatever we say in private data."""
        return max(self.receive_size, THRESHOLD) if self.version_two else self.receive_size

    @property
    def receives(self) -> int:
        """Receives posted on an idle connection, at most."""
        return self.credits + self.backward_credits

    @property
    def first_receives(self) -> int:
        """Receives posted when a connection is accepted."""
        return min(self.credits, self.first_credits) + self.backward_credits
