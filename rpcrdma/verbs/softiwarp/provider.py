"""The provider: listeners, outgoing connections, the watchdog's clock and the counters.

Owns :class:`SoftIwarp`, which implements ``rpcrdma.verbs.interface.Provider`` over ordinary TCP sockets, and the
initiator's part of RFC 5044 section 7.1.2 and RFC 6581 section 9. Imports its siblings, the interface and the pool.
"""

from __future__ import annotations

import asyncio
import collections
import socket
from collections.abc import Callable, Sequence

from rpcrdma.firewall import contain
from rpcrdma.hosts import Hosts
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Lease, Pool
from rpcrdma.verbs.interface import ConnectRequest, EndpointHandler, ListenAddress
from rpcrdma.verbs.softiwarp import crc, mpa
from rpcrdma.verbs.softiwarp.endpoint import Endpoint
from rpcrdma.verbs.softiwarp.listener import HalfOpen, SoftListener
from rpcrdma.verbs.softiwarp.options import SoftIwarpOptions
from rpcrdma.verbs.softiwarp.sockets import configure, family_of, plain_address, size_buffers, socket_address
from rpcrdma.verbs.softiwarp.terminate import describe

log = limited_logger("rpcrdma.softiwarp")

LARGEST_FPDU = "largest_fpdu_out"
"""The one counter that is a maximum: octets of the largest FPDU sent, CRC and padding included."""


