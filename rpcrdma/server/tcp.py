"""RPC over TCP, the server's side: a listener and the connections made through it.

Owns :class:`TcpListener`; imports the connections (:mod:`rpcrdma.server.tcp_connection`) and asyncio. Who gets a
connection when there are many is decided by :mod:`rpcrdma.hosts`.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from rpcrdma.capture.recorder import Captures
from rpcrdma.firewall import Ticker, contain
from rpcrdma.hosts import HostLimits, Hosts, Refused
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.server.securing import Secure
from rpcrdma.server.sockets import at_any, bind, plain_address
from rpcrdma.server.tcp_connection import TcpConnection, TcpLimits

__all__ = ["TcpConnection", "TcpLimits", "TcpListener"]

_log = limited_logger(__name__)
_ACCEPTS_PER_WAKEUP = 64
_PAUSE_WITHOUT_DESCRIPTORS = 1.0
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TcpListener:
    """A listening socket and the connections made through it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        pool: Pool,
        loop: asyncio.AbstractEventLoop,
        limits: TcpLimits | None = None,
        captures: Captures | None = None,
        hosts: Hosts | None = None,
        secure: Secure | None = None,
    ) -> None:
        """``secure`` begins the handshake of a connection that asks for TLS; without it none can."""
        self.dispatcher, self.pool, self.loop = dispatcher, pool, loop
        self.limits = limits or TcpLimits()
        self.hosts = Hosts(pool, HostLimits(host_memory=pool.limit)) if hosts is None else hosts
        self.captures = Captures() if captures is None else captures
        self.secure = secure
        self.connections: set[TcpConnection] = set()
        self.accepted = 0
        self.refused = 0
        """Connections closed at once, since there were too many. (Which evicted others is in ``hosts.events``.)"""
        self.address: tuple[str, int] = ("", 0)
        """Where it listens, with the real port."""
        self._socket: socket.socket | None = None
        self._timer: Ticker | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def listen(self, host: str, port: int, sock: socket.socket | None = None) -> None:
        """Begin to accept on a literal address; ``::`` takes IPv4 as well; or on a socket that listens. Raises OSError
        when it cannot be had."""
        if sock is None:
            sock = at_any(host, lambda found: bind(found, port))
        self._socket = sock
        self.address = sock.getsockname()[:2]
        self.loop.add_reader(sock.fileno(), contain, self._stop_for_a_while, self._acceptable)
        self._timer = Ticker(self.loop, 1.0, self._tick)

    def stop_accepting(self) -> None:
        """Close the listening socket; connections live on."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self._socket is not None:
            self.loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    async def drain(self, seconds: float) -> None:
        """Accept no connection and take no call any more; return when all connections are closed, as they are once
        their calls are answered, or when ``seconds`` are over."""
        self.stop_accepting()
        self._emptied = emptied = self.loop.create_future()
        for connection in list(self.connections):
            contain(connection.close, connection.drain)
        if self.connections:
            await asyncio.wait([emptied], timeout=seconds)

    def close(self) -> None:
        """Close everything at once."""
        self.stop_accepting()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.close()

    def forget(self, connection: TcpConnection) -> None:
        """The connection is closed."""
        self.connections.discard(connection)
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)

    def check_times(self, now: float) -> None:
        """Look for connections that are slow or silent for too long."""
        self.hosts.tick(now)
        for connection in list(self.connections):
            contain(connection.close, connection.check_time, now)

    def _tick(self) -> None:
        self.check_times(self.loop.time())

    def _acceptable(self) -> None:
        for _ in range(_ACCEPTS_PER_WAKEUP):
            if self._socket is None:
                return
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _SCARCE:
                    _log.error("cannot accept connections: %s", error.strerror)
                    self._stop_for_a_while()
                    return
                continue  # the peer has gone already (accept(2) reports its errors)
            contain(sock.close, self._add, sock, plain_address(address)[0])

    def _add(self, sock: socket.socket, address: str) -> None:
        try:
            seat = self.hosts.enter(address, self.loop.time(), sock)
        except Refused as refused:
            self.refused += 1
            _log.debug("refusing a connection of %s: %s", address, refused)
            sock.close()
            return
        try:
            sock.setblocking(False)
            connection = seat.member = TcpConnection(self, sock, seat)
        except BaseException as error:
            seat.leave()
            sock.close()
            if isinstance(error, OSError):
                return  # gone already
            raise
        self.connections.add(connection)
        self.accepted += 1
        contain(None, self.captures.add, connection)

    def _stop_for_a_while(self) -> None:
        """Without descriptors, say, the socket stays readable: wait a little instead of spinning."""
        if self._socket is None:
            return
        self.loop.remove_reader(self._socket.fileno())

        def resume() -> None:
            if self._socket is not None:
                self.loop.add_reader(self._socket.fileno(), contain, self._stop_for_a_while, self._acceptable)

        self._resume = self.loop.call_later(_PAUSE_WITHOUT_DESCRIPTORS, resume)
