"""What every version of the RPC-over-RDMA transport header has in common (RFC 8166 section 4.2).

Owns the numbers of both versions, which native code has from here (``rdma.pxd``), the decoded header, the ways a header
can be wrong, and the interface of one version's codec; imports :mod:`rpcrdma.wire.chunks`.
The first four words keep their meaning in all versions, and so does ERR_VERS.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from rpcrdma.wire.chunks import ReadSegment, WriteChunk

VERSION_ONE = 1
VERSION_TWO = 2

FIXED_WORDS = struct.Struct(">4I")
"""xid, version, credit value, procedure."""
SMALLEST_HEADER = 28
"""A shorter message cannot be trusted in any field (section 4.5)."""
LISTS_ONE = 16
"""Where the chunk lists begin in version One,"""
LISTS_TWO = 24
"""and in version Two."""

RDMA_MSG = 0
RDMA_NOMSG = 1
RDMA_MSGP = 2
"""Version One, as the next."""
RDMA_DONE = 3
RDMA_ERROR = 4
RDMA2_OPTIONAL = 5
"""Version Two."""

CALL = 0
REPLY = 1
"""msg_type (RFC 5531 section 9): the direction of a message."""
UNDECIDED = 2
"""A version One message without an inline payload stream: only its RPC message could tell the direction."""
OPTION = 3
"""No RPC message at all, but an extension's."""

ERR_VERS = 1

_ERR_VERS = struct.Struct(">7I")


class Fault(enum.Enum):
    """Why a call gets an error instead of a reply. Each version has its own codes for them."""

    VERSION = "unsupported version"
    PROCEDURE = "unknown procedure"
    HEADER = "malformed header"
    NO_ROOM = "no room for the reply"
    OPTION = "unknown option"


class Shortage(NamedTuple):
    """What NO_ROOM says where the version has words for it (draft-cel version Two, "Transport Errors")."""

    processed: bool = False
    """The upper layer had finished with the call when the shortage was found."""
    segment: int = 0
    """From 1 at the first segment of the first Write chunk, over Write list and Reply chunk; 0 names none."""
    needed: int = 0
    """Octets needed in that segment."""


class Discard(Exception):
    """The message is to be discarded silently."""


class HeaderFault(Exception):
    """The header of a call is wrong; the four fixed words could be read."""

    def __init__(self, xid: int, version: int, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.xid = xid
        self.version = version
        self.fault = fault


class Header:
    """A decoded transport header. ``payload`` is the offset of the payload stream in its message."""

    __slots__ = ("credits", "direction", "payload", "procedure", "reads", "reply", "version", "writes", "xid")

    def __init__(
        self,
        xid: int,
        version: int,
        credit_value: int,
        procedure: int,
        reads: list[ReadSegment],
        writes: list[WriteChunk],
        reply: WriteChunk | None,
        payload: int,
        direction: int = CALL,
    ) -> None:
        self.xid = xid
        self.version = version
        self.credits = credit_value
        self.procedure = procedure
        self.reads = reads
        self.writes = writes
        self.reply = reply
        self.payload = payload
        self.direction = direction
        """CALL, REPLY, UNDECIDED or OPTION."""

    def offers(self, handle: int) -> bool:
        """Whether one of the chunks is in the memory that ``handle`` names."""
        if any(handle == segment[1] for segment in self.reads):
            return True
        chunks = self.writes if self.reply is None else [*self.writes, self.reply]
        return any(handle == segment[0] for chunk in chunks for segment in chunk)


class Codec(Protocol):
    """One version of the protocol."""

    version: int
    call_size: int
    """Octets of the header of a call without chunks."""

    def decode(self, view: memoryview, max_segments: int) -> Header:
        """The header of the message ``view``, whose version word is ours, and which has at least SMALLEST_HEADER
        octets. Raises Discard or HeaderFault. RDMA_ERROR has a decoder of its own, :mod:`rpcrdma.wire.errors`."""

    def reply_size(self, call: Header) -> int:
        """Octets of the header of any reply to ``call``: every Write chunk and the Reply chunk are echoed."""

    def invalidates(self, call: Header) -> int | None:
        """The handle that the reply to ``call`` is to invalidate, where both peers can do that."""

    def encode_reply(
        self,
        buffer: memoryview,
        call: Header,
        credit_value: int,
        procedure: int,
        writes: list[WriteChunk],
        reply: WriteChunk | None,
    ) -> int:
        """Put a reply's header at the start of ``buffer``; returns its size."""

    def encode_error(self, xid: int, credit_value: int, fault: Fault, shortage: Shortage = Shortage()) -> bytes:  # noqa: B008 (immutable)
        """A whole error message for any fault but VERSION."""

    def encode_call(
        self,
        xid: int,
        credit_value: int,
        procedure: int = RDMA_MSG,
        reads: Sequence[ReadSegment] = (),
        writes: Sequence[WriteChunk] = (),
        reply: WriteChunk | None = None,
        invalidate: int = 0,
    ) -> bytes:
        """The header of a call. ``invalidate`` is the one handle that its reply may invalidate, 0 for none; version
        One has no word for it."""


def encode_version_error(xid: int, version: int, credit_value: int, lowest: int, highest: int) -> bytes:
    """RDMA_ERROR with ERR_VERS, the same for all versions; ``version`` is the offending one (section 4.5)."""
    return _ERR_VERS.pack(xid, version, credit_value, RDMA_ERROR, ERR_VERS, lowest, highest)
