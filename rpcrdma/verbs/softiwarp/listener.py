"""The accepting side: listening sockets, MPA Requests, and the requests handed to the consumer.

Owns the responder's part of RFC 5044 section 7.1.2 and RFC 6581 section 10: timeouts and bounds for connections that
have not finished MPA, accepting and rejecting. Imports its siblings and the interface.

A connection is *half open* from accept() until the consumer accepts or rejects it; it is then counted, bounded and
timed out here. Nothing about one peer stops the listener.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from rpcrdma import congestion
from rpcrdma.firewall import contain
from rpcrdma.hosts import Hosts, Refused, Seat
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Lease
from rpcrdma.verbs.interface import ConnectRequest, EndpointHandler, ListenAddress
from rpcrdma.verbs.softiwarp import crc, mpa
from rpcrdma.verbs.softiwarp.endpoint import Endpoint
from rpcrdma.verbs.softiwarp.options import SoftIwarpOptions
from rpcrdma.verbs.softiwarp.sockets import configure, family_of, mark, plain_address, size_buffers, socket_address

log = limited_logger("rpcrdma.softiwarp")

ACCEPTS_PER_TURN = 64
PAUSE = 1.0
"""Seconds without accept() when the process or the host has run out of descriptors or memory."""

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Owner(Protocol):
    """What a listener needs of its provider."""

    options: SoftIwarpOptions
    hosts: Hosts | None
    half_open: dict[HalfOpen, None]
    """In order of age."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop all connections run on."""

    def adopt(self, endpoint: Endpoint) -> None:
        """Take an established connection on."""

    def forget(self, endpoint: Endpoint) -> None:
        """Let go of a connection that has ended."""


