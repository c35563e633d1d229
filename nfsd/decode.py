"""The command ``rdma-nfsd decode``: prints a capture in words.

Owns the lines, and what it must remember to write them: the names of calls, for their replies, and the pieces of Long
Calls and Long Replies. Imports the reading of captures, the words for headers and the names of calls.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import BinaryIO, Generic, TypeVar

from nfsd.call_names import Call, Reply, read_message, status_of
from rpcrdma.capture.pcapng import FormatError, read
from rpcrdma.capture.streams import Dissector, Message, What
from rpcrdma.capture.words import Described, describe_message, describe_private_data
from rpcrdma.verbs.softiwarp.terminate import describe as describe_terminate

_T = TypeVar("_T")
_REMEMBERED = 4096
_BEGINNING = 4096
"""Octets of an RDMA Write that are kept: the beginning of a Long Reply is in them."""
_INDENT = " " * 14


class _Memory(OrderedDict[object, _T], Generic[_T]):
    """Forgets the oldest."""

    def __setitem__(self, key: object, value: _T) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > _REMEMBERED:
            self.popitem(last=False)


class _Conversation:
    """One connection."""

    def __init__(self) -> None:
        self.calls = _Memory[Call]()
        """By direction and XID."""
        self.long_calls = _Memory[bool]()
        """Handles of first segments of position-zero Read chunks."""
        self.reads = _Memory[tuple[int, int]]()
        """By sink: the peer's handle and offset."""
        self.writes = _Memory[bytes]()
        """The beginning of what was written, by direction and handle."""


class Decoder:
    """Lines of text for the packets of one capture."""

    def __init__(self) -> None:
        self._dissector = Dissector()
        self._conversations = _Memory[_Conversation]()

    @property
    def strangers(self) -> int:
        """Packets that could not be understood."""
        return self._dissector.strangers

    def messages(self, file: BinaryIO) -> Iterator[tuple[Message, list[str]]]:
        """The messages of a file, and what each says. Raises FormatError."""
        for packet in read(file):
            for message in self._dissector.messages(packet):
                yield message, self.words(message)

    def lines(self, file: BinaryIO) -> Iterator[str]:
        """The lines of a file. Raises FormatError."""
        begun = None
        for message, (first, *more) in self.messages(file):
            begun = message.time if begun is None else begun
            since = (message.time - begun) / 1e9
            yield f"{since:12.6f}  {message.source} > {message.destination}  {first}"
            for line in more:
                yield _INDENT + line

    def words(self, message: Message) -> list[str]:
        """What a message says."""
        key = frozenset((message.source, message.destination))
        talk = self._conversations.get(key)
        if talk is None or message.what is What.REQUEST:
            talk = self._conversations[key] = _Conversation()
        name, size = message.what.value, message.length
        if message.what in (What.REQUEST, What.ACCEPT, What.REJECT):
            lines = [name, describe_private_data(message.data)]
            return lines + ([message.comment] if message.comment else [])
        if message.what is What.SEND:
            return self._send(talk, message)
        if message.what is What.RECORD:
            return [f"{name}: {size} octets", *self._rpc(talk, message.inbound, message.data, "")]
        if message.what is What.WRITE:
            talk.writes[message.inbound, message.handle] = message.data[:_BEGINNING]
            return [f"{name}: {size} octets to {message.handle or 0:#010x} at {message.offset:#x}"]
        if message.what is What.READ_REQUEST:
            talk.reads[message.sink] = (message.handle or 0, message.offset)
            return [f"{name}: {size} octets of {message.handle or 0:#010x} at {message.offset:#x}"]
        if message.what is What.READ_RESPONSE:
            return self._read_response(talk, message)
        if message.what is What.TERMINATE and len(message.data) >= 2:
            first, code = message.data[:2]
            return [f"{name}: {describe_terminate(first >> 4, first & 15, code)}"]
        if message.what is What.GAP:
            count = f"{size} " if size else ""
            return [f"gap: {count}{message.comment}"]
        return [f"{name}{f': {message.comment}' if message.comment else ''}"]

    def _send(self, talk: _Conversation, message: Message) -> list[str]:
        described = describe_message(message.data)
        lines = list(described.lines)
        if message.handle is not None:
            lines[0] += f"; invalidates {message.handle:#010x}"
        header = described.header
        if described.payload and header is not None:
            chunks: dict[int, int] = {}
            for position, _, length, _ in header.reads:
                chunks[position] = chunks.get(position, 0) + length
            payload = message.data[described.payload :]
            inline = f", {message.length - described.payload} octets inline"
            lines += self._rpc(talk, message.inbound, payload, inline, sorted(chunks.items()))
        elif header is not None:
            lines += self._long(talk, message, described)
        if described.error is not None:
            call = talk.calls.get((not message.inbound, described.error.xid))
            lines += [f"in answer to {call.text}"] if call is not None else []
        return lines

    def _long(self, talk: _Conversation, message: Message, described: Described) -> list[str]:
        """A message whose RPC message is in chunks: remember the chunk, or say what stands in it."""
        header = described.header
        assert header is not None
        if header.reads:
            if header.reads[0][0] == 0:
                talk.long_calls[header.reads[0][1]] = True
            return ["RPC call in the Read chunk"]
        segments = header.reply or ()
        written = next((talk.writes.get((message.inbound, handle)) for handle, length, _ in segments if length), None)
        size = sum(length for _, length, _ in segments)
        return self._rpc(talk, message.inbound, written, f", {size} octets in the Reply chunk") if written else []

    def _read_response(self, talk: _Conversation, message: Message) -> list[str]:
        source = talk.reads.get(message.sink)
        if source is None:
            return [f"{message.what.value}: {message.length} octets"]
        handle, offset = source
        lines = [f"{message.what.value}: {message.length} octets of {handle:#010x} at {offset:#x}"]
        if talk.long_calls.pop(handle, False):
            lines += self._rpc(talk, message.inbound, message.data, ", from the Read chunk")
        return lines

    def _rpc(
        self, talk: _Conversation, inbound: bool, data: bytes, where: str, chunks: list[tuple[int, int]] | None = None
    ) -> list[str]:
        """The line for an RPC message."""
        found = read_message(data, chunks or ())
        if found is None:
            return [f"RPC message that cannot be read{where}"]
        if isinstance(found, Call):
            talk.calls[inbound, found.xid] = found
            return [f"call {found.text}{where}"]
        return [f"{self._reply(talk, inbound, found)}{where}"]

    def _reply(self, talk: _Conversation, inbound: bool, reply: Reply) -> str:
        call = talk.calls.pop((not inbound, reply.xid), None)
        if call is None:
            return "reply" + (f": {reply.text}" if reply.text else "")
        how = reply.text or status_of(call.family, reply.results)
        return f"reply to {call.text}" + (f": {how}" if how else "")


def run(path: str) -> int:
    """Print a capture. Returns the exit status."""
    decoder = Decoder()
    try:
        if path == "-":
            _print(decoder, sys.stdin.buffer)
        else:
            with open(path, "rb") as file:
                _print(decoder, file)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            return 0  # who reads has seen enough
        print(f"rdma-nfsd decode: {path}: {error.strerror}", file=sys.stderr)
        return 1
    except FormatError as error:
        print(f"rdma-nfsd decode: {path}: {error}", file=sys.stderr)
        return 1
    if decoder.strangers:
        print(f"{decoder.strangers} packets are of no connection that could be understood", file=sys.stderr)
    return 0


def _print(decoder: Decoder, file: BinaryIO) -> None:
    for line in decoder.lines(file):
        print(line)
    sys.stdout.flush()
