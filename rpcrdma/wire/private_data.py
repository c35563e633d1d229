"""CM private data of RPC-over-RDMA version One (RFC 8797): what peers tell each other while connecting.

Owns the eight-octet format and the thresholds that follow from two of them; imports nothing of the project.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

FORMAT_IDENTIFIER = b"\xf6\xab\x0e\x18"
FORMAT_VERSION = 1
REMOTE_INVALIDATION = 0x01
"""The R bit; the seven others are reserved: sent as zero, ignored when received (section 4)."""

SIZE_UNIT = 1024
SMALLEST_SIZE = 1024
LARGEST_SIZE = 262144

_FORMAT = struct.Struct(">4sBBBB")


@dataclass(frozen=True, slots=True)
class PrivateData:
    """One peer's properties. The defaults are those of a peer that sent none (section 5.1)."""

    remote_invalidation: bool = False
    """The peer supports Send With Invalidate for every STag it will ever expose on this connection."""
    send_size: int = SMALLEST_SIZE
    """Octets of the largest RDMA Send the peer may transmit."""
    receive_size: int = SMALLEST_SIZE
    """Octets of the largest RDMA Send the peer can take."""

    def encode(self) -> bytes:
        """The eight octets. Raises ValueError for a size that the format cannot say (section 4.2)."""
        return _FORMAT.pack(
            FORMAT_IDENTIFIER,
            FORMAT_VERSION,
            REMOTE_INVALIDATION if self.remote_invalidation else 0,
            _encode_size(self.send_size),
            _encode_size(self.receive_size),
        )


ABSENT = PrivateData()


def _encode_size(octets: int) -> int:
    if octets % SIZE_UNIT or not SMALLEST_SIZE <= octets <= LARGEST_SIZE:
        raise ValueError(f"{octets} is not a multiple of {SIZE_UNIT} from {SMALLEST_SIZE} to {LARGEST_SIZE}")
    return octets // SIZE_UNIT - 1


def find(buffer: bytes) -> PrivateData | None:
    """The properties found in ``buffer``, or None where there are none.

    The identifier may stand at any offset, since other layers put their own data in front (section 5.2). What
    follows it must be of the known format version and whole; an identifier where it is not may be other data that
    happens to look like one, and the search goes on behind it.
    """
    offset = buffer.find(FORMAT_IDENTIFIER)
    while offset >= 0:
        if offset + _FORMAT.size <= len(buffer):
            _, version, flags, send_size, receive_size = _FORMAT.unpack_from(buffer, offset)
            if version == FORMAT_VERSION:
                return PrivateData(
                    bool(flags & REMOTE_INVALIDATION),
                    (send_size + 1) * SIZE_UNIT,
                    (receive_size + 1) * SIZE_UNIT,
                )
        offset = buffer.find(FORMAT_IDENTIFIER, offset + 1)
    return None


@dataclass(frozen=True, slots=True)
class Properties:
    """What holds for a connection between two peers, seen from one of them."""

    send_threshold: int
    """Octets of the largest message we may send: the smaller of our send size and the peer's receive size."""
    receive_threshold: int
    """Octets of the largest message the peer may send."""
    remote_invalidation: bool
    """Whether a responder may use Send With Invalidate: both peers said so (section 4.1)."""


def negotiate(own: PrivateData, peer: PrivateData | None) -> Properties:
    """The properties of a connection, given both sides' private data; None is a peer that sent none."""
    if peer is None:
        peer = ABSENT
    return Properties(
        min(own.send_size, peer.receive_size),
        min(peer.send_size, own.receive_size),
        own.remote_invalidation and peer.remote_invalidation,
    )
