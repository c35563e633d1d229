"""What a capture consists of, and the form in which the server hands it on.

Owns :class:`Event`, its encoding, and :class:`Connection`; imports nothing of the project. An event is one piece of
work at the provider's interface (a message sent or received, an RDMA Write, an RDMA Read's request and its data), one
RPC record on TCP, or the beginning or end of a connection. Data may be cut (a snapshot length); ``length`` is what they
were.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass


class Kind(enum.IntEnum):
    """What happened. IN is what came from the peer."""

    OPENED = 1
    """A connection there is: data is a :class:`Connection`."""
    CLOSED = 2
    """It is gone: data is the reason."""
    SEND_IN = 3
    SEND_OUT = 4
    WRITE_OUT = 5
    """RDMA Write to the peer's memory."""
    READ_OUT = 6
    """Request of an RDMA Read from the peer's memory, without data."""
    READ_IN = 7
    """That Read's data."""
    RECORD_IN = 8
    """An RPC record on TCP, without its record mark."""
    RECORD_OUT = 9
    LOST = 10
    """``length`` events of the connection were lost here: the reader was too slow."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    kind: Kind
    connection: int
    """The number of its connection in this server; 0: none."""
    time: int
    """Nanoseconds since the epoch."""
    length: int
    """Octets there were."""
    data: bytes = b""
    """Octets there are."""
    handle: int | None = None
    """The peer's memory: of Writes and Reads; of Sends, what they invalidate."""
    offset: int = 0
    number: int = 0
    """Of Reads: which one of its connection."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Whose traffic it is."""

    provider: str
    """The RDMA provider's name, or ``tcp``."""
    peer_address: str
    peer_port: int
    local_address: str
    local_port: int
    peer_data: str = ""
    """The private data of the connection request, in hexadecimal."""
    local_data: str = ""
    """Ours."""
    rejected: bool = False
    note: str = ""

    def encode(self) -> bytes:
        """As an event's data."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Connection:
        """Of an event's data."""
        return cls(**json.loads(data))


_HEAD = struct.Struct(">BBxxIQIIIQI")
"""Kind, whether there is a handle, connection, time, length, octets of data, handle, offset, number."""
HEAD_SIZE = _HEAD.size


def encode_head(event_kind: int, connection: int, time: int, length: int, size: int, handle: int | None, offset: int,
                number: int) -> bytes:  # fmt: skip
    """What stands before ``size`` octets of data."""
    return _HEAD.pack(event_kind, handle is not None, connection, time, length, size, handle or 0, offset, number)


class Reader:
    """Events out of a stream of octets that comes in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take more octets, give the events that are whole. Raises ValueError for what is no event."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= HEAD_SIZE:
            kind, named, connection, time, length, size, handle, offset, number = _HEAD.unpack_from(self._buffer, at)
            if len(self._buffer) - at < HEAD_SIZE + size:
                break
            content = bytes(self._buffer[at + HEAD_SIZE : at + HEAD_SIZE + size])
            at += HEAD_SIZE + size
            yield Event(Kind(kind), connection, time, length, content, handle if named else None, offset, number)
        del self._buffer[:at]