class SoftIwarp:
    """iWARP in user space. One event loop's: the one that first listens or connects."""

    name = "softiwarp"
    can_be_invalidated = True

    def __init__(self, pool: Pool, options: SoftIwarpOptions | None = None, hosts: Hosts | None = None) -> None:
        """``hosts`` counts half-open connections, too; established ones are the consumer's to count."""
        self.pool, self.hosts = pool, hosts
        self.options = options if options is not None else SoftIwarpOptions()
        if self.options.crc == "always" and not crc.is_available():
            raise OSError("crc: always needs libisal.so.2 (Debian package libisal2), which is not installed")
        self.half_open: dict[HalfOpen, None] = {}
        self.endpoints: set[Endpoint] = set()
        self._listeners: list[SoftListener] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._past: collections.Counter[str] = collections.Counter()
        self._largest = 0
        self._emptied: asyncio.Event = asyncio.Event()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop all connections run on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    async def listen(self, address: ListenAddress, on_request: Callable[[ConnectRequest], None]) -> SoftListener:
        """Listen on ``address``. Raises OSError when it cannot be had, ValueError when it is no literal address."""
        listener = SoftListener(self, address, on_request)
        self._listeners.append(listener)
        return listener

    async def connect(
        self,
        address: ListenAddress,
        handler: EndpointHandler,
        private_data: bytes,
        receives: Sequence[Lease],
        *,
        initiator_depth: int = 0,
        responder_resources: int = 16,
    ) -> tuple[Endpoint, bytes]:
        """Connect as a requester. Returns endpoint and peer private data.

        Raises ConnectionRefusedError on reject (its ``private_data`` attribute is what the peer said),
        ConnectionAbortedError when the negotiation fails, TimeoutError, or another OSError.
        The Receives are posted when it returns, and still the caller's when it raises.
        """
        options, loop = self.options, self.loop
        request = mpa.request(
            private_data,
            initiator_depth=initiator_depth,
            responder_resources=responder_resources,
            crc=options.crc == "always",
            revision=options.revision,
            peer_to_peer=options.peer_to_peer,
        )
        sock = socket.socket(family_of(address.host), socket.SOCK_STREAM)
        try:
            size_buffers(sock, options)
            configure(sock, options)
            async with asyncio.timeout(options.mpa_timeout):
                await loop.sock_connect(sock, socket_address(address.host, address.port))
                await loop.sock_sendall(sock, request.encode(mpa.REQUEST_KEY))
                reply = await self._read_reply(sock)
            agreement, failure = self._conclude(request, reply, initiator_depth, responder_resources)
        except mpa.MpaError as error:
            sock.close()
            raise ConnectionAbortedError(f"MPA negotiation failed: {error}") from error
        except BaseException:
            sock.close()
            raise
        if failure is not None:
            await self._send_terminate(sock, failure.code)
            raise ConnectionAbortedError(f"MPA negotiation failed: {failure}") from failure
        endpoint = Endpoint(
            loop,
            sock,
            handler,
            receives,
            agreement,
            options,
            plain_address(sock.getpeername()),
            plain_address(sock.getsockname())[0],
            True,
            self.forget,
        )
        self.adopt(endpoint)
        endpoint.start()
        return endpoint, reply.private_data

    async def close(self) -> None:
        """Close all listeners and connections, and wait (``close_timeout`` at most) until the last has ended."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for waiting in list(self.half_open):
            waiting.drop("the provider is closing")
        for endpoint in list(self.endpoints):
            endpoint.close()
        while self.endpoints:
            self._emptied.clear()
            await self._emptied.wait()
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def adopt(self, endpoint: Endpoint) -> None:
        """Take an established connection on."""
        self.endpoints.add(endpoint)
        if self._watchdog is None:
            self._arm_watchdog()

    def forget(self, endpoint: Endpoint) -> None:
        """Let go of a connection that has ended, but keep its counters."""
        self.endpoints.discard(endpoint)
        counters = endpoint.statistics()
        self._largest = max(self._largest, counters.pop(LARGEST_FPDU))
        self._past.update(counters)
        self._past["connections_ended"] += 1
        if endpoint.terminate_sent is not None:
            self._past[_terminate_name("sent", endpoint.terminate_sent)] += 1
        if endpoint.terminate_received is not None:
            self._past[_terminate_name("received", endpoint.terminate_received)] += 1
        if not self.endpoints:
            self._emptied.set()

    def statistics(self) -> dict[str, int]:
        """Return the counters of all connections, past and present, by name."""
        total = collections.Counter(self._past)
        largest = self._largest
        for endpoint in self.endpoints:
            counters = endpoint.statistics()
            largest = max(largest, counters.pop(LARGEST_FPDU))
            total.update(counters)
        return {**total, LARGEST_FPDU: largest, "connections": len(self.endpoints), "half_open": len(self.half_open)}

    def _arm_watchdog(self) -> None:
        interval = min(max(self.options.stall_timeout / 4, 0.05), 5.0)
        self._watchdog = self.loop.call_later(interval, contain, None, self._check)

    def _check(self) -> None:
        now = self.loop.time()
        for endpoint in list(self.endpoints):
            contain(endpoint.crashed, endpoint.check, now)
        self._watchdog = None
        if self.endpoints:
            self._arm_watchdog()

    async def _read_reply(self, sock: socket.socket) -> mpa.Frame:
        # Never more than the frame, so that FPDUs behind it are left to the endpoint.
        data, length = b"", mpa.HEADER_LENGTH
        while len(data) < length:
            more = await self.loop.sock_recv(sock, length - len(data))
            if not more:
                raise ConnectionAbortedError("the peer closed the connection instead of an MPA Reply")
            data += more
            if len(data) == length == mpa.HEADER_LENGTH:
                length = mpa.frame_length(data, mpa.REPLY_KEY)
        return mpa.decode(data, mpa.REPLY_KEY)

    def _conclude(
        self, request: mpa.Frame, reply: mpa.Frame, initiator_depth: int, responder_resources: int
    ) -> tuple[mpa.Agreement, mpa.MpaTerminate | None]:
        if reply.rejected:
            refusal = ConnectionRefusedError("the peer rejected the connection")
            refusal.private_data = reply.private_data  # type: ignore[attr-defined]
            raise refusal
        if (request.crc or reply.crc) and not crc.is_available():
            raise mpa.MpaError("the peer requires CRCs but libisal.so.2 (Debian package libisal2) is not installed")
        try:
            return mpa.conclude(
                request,
                reply,
                initiator_depth=initiator_depth,
                responder_resources=responder_resources,
                max_inbound_reads=self.options.max_inbound_reads,
            ), None
        except mpa.MpaTerminate as failure:
            return mpa.Agreement(crc=request.crc or reply.crc, markers=reply.markers), failure

    async def _send_terminate(self, sock: socket.socket, code: int) -> None:
        """Tell the responder why its Reply is not agreeable (RFC 6581 section 8), then close."""
        done: asyncio.Future[None] = self.loop.create_future()
        endpoint = Endpoint(
            self.loop,
            sock,
            _Nobody(),
            (),
            mpa.Agreement(),
            self.options,
            plain_address(sock.getpeername()),
            plain_address(sock.getsockname())[0],
            True,
            lambda _: done.set_result(None),
        )
        endpoint.fail("the MPA Reply is not agreeable", code)
        await done


class _Nobody:
    """The owner of a connection that only sends its Terminate."""

    def received(self, messages: object) -> None:
        """Nothing is received."""

    def completed(self, token: object, ok: bool) -> None:
        """Nothing is posted."""

    def disconnected(self, reason: str) -> None:
        """Say nothing: connect() raises."""


def _terminate_name(direction: str, codes: tuple[int, int]) -> str:
    first, code = codes
    return f"terminates_{direction} ({describe(first >> 4, first & 15, code)})"
