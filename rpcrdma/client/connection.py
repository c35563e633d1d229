"""A client's connection to one server, whatever carries it and however often that has to be made anew.

Owns :class:`Connection`: the XIDs, the calls that are not answered, reconnection and retransmission, and backward
calls. Imports asyncio, the dispatcher and this package.

Losing the connection
    What carries the calls is replaced when it is lost: at once, then after growing delays. All calls without a reply
    are sent again, with the XIDs they had, so that the server's replay cache knows them (RFC 5531 section 9). On a
    connection that lives nothing is ever sent twice (RFC 8881 section 2.9.2, RFC 7530 section 3.1.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType

from rpcrdma.client.callbacks import CallbackTransport
from rpcrdma.client.calls import Carrier, Dial, PendingCall, Read
from rpcrdma.client.errors import Denied
from rpcrdma.client.gss import Protection, is_stale
from rpcrdma.client.messages import Message, Reply, decode_reply, encode_call, own_credential
from rpcrdma.client.options import ClientOptions
from rpcrdma.engine.choice import LINUX, ChunkChoice
from rpcrdma.engine.requester import Request
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import NO_REPLY, Dispatcher
from rpcrdma.rpc.messages import opaque_auth
from rpcrdma.rpc.program import Program, RpcReply
from rpcrdma.xdr import Encoder

_log = logging.getLogger(__name__)

_CLOSE_TIME = 10.0
"""Seconds that a connection may take to end."""
_FAREWELL = 1.0
"""Seconds for the server to say that it has let a security context go."""
LONGEST_TOKEN = 64 << 10
"""Octets of the longest reply while a security context is made."""
DEFAULT_REPLY = 1024
"""Octets of the longest reply to a call that says nothing about it."""


def _sys_call(call: tuple[int, int, int, opaque_auth, Encoder | bytes], xid: int) -> Message:
    return encode_call(xid, *call)


class Connection:
    """Made by :func:`rpcrdma.client.connect`. Use as an asynchronous context manager, or by ``open`` and ``close``.

    Any number of calls may be made at a time.
    """

    def __init__(
        self,
        dial: Dial,
        options: ClientOptions,
        pool: Pool,
        credential: opaque_auth | None = None,
        callbacks: Sequence[Program] = (),
        close: Callable[[], Awaitable[None]] | None = None,
        name: str = "",
        security: Protection | None = None,
    ) -> None:
        self.security = security
        """What secures calls that name no credential; None: :attr:`credential` is believed, or not."""
        self.credential = own_credential() if credential is None else credential
        """Of calls that name none. May be changed at any time."""
        self.options = options
        self.reconnections = 0
        """How often the connection has been made anew."""
        self.retransmissions = 0
        """Calls that were sent again."""
        self._dial, self._close, self._name = dial, close, name
        self._pool = pool
        self._dispatcher = Dispatcher(callbacks) if callbacks else None
        self._transports: dict[Carrier, CallbackTransport] = {}
        self._carrier: Carrier | None = None
        self._calls: dict[int, PendingCall] = {}
        self._next_xid = random.getrandbits(32)
        self._failures = 0
        self._reconnecting: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._on_reconnect: list[Callable[[], None]] = []
        self._opened = self._closed = False

    def __str__(self) -> str:
        return self._name

    async def __aenter__(self) -> Connection:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises OSError at the first failure."""
        self._loop = asyncio.get_running_loop()
        try:
            self._adopt(await self._dial(self))
        except BaseException:
            self._closed = True
            if self._close is not None:
                await self._close()
            raise
        self._opened = True
        self._watchdog = self._loop.call_later(self.options.silence / 4, self._check)

    async def close(self) -> None:
        """End the connection; calls that are not answered fail."""
        if self._closed:
            return
        if self.security is not None and self._opened and self._carrier is not None:
            with contextlib.suppress(Exception):  # the context ends by itself, some time
                async with asyncio.timeout(_FAREWELL):
                    await self.security.destroy(self._exchange)
        self._closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        self._fail("the connection is closed")
        carrier = self._carrier
        if carrier is not None:
            carrier.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(carrier.wait_closed(), _CLOSE_TIME)
        if self._close is not None:
            await self._close()

    # What callers ask for

    async def call(
        self,
        program: int,
        version: int,
        procedure: int,
        arguments: Encoder | bytes = b"",
        *,
        into: memoryview | Sequence[memoryview] = (),
        reply_max: int = DEFAULT_REPLY,
        credential: opaque_auth | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (what was lent for the call must be taken back)
        chunks: ChunkChoice = LINUX,
    ) -> Reply:
        """Call a procedure and return the reply, whose results are still to be decoded (:meth:`Reply.decode`).

        ``arguments`` are XDR. Payloads in an Encoder (DDP-eligible items that are a :class:`~rpcrdma.xdr.Payload`) are
        what may go by Read chunks, without a copy; their memory must not change until the call is over.

        ``into`` is writable memory for the results' DDP-eligible items, one for each in their order: the server writes
        there itself if the transport allows it, otherwise decoding copies them there, so that a decoded item is the
        beginning of its ``into`` in either case. It is the server's until the call is over, however that ends. An item
        that is longer is an error of the server's, or comes out apart from it (TCP).

        ``reply_max`` is the most octets that the RPC reply may have, its header included and those items not.

        Raises RpcError when the server's RPC refuses the call, TransportError when its RPC-over-RDMA does, BadReply
        for a reply that is none, ConnectionError when the connection is lost for good, TimeoutError after ``timeout``
        seconds, PermissionError if there is no security context to be had, ValueError for a call that cannot be sent
        (``chunks``, or more than ``max_reply`` wanted).
        """
        places = (into,) if isinstance(into, memoryview) else tuple(into)
        security = self.security
        if security is None or credential is not None:
            message = partial(_sys_call, (program, version, procedure, credential or self.credential, arguments))
            return await self._exchange(message, decode_reply, places, reply_max, timeout, chunks)
        room = security.reply_room(reply_max, places)
        for last in (False, True):
            sealer = await security.ready(self._exchange, program, version)
            make, read = security.call(sealer, program, version, procedure, arguments)
            try:
                if security.whole:  # the server cannot put a part of it anywhere
                    return await self._exchange(make, read, (), room, timeout, chunks, renew=True, placed=places)
                return await self._exchange(make, read, places, room, timeout, chunks, renew=True)
            except Denied as error:
                if last or not is_stale(error):
                    raise
                security.forget(sealer)
        raise AssertionError

    async def _exchange(
        self,
        make: Callable[[int], Message],
        read: Read,
        into: Sequence[memoryview] = (),
        reply_max: int = LONGEST_TOKEN,
        timeout: float | None = None,  # noqa: ASYNC109 (as in call)
        chunks: ChunkChoice = LINUX,
        *,
        renew: bool = False,
        placed: Sequence[memoryview] | None = None,
    ) -> Reply:
        """Send the message that ``make`` makes of an XID, and return what ``read`` makes of the reply; otherwise as
        :meth:`call`. ``renew``: it is made anew for each transmission. ``placed``: where items go that the server
        cannot put ``into`` memory itself."""
        if self._closed or not self._opened:
            raise ConnectionError("the connection is closed" if self._closed else "the connection was not opened")
        message = make(self._new_xid())
        call = PendingCall(
            message, self._loop.create_future(), into, reply_max, chunks,
            make=make if renew else None, read=read, places=placed,
        )  # fmt: skip
        self._calls[message.xid] = call
        try:
            if self._carrier is not None:
                self._carrier.send(call)
            else:
                self._reconnect()
            if timeout is None:
                return await call.outcome
            async with asyncio.timeout(timeout):
                return await call.outcome
        finally:
            if self._calls.pop(message.xid, None) is not None and self._carrier is not None:
                self._carrier.forget(call)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run whenever the connection has been made anew, before calls are sent again."""
        self._on_reconnect.append(callback)

    @property
    def transport(self) -> str:
        """``tcp``, or ``rdma``."""
        return "rdma" if self.rdma_version else "tcp"

    @property
    def rdma_version(self) -> int:
        """The version of RPC-over-RDMA that is in use, or being tried; 0 for none."""
        return 0 if self._carrier is None else self._carrier.version

    @property
    def carrier(self) -> Carrier | None:
        """What carries the calls now."""
        return self._carrier

    @property
    def max_backchannel_size(self) -> int:
        """Octets of the largest backward call or reply; 0 where none is taken."""
        return 0 if self._carrier is None or self._dispatcher is None else self._carrier.max_backchannel_size

    @property
    def outstanding(self) -> int:
        """Calls without a reply."""
        return len(self._calls)

    def _new_xid(self) -> int:
        while True:
            xid = self._next_xid
            self._next_xid = (xid + 1) & 0xFFFFFFFF
            if xid not in self._calls:
                return xid

    # What the carrier tells

    @property
    def takes_calls(self) -> bool:
        """Whether there is a program for backward calls."""
        return self._dispatcher is not None

    def finished(self, call: Request) -> None:
        """A call was answered, or failed."""
        self._failures = 0
        self._calls.pop(call.message.xid, None)

    def called_back(self, carrier: Carrier, message: memoryview, token: object) -> None:
        """The server has sent a call."""
        assert self._dispatcher is not None
        transport = self._transports.get(carrier)
        if transport is None:
            transport = self._transports[carrier] = CallbackTransport(self, carrier, self._pool)
        self._dispatcher.dispatch(
            transport, message, (), [], partial(self._answer, carrier, token), carrier.max_backchannel_size
        )

    def _answer(self, carrier: Carrier, token: object, reply: RpcReply | None) -> None:
        carrier.reply_backward(token, None if reply is NO_REPLY else reply)

    def lost(self, carrier: Carrier, reason: str) -> None:
        """The carrier is gone."""
        transport = self._transports.pop(carrier, None)
        if transport is not None:
            transport.gone()
        if carrier is not self._carrier:
            return
        self._carrier = None
        if self._closed:
            return
        _log.info("%s: lost: %s", self, reason)
        self._failures += 1
        if not self.options.reconnect:
            self._fail(reason)
            self._closed = True
        elif self._calls or self._dispatcher is not None:
            self._reconnect()

    # Reconnection

    def _adopt(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def _reconnect(self) -> None:
        if self._reconnecting is None:
            self._reconnecting = self._loop.create_task(self._try_again())
            self._reconnecting.add_done_callback(self._tried_again)

    def _tried_again(self, task: asyncio.Task[None]) -> None:
        self._reconnecting = None
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s: cannot reconnect", self, exc_info=task.exception())
            self._fail(str(task.exception()))
        elif not task.cancelled() and self._carrier is None and self._calls and not self._closed:
            self._reconnect()  # lost again at once

    async def _try_again(self) -> None:
        options = self.options
        end = self._loop.time() + options.reconnect
        while True:
            if self._failures > 1:
                delay = min(options.first_delay * 2.0 ** min(self._failures - 2, 20), options.longest_delay)
                await asyncio.sleep(delay * random.uniform(0.75, 1.25))
            try:
                carrier = await self._dial(self)
            except OSError as error:
                self._failures += 1
                _log.info("%s: no connection: %s", self, error or type(error).__name__)
                if self._loop.time() >= end:
                    self._fail(f"no connection within {options.reconnect} s: {error or type(error).__name__}")
                    return
                continue
            break
        self.reconnections += 1
        self._adopt(carrier)
        for callback in self._on_reconnect:
            callback()
        for call in list(self._calls.values()):
            self._send_again(carrier, call)

    def _send_again(self, carrier: Carrier, call: PendingCall) -> None:
        if call.transmissions >= self.options.most_transmissions:
            del self._calls[call.message.xid]
            call.failed(ConnectionError(f"no reply though sent {call.transmissions} times"))
            return
        if call.transmissions:
            self.retransmissions += 1
            call.renew()
        try:
            call.sent_at = None
            carrier.send(call)
        except (ValueError, OSError) as error:
            self._calls.pop(call.message.xid, None)
            call.failed(error)

    def _fail(self, reason: str) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if self._carrier is not None:
                self._carrier.forget(call)
            call.failed(ConnectionError(reason))

    def _check(self) -> None:
        """Give up a carrier that has swallowed a call."""
        self._watchdog = self._loop.call_later(self.options.silence / 4, self._check)
        oldest = min((call.sent_at for call in self._calls.values() if call.sent_at is not None), default=None)
        if self._carrier is not None and oldest is not None and self._loop.time() - oldest >= self.options.silence:
            _log.warning("%s: a call has no reply after %g s", self, self.options.silence)
            self._carrier.close(abort=True)
