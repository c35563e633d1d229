"""Captures that are running, and the taps on the connections that they want to see.

Owns :class:`Recorder`, the bounded queue of one capture, :class:`Tap`, one connection's, and :class:`Captures`; imports
the events and the interface of providers. No I/O: who asked for a capture takes its chunks away.

Nobody captures, nothing costs: a connection has no tap then. While somebody does, what passes is copied into the
recorder's queue at once. When the reader is too slow for that, events are lost and counted, until half of the queue is
free again; clients never wait.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rpcrdma.capture.events import HEAD_SIZE, Connection, Kind, encode_head
from rpcrdma.verbs.interface import RdmaRead, RdmaWrite, Received, Send

_log = logging.getLogger(__name__)

MOST_RECORDERS = 4
"""Captures at a time."""
Octets = bytes | memoryview


class Tappable(Protocol):
    """A connection."""

    def describe(self) -> Connection:
        """Whose traffic it is."""

    def set_tap(self, tap: Tap | None) -> None:
        """Show everything that passes to ``tap``, or to nobody any more."""


class Recorder:
    """One capture's queue."""

    def __init__(self, limit: int, snaplen: int = 0, client: str = "", wake: Callable[[], None] | None = None) -> None:
        """``limit``: octets in the queue; ``snaplen``: octets of each event's data, 0 for all; ``client``: the only
        address that is wanted; ``wake`` is called when the queue stops being empty."""
        self.limit, self.snaplen, self.client = limit, snaplen, client
        self.queued = 0
        self.events = 0
        self.lost = 0
        self._wake = wake
        self._unsaid: dict[int, int] = {}
        """Of the lost, by connection, those that no LOST event has told of."""
        self._queue: collections.deque[bytes] = collections.deque()

    def wants(self, connection: Connection) -> bool:
        """Whether this connection is to be seen."""
        return not self.client or self.client == connection.peer_address

    def add(
        self,
        kind: Kind,
        connection: int,
        parts: Sequence[Octets],
        length: int,
        handle: int | None = None,
        offset: int = 0,
        number: int = 0,
        *,
        now: int | None = None,
    ) -> None:
        """Queue a copy of an event, or count it as lost. ``parts`` are its data, of ``length`` octets together."""
        if now is None:
            now = time.time_ns()
        whole = kind in (Kind.OPENED, Kind.CLOSED)
        size = length if whole or not self.snaplen else min(length, self.snaplen)
        if kind is Kind.READ_OUT:
            size = 0  # its length is that of the data to come
        # Without a connection's beginning nothing behind it can be read: there is always some room left for those.
        room = self.limit + self.limit // 4 if whole else self.limit // 2 if self._unsaid else self.limit
        if self.queued + HEAD_SIZE + size > room:
            self.miss(connection, 1)
            return
        if self._unsaid:
            self._tell(now)
        self.events += 1
        head = encode_head(kind, connection, now, length, size, handle, offset, number)
        if size == length:
            self._push(b"".join((head, *parts)))
        else:
            self._push(b"".join((head, *_shortened(parts, size))))

    def miss(self, connection: int, count: int) -> None:
        """Count events of a connection as lost, and say so in front of the next one."""
        self.lost += count
        self._unsaid[connection] = self._unsaid.get(connection, 0) + count

    def finish(self) -> None:
        """Queue what has not been said yet."""
        self._tell(time.time_ns())

    def _tell(self, now: int) -> None:
        """Say what was lost."""
        for connection, count in self._unsaid.items():
            self._push(encode_head(Kind.LOST, connection, now, count, 0, None, 0, 0))
        self._unsaid.clear()

    def _push(self, chunk: bytes) -> None:
        first = not self._queue
        self._queue.append(chunk)
        self.queued += len(chunk)
        if first and self._wake is not None:
            self._wake()

    def take(self) -> bytes:
        """The oldest chunk; empty when there is none."""
        if not self._queue:
            return b""
        chunk = self._queue.popleft()
        self.queued -= len(chunk)
        return chunk


def _shortened(parts: Sequence[Octets], size: int) -> list[Octets]:
    kept = []
    for part in parts:
        if size <= 0:
            break
        kept.append(part[:size])
        size -= len(part)
    return kept


