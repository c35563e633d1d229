"""Transport headers and private data in words.

Owns the wording; imports :mod:`rpcrdma.wire`. RFC 8166 section 4, RFC 8797, draft-cel version Two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rpcrdma.wire import private_data
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.errors import TransportError, decode_error
from rpcrdma.wire.header import (
    CALL,
    FIXED_WORDS,
    RDMA2_OPTIONAL,
    RDMA_DONE,
    RDMA_ERROR,
    RDMA_MSGP,
    REPLY,
    Discard,
    Header,
    HeaderFault,
    MessageHeader,
    OptionHeader,
)
from rpcrdma.wire.version_one import VersionOne
from rpcrdma.wire.version_two import VersionTwo

PROCEDURES = {
    1: {0: "RDMA_MSG", 1: "RDMA_NOMSG", RDMA_MSGP: "RDMA_MSGP", RDMA_DONE: "RDMA_DONE", RDMA_ERROR: "RDMA_ERROR"},
    2: {0: "RDMA2_MSG", 1: "RDMA2_NOMSG", RDMA_ERROR: "RDMA2_ERROR", RDMA2_OPTIONAL: "RDMA2_OPTIONAL"},
}
_CODECS: dict[int, Codec] = {1: VersionOne(), 2: VersionTwo()}
_DIRECTIONS = {CALL: "CALL", REPLY: "REPLY"}
_MOST_SEGMENTS = 4096
"""More than fit the largest message there is."""


@dataclass(slots=True)
class Described:
    """A message's header: lines of words, the first for itself; and the header, when it is one with chunk lists."""

    lines: list[str]
    header: Header | None = None
    payload: int = 0
    """Where the RPC message begins; 0 where there is none."""
    error: TransportError | None = field(default=None)


def describe_private_data(data: bytes) -> str:
    """What a connection's request or reply says (RFC 8797)."""
    found = private_data.find(data)
    if found is None:
        return f"no private data of RFC 8797 in {len(data)} octets" if data else "no private data"
    return (
        f"private data of RFC 8797: sends up to {found.send_size} octets, receives up to {found.receive_size}, "
        f"remote invalidation {'supported' if found.remote_invalidation else 'not supported'}"
    )


def describe_message(data: bytes) -> Described:
    """The transport header of a message in words."""
    view = memoryview(data)
    if len(view) < FIXED_WORDS.size:
        return Described([f"{len(view)} octets: too short for a transport header"])
    xid, version, credits_, procedure = FIXED_WORDS.unpack_from(view)
    # RDMA_ERROR is the same in all versions (RFC 8166 section 4.2.4).
    name = PROCEDURES.get(version, {RDMA_ERROR: "RDMA_ERROR"}).get(procedure, f"procedure {procedure}")
    first = f"{name}, version {version}, xid {xid:#010x}, credits {credits_}"
    if procedure == RDMA_ERROR:
        error = decode_error(view)
        return Described([first, "error that cannot be read" if error is None else str(error)], error=error)
    codec = _CODECS.get(version)
    if codec is None:
        return Described([first])
    try:
        header = codec.decode(view, _MOST_SEGMENTS)
    except HeaderFault as fault:
        return Described([first, f"{fault.fault.value}: {fault}"])
    except Discard:
        return Described([first] if version == 1 and procedure == RDMA_DONE else [first, "header that cannot be read"])
    if isinstance(header, OptionHeader):
        direction = _DIRECTIONS.get(header.optdir, str(header.optdir))
        return Described([f"{first}, {direction}, type {header.opttype}, {len(header.info)} octets of information"])
    if isinstance(header, MessageHeader):
        first += f", {_DIRECTIONS[header.direction]}, rdma_inv_handle "
        first += f"{header.inv_handle:#010x}" if header.inv_handle else "none"
    lines = [first, *_lists(header)]
    return Described(lines, header, header.payload if procedure == 0 else 0)


def _lists(header: Header) -> list[str]:
    lines = [
        f"Read chunk at position {position}: {_segment(handle, length, offset)}"
        for position, handle, length, offset in header.reads
    ]
    lines += [
        "Write chunk: " + (", ".join(_segment(*segment) for segment in chunk) or "empty") for chunk in header.writes
    ]
    if header.reply is not None:
        lines.append("Reply chunk: " + (", ".join(_segment(*segment) for segment in header.reply) or "empty"))
    return lines


def _segment(handle: int, length: int, offset: int) -> str:
    return f"{length} octets of {handle:#010x} at {offset:#x}"
