"""One TCP connection of the server: records in, calls out, replies back, and what it may use.

Owns :class:`TcpConnection` (a :class:`rpcrdma.rpc.program.Transport`). Imports what every wake-up goes through
(:mod:`rpcrdma.tcp.wakeups`), the record stream, the dispatcher and asyncio; :mod:`rpcrdma.server.tcp` makes
connections and looks at each once a second.

Operation: one wake-up takes every call that has arrived; the replies of all that finish at once leave in one system
call. Replies of calls that had to wait are gathered until the event loop's next turn and leave together as well.

Back-pressure: a connection with ``max_calls`` in progress, or with too many octets of replies that its peer does not
take, is not read from until that changes; TCP tells the peer. So it is while its host is over its rates
(:mod:`rpcrdma.pace`). Memory is the connection's account, which is a share of its host's (:mod:`rpcrdma.hosts`);
when it is used up reading waits.

Time: one timer of the listener looks at all connections once a second. A record that has begun must arrive and replies
must make headway within ``transfer_time``; a connection without any call is closed after ``idle_time``. One that waits
for memory is closed when its peer has gone: nobody reads from it, so nothing else would tell.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rpcrdma.capture.events import Connection
from rpcrdma.capture.recorder import Tap
from rpcrdma.firewall import contain, report
from rpcrdma.holds import Hold
from rpcrdma.hosts import Seat
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Lease, OutOfMemory
from rpcrdma.rpc.dispatch import NO_REPLY
from rpcrdma.rpc.program import RpcReply
from rpcrdma.server.awaited import Awaited
from rpcrdma.server.headway import Headway
from rpcrdma.server.lease_waits import LeaseWaits
from rpcrdma.server.securing import Securing
from rpcrdma.server.slowing import Slowing
from rpcrdma.server.sockets import peer_is_gone, plain_address, set_options
from rpcrdma.server.tcp_limits import TcpLimits as TcpLimits
from rpcrdma.tcp.stream import RecordStream
from rpcrdma.tcp.wakeups import WokenConnection
from rpcrdma.tls.kernel import KeysStay
from rpcrdma.turns import SLICE

if TYPE_CHECKING:
    from rpcrdma.server.tcp import TcpListener

_log = limited_logger(__name__)
_REPLY = b"\0\0\0\1"
_clock = time.monotonic
_RECORDS = 256
"""Waiting to be dispatched, about: what a peer sends beyond is left where it is."""


class TcpConnection(WokenConnection):
    """One connection. Made by the listener."""

    netid: str
    peer_address: str
    peer_port: int
    local_address: str

    def __init__(self, listener: TcpListener, sock: socket.socket, seat: Seat) -> None:
        fd, limits = sock.fileno(), listener.limits
        account = seat.account(limits.connection_memory)
        stream = RecordStream(fd, account, limits.max_record, most_records=_RECORDS)
        super().__init__(seat, limits.max_calls, stream, listener.loop.time)
        self._fd, self._account = fd, account
        self._listener, self._socket, self._seat = listener, sock, seat
        self._loop, self._dispatcher, self._limits = listener.loop, listener.dispatcher, listener.limits
        self.peer_address, self.peer_port = plain_address(sock.getpeername())
        self.local_address, self._local_port = plain_address(sock.getsockname())
        self.netid = "tcp6" if ":" in self.peer_address else "tcp"
        self.max_backchannel_size = self.max_long_backchannel_size = self._limits.max_record
        self.security = "none"
        """How it is secured: ``none``, ``tls`` or ``mtls``."""
        self.certified = ""
        """What names the peer's certificate proves."""
        native = listener.dispatcher.native_calls(self)
        if native is not None:
            self.stream.answer_natively(native, self._limits.max_unsent, self)
            self.stream.set_pace(seat.host.pace)
        self._paced = native is not None  # MOUNT, NLM and others are never slowed down
        self.slowing = self._pace = Slowing(seat.host.pace, self._go_on, self.close)
        self._callbacks = Awaited(self._loop)
        self._securing = Securing(listener.secure, self._loop, self)
        self._close_handlers: list[Callable[[], None]] = []
        self._lease_waits = LeaseWaits(self._account, self._loop)
        self._in_wakeup = self._memory_awaited = False
        self._headway = Headway(self.stream, self._limits.transfer_time)
        set_options(sock, self._limits.transfer_time)
        self._regulate()

    def __str__(self) -> str:
        return f"{self.netid} {self.peer_address} port {self.peer_port}"

    # -- what a capture wants ------------------------------------------------------------------------------------

    def describe(self) -> Connection:
        """Whose traffic it is, for a capture."""
        return Connection("tcp", self.peer_address, self.peer_port, self.local_address, self._local_port)

    def set_tap(self, tap: Tap | None) -> None:
        """Show every record to ``tap``; None: to nobody."""
        self.stream.set_tap(tap)

    # -- what programs see ---------------------------------------------------------------------------------------

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run once, when the connection is gone (at once if it already is)."""
        if self.closed:
            callback()
        else:
            self._close_handlers.append(callback)

    async def lease(self, size: int) -> Lease:
        """A buffer, when there is room. ConnectionError when the connection ends, OutOfMemory if none can ever be."""
        return await self._lease_waits.lease(size)

    async def call_back(
        self,
        message: bytes | memoryview,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (the protocol's)
        long: bool = False,
        reply_size: int = 0,
    ) -> memoryview:
        """Send a backward call (RFC 8881 section 2.10.3.1) and return its reply. ConnectionError when the connection is
        or gets closed; TimeoutError; ValueError when a call with this XID is outstanding. All messages are alike."""
        if self.closed or self.draining:
            raise ConnectionError("the connection is closed")
        xid = int.from_bytes(message[:4], "big")
        return await self._callbacks.reply(xid, partial(self._send, RpcReply(xid, message, [])), timeout)

    def begin_tls(self) -> bool:
        """Have TLS begin behind the next reply (RFC 9289 section 4.1). False: it cannot. It must be the first call: of
        those before, anybody on the way may have made some, and what they left would be taken for the peer's."""
        return self.calls == 1 and self.served - len(self.waiting) == 1 and self._securing.ask()

    def _secure(self) -> None:
        """The reply to AUTH_TLS has left: the handshake is next."""
        self._stop_waiting()
        if self.waiting or self.stream.partial:
            self.fail("octets in the clear behind AUTH_TLS")
            return
        try:
            self._securing.begin(self._socket, self._seat.host.key, self.stream, self._receive_held_up)
        except OSError as error:
            self.fail(f"no TLS: {error}")

    def _stop_waiting(self) -> None:
        if self.reading:
            self._loop.remove_reader(self._fd)
        if self.writing:
            self._loop.remove_writer(self._fd)
        self.reading = self.writing = False

    def close(self) -> None:
        """Close the connection now; replies that the socket takes at once still leave."""
        if self.closed:
            return
        contain(None, self._listener.captures.discard, self, "closed")
        contain(None, self._flush_all)
        self.closed = True
        self._stop_waiting()  # first what would bring us here again
        self._pace.close()
        self._seat.leave()
        self._listener.forget(self)
        contain(None, self.stream.close)
        while self.waiting:
            record, hold = self.waiting.popleft()
            self._dispatcher.drop(self, record, (), [hold])
        contain(None, self._account.close)
        self._securing.end(self._socket)
        self._socket.close()
        self._callbacks.fail()
        self._securing.close()
        # It holds what holds us: that would be left to the collector of garbage. Not now: it may be what calls us.
        self._loop.call_soon(self.stream.answer_natively, None)
        self._lease_waits.fail("the connection is closed")
        handlers, self._close_handlers = self._close_handlers, []
        for handler in handlers:
            contain(None, handler)

    def _flush_all(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.flush(everything=True)

    # -- the listener's verbs ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no further calls; close when those in progress are answered."""
        if not self.closed:
            self.draining = True
            self._settle()

    def check_time(self, now: float) -> None:
        """Close the connection if its peer is believed no more, or either has been slow or silent for too long."""
        self._securing.check_time(now)
        if self.closed:
            return
        limits, stream, hosts = self._limits, self.stream, self._listener.hosts
        self._seat.look(now)
        starved = bool(stream.starved)
        if lack := self._headway.lack(now, self.served, self.reading):
            hosts.events["closed_slow"] += 1
            self.fail(lack)
        elif self._seat.stuck(now, self._account, self._waits_for_peer(starved)):
            hosts.events["closed_stuck"] += 1
            self.fail("the peer holds much memory, which is short, and makes no headway")
        elif starved and peer_is_gone(self._fd, stream.missing):
            hosts.events["closed_gone"] += 1
            self.close()
        elif self._seat.starved(now, self._account, starved and self._memory_awaited):
            hosts.events["closed_starved"] += 1
            self.fail("it waits for memory, which is short, and holds some")
        elif self.idle and now - self.last_call >= limits.idle_time:
            hosts.events["closed_idle"] += 1
            _log.debug("%s: idle, closing", self)
            self.close()

    def _waits_for_peer(self, starved: bool) -> bool:
        stream = self.stream
        return bool(stream.queued or (stream.partial and not starved and not self._pace.waits))

    # -- what :mod:`rpcrdma.hosts` sees ----------------------------------------------------------------------------

    def evict(self, reason: str) -> None:
        """Close at once."""
        _log.debug("%s: closing, %s", self, reason)
        self.close()

    def proceed(self) -> None:
        """Take further calls, at the loop's next turn."""
        self.flush_soon()

    @property
    def idle(self) -> bool:
        """Whether nothing is in progress in either direction."""
        stream = self.stream
        busy = self.calls or self.waiting or self._callbacks or stream.queued or stream.unfinished or self._pace.waits
        return not busy

    # -- events --------------------------------------------------------------------------------------------------

    def called(self) -> None:
        """Its first call has come. It counts, if the host's calls are executed."""
        if self._dispatcher.admits(self):
            self._seat.call_made()

    def _go_on(self) -> None:
        """The host may have calls again."""
        if self.closed or self.draining:
            return
        if self.waiting:
            self.work()
        else:
            self.receive(True)

    def resume_soon(self) -> None:
        """Go on when the other connections have had their turn."""
        self.resuming = True
        self._loop.call_soon(contain, self.close, self._resume)

    def _resume(self) -> None:
        self.resuming = False
        if self.closed or self.draining or self._pace.waits:
            return
        if self.waiting:
            self.work()
        else:
            self.receive(False)

    def work(self) -> None:
        """Dispatch what waits, as far as the bounds allow, and send the replies there are."""
        waiting, limit, dispatch = self.waiting, self._limits.max_calls, self._dispatcher.dispatch
        stream, room, begin_call = self.stream, self._limits.max_record, self._seat.begin_call
        self._in_wakeup = True
        until = _clock() + self._seat.begin_turn()
        try:
            while waiting and self.calls < limit and not self.closed and not self.draining:
                if stream.queued > self._limits.max_unsent or self._securing.waits:
                    break
                record, hold = waiting[0]
                if len(record) >= 8 and record[7] == 1 and bytes(record[4:8]) == _REPLY:
                    waiting.popleft()
                    self._callbacks.take(record)
                    hold.release()
                    continue
                if self._paced and self._pace.stops():
                    break
                if not begin_call():
                    break  # until others of the same host are over
                waiting.popleft()
                self.calls += 1
                self._pace.expect(len(record))
                dispatch(self, record, (), [hold], self._finished, room)
                if _clock() >= until:
                    # Calls that never wait count no further than this; _settle has the others come next.
                    if waiting:
                        self._seat.cut_short()
                    break
        finally:
            self._in_wakeup = False
        if not self.closed:
            self.last_call = self._loop.time()
            self._settle()

    # -- calls that are answered natively, but later ---------------------------------------------------------------

    def crashed(self) -> None:
        """A mistake of ours. A reply may be lost, and only the end of the connection says so."""
        _log.exception("%s: closing", self)
        self.close()

    def take_back(self, record: memoryview, hold: Hold) -> None:
        """It is to be dispatched after all, before those that came later."""
        self.waiting.appendleft((record, hold))

    def _finished(self, reply: RpcReply | None) -> None:
        """The outcome of one call."""
        self.calls -= 1
        self._seat.end_call()
        if self.closed:
            if reply is not None:
                reply.release()
            return
        if reply is None:
            self.close()
            return
        if reply is not NO_REPLY:
            try:
                self._send(reply)
            except Exception as error:
                report(self, error)
                self.close()
        elif not self._in_wakeup:
            self.flush_soon()

    def _send(self, reply: RpcReply) -> None:
        self.stream.queue(reply)
        if not self._in_wakeup:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Look at what there is to do, and send, in the loop's next turn."""
        if not self.flush_due:
            self.flush_due = True
            self._loop.call_soon(contain, self.close, self._flush)

    def _flush(self) -> None:
        self.flush_due = False
        try:
            if self.closed or (not self._securing.due and self.is_settled()):
                return
        except OSError as error:
            self.broken(error)
            return
        self.work()

    def _settle(self) -> None:
        """Send what there is to send, then decide what to wait for."""
        try:
            sent = self.stream.flush()
        except OSError as error:
            self.broken(error)
            return
        if self.stream.slowed and not self.draining:
            self._pace.wait()
        if sent and self._securing.due and not self.calls:
            self._secure()
            return
        over = self.stream.eof and not self.waiting and not self.stream.unfinished
        if sent and (not self.calls or self.stream.severed) and (self.draining or over):
            self.close()
            return
        if self.writing != (writing := not (sent or self.stream.busy)):
            if writing:
                self._loop.add_writer(self._fd, contain, self.close, self._writable)
            else:
                self._loop.remove_writer(self._fd)
            self.writing = writing
        if sent and self.stream.unfinished and not self.waiting and not self.resuming and not self._pace.waits:
            self.resume_soon()
        elif (
            self.waiting
            and self.stream.queued <= self._limits.max_unsent
            and self.calls < self._limits.max_calls
            and not self.draining
            and not self._seat.queued
            and not self._pace.waits
            and not self._securing.waits
        ):
            # Time did, or replies that the peer has taken since, kept us from going on: nothing else would wake us.
            self.flush_soon()
        self._regulate()

    def _writable(self) -> None:
        if self.stream.queued > SLICE:
            try:
                if not self.stream.flush() and not self.stream.busy:
                    return  # there is more to send, and to do nothing else until then
            except OSError as error:
                self.broken(error)
                return
        if self.stream.unfinished and not self.waiting and not self.draining and not self._pace.waits:
            self.receive(False)
        else:
            self.work()

    def _regulate(self) -> None:
        """Read exactly while we can do something with what comes."""
        stream = self.stream
        held_up = self.waiting or self.draining or self._securing.waits or self._pace.waits
        full = stream.starved or stream.queued > self._limits.max_unsent
        reading = not (held_up or full or stream.eof or (stream.unfinished and self.writing))
        if stream.starved and not self.draining:
            self._await_memory(stream.starved)
        if reading != self.reading and not self.closed:
            self.reading = reading
            if reading:
                self._loop.add_reader(self._fd, contain, self.close, self.readable)
            else:
                self._loop.remove_reader(self._fd)

    def _await_memory(self, size: int) -> None:
        if self._memory_awaited:
            return
        try:
            self._memory_awaited = True
            self._account.when_available(size, partial(self._memory_there, size))
        except OutOfMemory:
            self.fail(f"a record needs a buffer of {size} octets, more than the bound on memory")

    def _memory_there(self, size: int) -> None:
        # Taken now, or somebody else would; used later, for we are inside somebody's release.
        self._memory_awaited = False
        with contextlib.suppress(OutOfMemory):
            self.stream.give(self._account.lease(size))
        self._loop.call_soon(contain, self.close, self._receive_held_up)

    def _receive_held_up(self) -> None:
        if not self.closed:
            self.receive(False)

    def broken(self, error: OSError) -> None:
        """The socket has failed."""
        if isinstance(error, KeysStay):
            _log.warning("%s: %s; closing", self, error)
        else:
            _log.debug("%s: %s", self, error)
        if not self.waiting or self.draining:
            self.close()
        else:  # what has come whole is begun all the same
            self.stream.sever()
            self.flush_soon()

    def fail(self, reason: str) -> None:
        """Close at once, and say why."""
        _log.warning("%s: %s; closing", self, reason)
        self.close()