class Tap:
    """What one connection shows."""

    def __init__(self, captures: Captures, number: int, connection: Tappable) -> None:
        self.number = number
        self.recorders: tuple[Recorder, ...] = ()
        self._captures, self._connection = captures, connection
        self._reads: dict[int, list[tuple[object, list[tuple[int, memoryview]]]]] = {}
        """RDMA Reads under way by the identity of their token, which is held: number and sink."""
        self._next_read = 1

    def show(
        self,
        kind: Kind,
        parts: Sequence[Octets],
        length: int,
        handle: int | None = None,
        offset: int = 0,
        number: int = 0,
    ) -> None:
        """Record an event. A mistake in here costs the capture, never the connection."""
        try:
            for recorder in self.recorders:
                recorder.add(kind, self.number, parts, length, handle, offset, number)
        except Exception:
            _log.exception("capturing ends")
            self._captures.stop_all()

    def received(self, messages: Sequence[Received]) -> None:
        """A batch of messages came."""
        for lease, length, invalidated in messages:
            self.show(Kind.SEND_IN, (lease.view[:length],), length, invalidated)

    def posted(self, writes: Sequence[RdmaWrite], send: Send | None) -> None:
        """A chain of RDMA Writes and perhaps a Send is being posted."""
        for handle, offset, source in writes:
            self.show(Kind.WRITE_OUT, (source,), len(source), handle, offset)
        if send is not None:
            segments, invalidate = send
            self.show(Kind.SEND_OUT, segments, sum(map(len, segments)), invalidate)

    def posted_reads(self, reads: Sequence[RdmaRead], token: object) -> None:
        """A chain of RDMA Reads is being posted."""
        sinks = []
        for handle, offset, sink in reads:
            number, self._next_read = self._next_read, self._next_read % 0xFFFFFFFF + 1
            self.show(Kind.READ_OUT, (), len(sink), handle, offset, number)
            sinks.append((number, sink))
        self._reads.setdefault(id(token), []).append((token, sinks))

    def completed(self, token: object, ok: bool) -> None:
        """A chain is complete. If it was one of RDMA Reads, the data are there."""
        waiting = self._reads.get(id(token))
        if waiting is None:
            return
        _, sinks = waiting.pop(0)
        if not waiting:
            del self._reads[id(token)]
        if ok:
            for number, sink in sinks:
                self.show(Kind.READ_IN, (sink,), len(sink), number=number)

    def record_in(self, record: memoryview) -> None:
        """An RPC record came over TCP."""
        self.show(Kind.RECORD_IN, (record,), len(record))

    def record_out(self, parts: Sequence[Octets]) -> None:
        """An RPC record leaves."""
        self.show(Kind.RECORD_OUT, parts, sum(map(len, parts)))

    def closed(self, reason: str) -> None:
        """The connection is gone; the last event."""
        text = reason.encode()[:256]
        self.show(Kind.CLOSED, (text,), len(text))


class Captures:
    """The captures of one server, and its connections."""

    def __init__(self) -> None:
        self._recorders: list[Recorder] = []
        self._connections: dict[Tappable, Tap | None] = {}
        self._numbers: dict[Tappable, int] = {}
        self._next = 1
        self.on_failure: Callable[[Recorder], None] = lambda _: None
        """Told of every capture that is ended from this side."""

    @property
    def running(self) -> int:
        """How many there are."""
        return len(self._recorders)

    def add(self, connection: Tappable, made: int | None = None) -> None:
        """A connection was made; ``made`` is when, in nanoseconds since the epoch, if that was before now."""
        self._numbers[connection] = self._next
        self._connections[connection] = None
        self._next = self._next % 0xFFFFFFFF + 1
        if self._recorders:
            for recorder in self._recorders:
                self._attach(recorder, connection, made)

    def discard(self, connection: Tappable, reason: str) -> None:
        """A connection is gone."""
        tap = self._connections.pop(connection, None)
        self._numbers.pop(connection, None)
        if tap is not None:
            tap.closed(reason)

    def refused(self, connection: Connection) -> None:
        """A connection was refused."""
        number, self._next = self._next, self._next % 0xFFFFFFFF + 1
        for recorder in self._recorders:
            if recorder.wants(connection):
                data = connection.encode()
                recorder.add(Kind.OPENED, number, (data,), len(data))

    def start(self, recorder: Recorder) -> None:
        """Begin a capture. Raises ValueError when there are too many."""
        if len(self._recorders) >= MOST_RECORDERS:
            raise ValueError(f"{MOST_RECORDERS} captures are running already")
        self._recorders.append(recorder)
        for connection in list(self._connections):
            self._attach(recorder, connection)

    def stop(self, recorder: Recorder) -> None:
        """End a capture."""
        if recorder not in self._recorders:
            return
        self._recorders.remove(recorder)
        for connection, tap in list(self._connections.items()):
            if tap is not None and recorder in tap.recorders:
                tap.recorders = tuple(other for other in tap.recorders if other is not recorder)
                if not tap.recorders:
                    self._connections[connection] = None
                    connection.set_tap(None)
        recorder.finish()

    def stop_all(self) -> None:
        """End every capture from this side."""
        for recorder in list(self._recorders):
            self.stop(recorder)
            self.on_failure(recorder)

    def _attach(self, recorder: Recorder, connection: Tappable, made: int | None = None) -> None:
        description = connection.describe()
        if not recorder.wants(description):
            return
        number = self._numbers[connection]
        data = description.encode()
        recorder.add(Kind.OPENED, number, (data,), len(data), now=made)
        tap = self._connections[connection]
        if tap is None:
            tap = self._connections[connection] = Tap(self, number, connection)
            connection.set_tap(tap)
        tap.recorders = (*tap.recorders, recorder)
