"""The duplicate request cache: a retransmitted call of a non-idempotent procedure is answered, not executed again.

Owns :class:`ReplayCache`; imports the vocabulary of :mod:`rpcrdma.rpc.program` and payloads only. Used by the
dispatcher for procedures marked ``replay`` (NFSv3's; NFSv4.1 has sessions for this).

A client retransmits after it has lost its connection, so entries outlive connections and the port is no part of the
key. Entries hold RPC replies, not what a transport made of them. A call that is still being executed is never
forgotten: its retransmission on the same connection is dropped (the reply is on its way), one on another connection
waits for the result, since the reply on the first may be lost.
"""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from rpcrdma.rpc.program import RpcReply, Transport
from rpcrdma.xdr.payload import Payload

Key = tuple[str, int, int, int, int, int, int]
"""Peer address, XID, program, version, procedure, length of the arguments and their checksum."""

CHECKSUM_LENGTH: Final = 256
"""Octets of the arguments that the checksum covers: XIDs get reused, arguments as well are rarely the same."""
ENTRY_COST: Final = 400
"""Octets an entry is taken to need besides its reply."""


def make_key(
    peer_address: str,
    xid: int,
    procedure: tuple[int, int, int],
    data: memoryview,
    offset: int,
    chunks: Sequence[tuple[int, memoryview]],
) -> Key:
    """The key of a call whose arguments begin at ``offset`` of ``data`` (before, there is the credential, whose stamp
    may differ between transmissions). Length and checksum are those of the unreduced arguments, so that they do not
    depend on how a client cut them into chunks."""
    length = len(data) - offset
    if not chunks:
        checksum = zlib.crc32(data[offset : offset + CHECKSUM_LENGTH])
        return (peer_address, xid, *procedure, length, checksum)
    checksum, room, done, before = 0, CHECKSUM_LENGTH, offset, 0
    for position, view in chunks:
        padding = -len(view) & 3
        length += len(view) + padding
        for piece in (data[done : max(position - before, done)], view, bytes(padding)):
            checksum = zlib.crc32(piece[:room], checksum)
            room -= min(room, len(piece))
        done = max(position - before, done)
        before += len(view) + padding
    checksum = zlib.crc32(data[done : done + room], checksum)
    return (peer_address, xid, *procedure, length, checksum)


class Entry:
    """One call, from its first arrival on."""

    __slots__ = ("cuts", "expires", "key", "reply", "transport", "waiters")

    def __init__(self, key: Key, transport: Transport | None) -> None:
        self.key = key
        self.transport = transport
        self.reply = b""
        """The whole reply, once there is one."""
        self.cuts: tuple[tuple[int, int], ...] = ()
        """Where in it DDP-eligible items are: start and length, without padding. The retransmission of a call whose
        reply had no room brings larger Write chunks, where these must go again (RFC 8267 section 6.4.1)."""
        self.expires = 0.0
        self.waiters: list[tuple[Transport, Callable[[RpcReply | None], None]]] = []

    def recall(self) -> RpcReply:
        """The reply, as it was given first."""
        xid = self.key[1]
        if not self.cuts:
            return RpcReply(xid, self.reply, [])
        whole, done = memoryview(self.reply), 0
        head = bytearray()
        payloads = []
        for start, length in self.cuts:
            head += whole[done:start]
            payloads.append((len(head), Payload(whole[start : start + length])))
            done = start + length + (-length & 3)
        head += whole[done:]
        return RpcReply(xid, head, payloads)


class ReplayCache:
    """Bounded in octets and entries; what was finished longest ago goes first, and nothing is kept beyond ``ttl``
    seconds: by then no client retransmits, while XIDs may have been used anew."""

    def __init__(
        self,
        max_bytes: int = 8 << 20,
        max_entries: int = 16384,
        *,
        ttl: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes, self.max_entries = max_bytes, max_entries
        self.size = 0
        """Octets accounted for finished entries."""
        self.hits = 0
        """Retransmissions answered from here or made to wait."""
        self._ttl, self._clock = ttl, clock
        self._running: dict[Key, Entry] = {}
        # Ordered: a plain dict finds its oldest entry ever more slowly as the ones before it go.
        self._finished: OrderedDict[Key, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running) + len(self._finished)

    def look_up(self, key: Key) -> Entry | None:
        """The entry with the finished reply to this call, if there is one."""
        entry = self._finished.get(key)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            self._forget(entry)
            return None
        self.hits += 1
        return entry

    def is_new(self, key: Key) -> bool:
        """Whether nothing is known of this call."""
        return key not in self._finished and key not in self._running

    def remember(self, key: Key, reply: bytes) -> None:
        """Keep the reply of a call that was executed without waiting (:meth:`begin` and :meth:`finish` in one)."""
        entry = Entry(key, None)
        self._keep(entry, reply)

    def begin(self, key: Key, transport: Transport) -> Entry | None:
        """Take note that the call is being executed. None: it is already (then :meth:`join` or drop it)."""
        if key in self._running:
            self.hits += 1
            return None
        entry = self._running[key] = Entry(key, transport)
        return entry

    def join(self, key: Key, transport: Transport, done: Callable[[RpcReply | None], None]) -> bool:
        """Have ``done`` called with the result of the running call ``key``. False: its reply is on its way on this very
        connection, so there is nothing to wait for."""
        entry = self._running[key]
        if entry.transport is transport or any(waiting is transport for waiting, _ in entry.waiters):
            return False
        entry.waiters.append((transport, done))
        return True

    def finish(self, entry: Entry, reply: RpcReply) -> None:
        """The call is over: keep its reply and give it to those who joined."""
        del self._running[entry.key]
        self._keep(entry, join_reply(reply))
        if reply.payloads:
            entry.cuts = cuts(reply)
        waiters, entry.waiters = entry.waiters, []
        for _, done in waiters:
            done(entry.recall())

    def _keep(self, entry: Entry, reply: bytes) -> None:
        entry.reply = reply
        entry.expires = self._clock() + self._ttl
        self._finished[entry.key] = entry
        self.size += len(reply) + ENTRY_COST
        self._trim()

    def abandon(self, entry: Entry, reply: RpcReply | None) -> None:
        """The call was not executed (it could not be decoded, was dropped, or failed inside the server): forget it, so
        that a retransmission tries again, and give those who joined a copy of ``reply``."""
        del self._running[entry.key]
        for _, done in entry.waiters:
            done(None if reply is None else RpcReply(reply.xid, join_reply(reply), []))

    def _forget(self, entry: Entry) -> None:
        del self._finished[entry.key]
        self.size -= len(entry.reply) + ENTRY_COST

    def _trim(self) -> None:
        now = self._clock()
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if self.size <= self.max_bytes and len(self._finished) <= self.max_entries and oldest.expires > now:
                break
            self._forget(oldest)


def join_reply(reply: RpcReply) -> bytes:
    """The whole reply in one piece, payloads and their padding in place; the reply itself stays as it is."""
    if not reply.payloads:
        return bytes(reply.head)
    pieces: list[bytes | memoryview] = []
    head, done = memoryview(reply.head), 0
    for offset, payload in reply.payloads:
        pieces += (head[done:offset], payload.view, bytes(-len(payload) & 3))
        done = offset
    pieces.append(head[done:])
    return b"".join(pieces)


def cuts(reply: RpcReply) -> tuple[tuple[int, int], ...]:
    """Where the payloads stand in the reply that :func:`join_reply` makes."""
    before, found = 0, []
    for offset, payload in reply.payloads:
        found.append((offset + before, len(payload)))
        before += (len(payload) + 3) & ~3
    return tuple(found)
