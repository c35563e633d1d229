"""What a transport header of RPC-over-RDMA is: its numbers, and what it is when it is decoded (RFC 8166 section 4).

Owns the numbers of both versions, which native code has from here (``rdma.pxd``), the decoded headers, and the ways a
header can be wrong; imports :mod:`rpcrdma.wire.chunks`, and no native code: the numbers are needed to build that. The
first four words keep their meaning in all versions, and so does ERR_VERS.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

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

    __slots__ = ("credits", "direction", "lists", "payload", "procedure", "reads", "reply", "version", "writes", "xid")

    def __init__(
        self,
        xid: int,
        version: int,
        credit_value: int,
        procedure: int,
        direction: int,
        reads: list[ReadSegment],
        writes: list[WriteChunk],
        reply: WriteChunk | None,
        payload: int,
        lists: object,
    ) -> None:
        self.xid = xid
        self.version = version
        self.credits = credit_value
        self.procedure = procedure
        self.direction = direction
        """CALL, REPLY, UNDECIDED or OPTION."""
        self.reads = reads
        self.writes = writes
        self.reply = reply
        self.payload = payload
        self.lists = lists
        """The chunk lists once more, as :mod:`rpcrdma.wire.transport_header` has them for the reply."""


class MessageHeader(Header):
    """RDMA2_MSG or RDMA2_NOMSG."""

    __slots__ = ("inv_handle",)

    inv_handle: int
    """The handle that the reply may invalidate; 0 is none."""


class OptionHeader(Header):
    """RDMA2_OPTIONAL: no chunk lists, but a type and its own octets. ``payload`` is where the payload stream begins,
    if there is one."""

    __slots__ = ("info", "optdir", "opttype")

    optdir: int
    """CALL or REPLY."""
    opttype: int
    info: memoryview


def encode_version_error(xid: int, version: int, credit_value: int, lowest: int, highest: int) -> bytes:
    """RDMA_ERROR with ERR_VERS, the same for all versions; ``version`` is the offending one (section 4.5)."""
    return _ERR_VERS.pack(xid, version, credit_value, RDMA_ERROR, ERR_VERS, lowest, highest)