class HalfOpen:
    """A TCP connection in its MPA negotiation. Implements ``ConnectRequest`` once its Request has come."""

    can_invalidate = True

    def __init__(
        self,
        owner: Owner,
        sock: socket.socket,
        peer: tuple[str, int],
        on_request: Callable[[ConnectRequest], None],
        seat: Seat | None = None,
    ) -> None:
        self._owner = owner
        self.seat = seat
        """Its place among its host's connections, until the consumer is asked, who takes one of its own."""
        self._socket: socket.socket | None = sock
        self._descriptor = sock.fileno()
        self._on_request = on_request
        self._data = b""
        self._length = mpa.HEADER_LENGTH
        self._request: mpa.Frame | None = None
        self.peer_address, self.peer_port = peer
        self.local_address = plain_address(sock.getsockname())[0]
        self.private_data = b""
        self.initiator_depth: int | None = None
        self.responder_resources: int | None = None
        owner.half_open[self] = None
        self._timer = owner.loop.call_later(owner.options.mpa_timeout, contain, None, self._expire)
        owner.loop.add_reader(self._descriptor, contain, self._crashed, self._readable)

    def __str__(self) -> str:
        return f"{self.peer_address} port {self.peer_port}"

    @property
    def waiting_for_request(self) -> bool:
        """Whether the peer has yet to send its whole Request."""
        return self._request is None

    def accept(
        self,
        handler: EndpointHandler,
        private_data: bytes,
        receives: Sequence[Lease],
        *,
        initiator_depth: int,
        most_receives: int = 0,
    ) -> Endpoint:
        """Accept with Receives already posted. When the peer is gone by now, the endpoint reports so at once.

        Raises RuntimeError when the request was accepted or rejected before, ValueError for too much private data.
        """
        request, options = self._request, self._owner.options
        if request is None:
            raise RuntimeError("this connection request was answered before")
        reply, agreement = mpa.respond(
            request,
            private_data,
            wanted_reads=initiator_depth,
            inbound_reads=options.inbound_reads,
            default_reads=options.outbound_reads,
            crc=options.crc == "always",
        )
        encoded = reply.encode(mpa.REPLY_KEY)
        sock, problem = self._take()
        if sock is None:
            sock = socket.socket()
        elif not problem:
            try:
                # One send(): siw has few work items for a Reply that comes in pieces, and nothing may follow it.
                if sock.send(encoded) != len(encoded):
                    problem = "the MPA Reply did not fit the socket"
            except OSError as error:
                problem = f"the MPA Reply could not be sent: {error.strerror}"
        endpoint = Endpoint(
            self._owner.loop,
            sock,
            handler,
            receives,
            agreement,
            options,
            (self.peer_address, self.peer_port),
            self.local_address,
            False,
            self._owner.forget,
        )
        self._owner.adopt(endpoint)
        if problem:
            endpoint.fail(problem)
        else:
            endpoint.start()
        return endpoint

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse, handing our private data to the peer. Nothing happens when the peer is gone by now."""
        request = self._request
        if request is None:
            raise RuntimeError("this connection request was answered before")
        self._refuse(mpa.reject(request, private_data))

    # What :mod:`rpcrdma.hosts` sees

    served = 0
    idle = True

    def evict(self, reason: str) -> None:
        """Close at once."""
        self.drop(f"dropped {reason}")

    def proceed(self) -> None:
        """There are no calls yet."""

    def drop(self, reason: str) -> None:
        """Close without an answer."""
        log.info("%s port %d: %s", self.peer_address, self.peer_port, reason)
        sock, self._socket = self._socket, None
        if sock is not None:
            self._release(sock)
            sock.close()

    def _take(self) -> tuple[socket.socket | None, str]:
        """Hand the socket over, together with what is wrong with it ('' for nothing)."""
        sock, self._socket, self._request = self._socket, None, None
        if sock is None:
            return None, "the peer was gone before its connection was accepted"
        self._release(sock)
        return sock, ""

    def _release(self, sock: socket.socket) -> None:
        self._timer.cancel()
        self._owner.loop.remove_reader(self._descriptor)
        self._owner.half_open.pop(self, None)
        if self.seat is not None:
            self.seat.leave()

    def _refuse(self, reply: mpa.Frame) -> None:
        sock, _ = self._take()
        if sock is None:
            return
        try:
            sock.send(reply.encode(mpa.REPLY_KEY))
            # FIN rather than RST, or the peer might lose the Reply with it.
            sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            log.info("%s port %d: the rejection could not be sent: %s", self.peer_address, self.peer_port, error)
        sock.close()

    def _crashed(self) -> None:
        self.drop("dropped")

    def _expire(self) -> None:
        what = "sent no MPA Request in time" if self._request is None else "was not accepted in time"
        self.drop(f"the connection {what}")

    def _readable(self) -> None:
        while self._socket is not None and self._read(self._socket):
            pass  # of an error behind it the loop would not tell again (rpcrdma/broken.pxd)

    def _read(self, sock: socket.socket) -> bool:
        """Read once; whether there may be more."""
        try:
            if self._request is not None:
                # RFC 5044 section 7.1.2: nothing follows the Request until the Reply has come.
                self.drop(
                    "sent data behind its MPA Request" if sock.recv(1) else "the peer gave up its connection request"
                )
                return False
            # Never more than the frame: what follows it would be FPDUs.
            data = sock.recv(self._length - len(self._data))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.drop(f"the connection failed before MPA was done: {error.strerror}")
            return False
        if not data:
            self.drop("the peer closed before MPA was done")
            return False
        self._take_octets(data)
        return True

    def _take_octets(self, data: bytes) -> None:
        self._data += data
        try:
            if len(self._data) == self._length == mpa.HEADER_LENGTH:
                self._length = mpa.frame_length(self._data, mpa.REQUEST_KEY)
            if len(self._data) == self._length:
                self._decide(mpa.decode(self._data, mpa.REQUEST_KEY))
        except mpa.MpaReject as error:
            log.warning("%s port %d: rejected: %s", self.peer_address, self.peer_port, error)
            unusable = mpa.Frame(revision=self._data[17], enhanced=mpa.Enhanced())
            self._refuse(mpa.reject(unusable, str(error).encode()))
        except mpa.MpaError as error:
            self.drop(str(error))

    def _decide(self, request: mpa.Frame) -> None:
        """Refuse what we cannot do; hand the rest to the consumer."""
        always = self._owner.options.crc == "always"
        problem = ""
        if (request.crc or always) and not crc.is_available():
            problem = "CRC is required but libisal.so.2 (Debian package libisal2) is not installed"
        if problem:
            log.warning("%s port %d: rejected: %s", self.peer_address, self.peer_port, problem)
            self._refuse(mpa.reject(request, problem.encode()))
            return
        self._request = request
        self.private_data = request.private_data
        self.initiator_depth, self.responder_resources = mpa.request_reads(request)
        if self.seat is not None:
            self.seat.leave()
        contain(self._crashed, self._on_request, self)


class SoftListener:
    """A listening socket."""

    def __init__(self, owner: Owner, address: ListenAddress, on_request: Callable[[ConnectRequest], None]) -> None:
        self._owner = owner
        self._on_request = on_request
        self._resume: asyncio.TimerHandle | None = None
        family = family_of(address.host)
        self._socket = socket.socket(family, socket.SOCK_STREAM, fileno=address.listening)
        try:
            self._socket.setblocking(False)
            size_buffers(self._socket, owner.options)
            mark(self._socket, address.type_of_service)
            if address.listening is None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # ``::`` takes both families; any other address takes only its own.
                    self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address.host != "::")
                congestion.prepare(self._socket)
                self._socket.bind(socket_address(address.host, address.port))
                self._socket.listen(owner.options.backlog)
        except BaseException:
            self._socket.close()
            raise
        self.address = replace(address, port=self._socket.getsockname()[1], listening=None)
        self._descriptor = self._socket.fileno()
        owner.loop.add_reader(self._descriptor, contain, self._look_away, self._readable)

    def close(self) -> None:
        """Stop accepting. Established connections live on."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self._socket.fileno() >= 0:
            self._owner.loop.remove_reader(self._descriptor)
            self._socket.close()

    def _readable(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    # The connection stays in the backlog, so the socket stays readable: look away for a while.
                    log.error("accept on port %d: %s; trying again in %g s", self.address.port, error.strerror, PAUSE)
                    self._look_away()
                    return
                # accept(2): errors of the connection that was to be accepted are passed on here; skip it.
                log.info("accept on port %d: %s", self.address.port, error.strerror)
                continue
            contain(sock.close, self._take, sock, plain_address(address))

    def _look_away(self) -> None:
        if self._socket.fileno() < 0:
            return  # closed meanwhile
        self._owner.loop.remove_reader(self._descriptor)
        self._resume = self._owner.loop.call_later(PAUSE, self._listen_again)

    def _listen_again(self) -> None:
        self._resume = None
        self._owner.loop.add_reader(self._descriptor, contain, self._look_away, self._readable)

    def _take(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        owner = self._owner
        seat = None
        if owner.hosts is not None:
            try:
                seat = owner.hosts.enter(peer[0], owner.loop.time(), sock)
            except Refused as refused:
                log.warning("%s port %d: refused: %s", *peer, refused)
                sock.close()
                return
        try:
            if len(owner.half_open) >= owner.options.max_half_open:
                self._make_room(seat)
            congestion.settle(sock)
            configure(sock, owner.options)
            made = HalfOpen(owner, sock, peer, self._on_request, seat)
        except BaseException as error:
            if seat is not None:
                seat.leave()
            sock.close()
            if not isinstance(error, OSError):
                raise
            log.info("%s port %d: failed as it came: %s", *peer, error.strerror)
        else:
            if seat is not None:
                seat.member = made

    def _make_room(self, seat: Seat | None) -> None:
        """Drop the oldest that still owes its Request, of the same host if there is one: a flood of silent peers cannot
        lock others out. Raises OSError when none owes it."""
        silent = [other for other in self._owner.half_open if other.waiting_for_request]
        if not silent:
            raise OSError(errno.EBUSY, "too many connection requests wait")
        host = None if seat is None else seat.host
        same = (other for other in silent if other.seat is not None and other.seat.host is host)
        next(same, silent[0]).drop("dropped for a newer connection: too many have not sent their MPA Request")
