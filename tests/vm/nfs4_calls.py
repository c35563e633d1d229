"""NFSv4 calls and their answers, read from a capture of a network with a server on it.

Owns :class:`Exchange` and :func:`passed`; imports the reading of captures and the declarations. It reads iWARP and TCP,
and callbacks in either direction. Whole messages in chunks are known by their replies' time only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from nfsd.protocol import nfs4 as p
from rpcrdma.capture.pcapng import read
from rpcrdma.capture.streams import Dissector, Message, What
from rpcrdma.capture.words import describe_message
from rpcrdma.rpc.messages import msg_type, rpc_msg
from rpcrdma.xdr import Decoder, XdrError

_TAKEN_OUT = ("READ", "READLINK", "READ_PLUS")
"""Operations whose results are not whole where they went to a Write chunk: what stands behind is not read."""
_TAG = 1024


@dataclass(eq=False, slots=True)
class Exchange:
    """A COMPOUND or CB_COMPOUND."""

    client: str
    """Its address, whoever calls."""
    callback: bool
    called: int
    """Nanoseconds; by the clock of the host of the server, where the message passes."""
    operations: list[tuple[str, Any]]
    """Names and arguments."""
    replied: int = 0
    """Likewise; 0: not yet."""
    status: int = p.NFS4_OK
    results: list[tuple[str, Any]] = field(default_factory=list)

    def first(self, name: str) -> Any:
        """The arguments of the first operation of a name; None: there is none."""
        return next((arguments for one, arguments in self.operations if one == name), None)


def passed(file: BinaryIO, server: str) -> Iterator[tuple[bool, Exchange]]:
    """What passes, in order: each exchange when it is called (False), and again when it is answered (True)."""
    dissector = Dissector()
    waiting: dict[tuple[str, str, int], Exchange] = {}
    for packet in read(file):
        for message in dissector.messages(packet):
            if message.what not in (What.SEND, What.RECORD) or len(message.data) < 8:
                continue
            to_server = _host(message.destination) == server
            xid = int.from_bytes(message.data[:4], "big")
            found = _answered(waiting, message, xid, to_server) or _called(message, to_server)
            if found is None:
                continue
            if not found.replied:
                waiting[message.source, message.destination, xid] = found
            yield bool(found.replied), found


def _host(place: str) -> str:
    return place.rpartition(":")[0]


def _rpc(message: Message) -> tuple[Decoder, rpc_msg] | None:
    """The RPC message, decoded up to its body's end."""
    octets: memoryview = memoryview(message.data)
    chunks: dict[int, int] = {}
    if message.what is What.SEND:
        described = describe_message(message.data)
        if described.header is None or not described.payload:
            return None
        for position, _, length, _ in described.header.reads:
            chunks[position] = chunks.get(position, 0) + length
        octets = octets[described.payload :]
    decoder = Decoder(octets, [(position, memoryview(bytes(length))) for position, length in sorted(chunks.items())])
    try:
        return decoder, decoder.decode(rpc_msg)
    except (XdrError, ValueError):
        return None


def _answered(
    waiting: dict[tuple[str, str, int], Exchange], message: Message, xid: int, to_server: bool
) -> Exchange | None:
    """The exchange that a message answers."""
    found = waiting.get((message.destination, message.source, xid))
    if found is None or found.callback is not to_server:
        return None
    read_ = _rpc(message)
    if read_ is not None and read_[1].body.mtype != msg_type.REPLY:
        return None
    del waiting[message.destination, message.source, xid]
    found.replied = message.time
    if read_ is not None:
        _results(read_[0], found)
    return found


def _called(message: Message, to_server: bool) -> Exchange | None:
    """The exchange that a message begins."""
    read_ = _rpc(message)
    if read_ is None or read_[1].body.cbody is None:
        return None
    decoder, body = read_[0], read_[1].body.cbody
    callback = body.prog != p.NFS4_PROGRAM
    if body.proc != p.NFSPROC4_COMPOUND or callback is to_server or body.vers != (p.NFS_CB if callback else p.NFS_V4):
        return None
    made = Exchange(_host(message.destination if callback else message.source), callback, message.time, [])
    table = p.CALLBACK_OPERATIONS if callback else p.OPERATIONS
    try:
        decoder.opaque(_TAG)
        decoder.uint32()
        if callback:
            decoder.uint32()
        for _ in range(decoder.uint32()):
            declared = table[decoder.uint32()]
            arguments = None if declared.arguments is None else decoder.decode(declared.arguments)
            made.operations.append((declared.name, None if declared.name == "WRITE" else arguments))
    except (XdrError, ValueError, KeyError):
        pass  # as far as it can be read
    return made


def _results(decoder: Decoder, into: Exchange) -> None:
    table = p.CALLBACK_OPERATIONS if into.callback else p.OPERATIONS
    try:
        into.status = decoder.uint32()
        decoder.opaque(_TAG)
        for _ in range(decoder.uint32()):
            declared = table[decoder.uint32()]
            if declared.name in _TAKEN_OUT:
                return
            into.results.append((declared.name, decoder.decode(declared.results)))
    except (XdrError, ValueError, KeyError):
        pass
