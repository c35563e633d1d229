"""The bounds of a TCP listener's connections. Owns :class:`TcpLimits`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpLimits:
    """Bounds of one listener; octets and seconds."""

    max_record: int = (1 << 20) + (128 << 10)
    max_calls: int = 128
    connection_memory: int = 64 << 20
    max_unsent: int = 8 << 20
    """Replies that the peer has not taken beyond which no further call is read."""
    idle_time: float = 360.0
    transfer_time: float = 60.0
