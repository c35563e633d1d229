"""How a TCP connection comes to be secured: STARTTLS of RFC 9289 section 4.1.

Owns :class:`Securing`. A NULL call with AUTH_TLS asks for it. Its reply is the last that leaves in the clear, and
nothing is read until the handshake has ended well. Octets behind the call have come in the clear. Anybody on the way
may have put them there, so they end the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Protocol

from rpcrdma.crew import Crew
from rpcrdma.departed import DEPARTED
from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.shown import shown
from rpcrdma.tcp.stream import RecordStream
from rpcrdma.tls.certificates import Peer
from rpcrdma.tls.counts import Counts
from rpcrdma.tls.handshake import Outcome
from rpcrdma.tls.kernel import Kernel
from rpcrdma.tls.records import directions
from rpcrdma.tls.secrets import Secrets

_log = limited_logger(__name__)
_PARTING = 10.0
"""Seconds for the calls in progress of a peer that is not believed any more."""


class Secure(Protocol):
    """Secures connections."""

    @property
    def crew(self) -> Crew | None:
        """Whose threads encipher what is long."""

    @property
    def kernel(self) -> Kernel | None:
        """What enciphers what is sent; None: we do."""

    @property
    def counts(self) -> Counts:
        """Of these connections."""

    def begin(self, sock: socket.socket, host: str, outcome: Outcome) -> None:
        """Begin a handshake with a host. Raises OSError."""

    def believes(self, peer: Peer) -> bool:
        """Whether a peer whose handshake has ended well may go on."""


class Owner(Protocol):
    """The connection, as far as this needs it."""

    closed: bool
    security: str
    certified: str

    def close(self) -> None:
        """Close it."""

    def drain(self) -> None:
        """Take no further calls, and close it when those in progress are answered."""

    def proceed(self) -> None:
        """Go on at the loop's next turn."""


class Securing:
    """Whether, and how far, one connection is secured."""

    def __init__(self, secure: Secure | None, loop: asyncio.AbstractEventLoop, owner: Owner) -> None:
        """Without ``secure`` it never is."""
        self._secure, self._loop = secure, loop
        self._owner: Owner = owner
        self.due = False
        """Whether the handshake begins when the reply has left."""
        self.waits = False
        """Whether nothing is read: it is due, or under way."""
        self.peer: Peer | None = None
        """Who is on the other side of a secured connection."""
        self._in_kernel = False
        """Whether the kernel enciphers what is sent."""
        self._ends: float | None = None
        """When a connection ends whose peer is not believed any more."""

    def close(self) -> None:
        """The owner is closed, and held no more."""
        if self._owner is not DEPARTED and self.peer is not None and self._secure is not None:
            self._secure.counts.connections[self.peer.security] -= 1
            self._secure.counts.in_kernel -= self._in_kernel
        self._owner = DEPARTED

    def ask(self) -> bool:
        """The peer asks for it, and will be told so. False: it cannot be had, or is had already."""
        if self._secure is None or self.waits or self.peer is not None:
            return False
        self.due = self.waits = True
        return True

    def begin(self, sock: socket.socket, host: str, stream: RecordStream, secured: Callable[[], None]) -> None:
        """Begin the handshake. ``stream`` is secured when it has ended well, and ``secured`` called: read on, what
        comes now is the peer's. Raises OSError."""
        assert self._secure is not None
        self.due = False

        def over(peer: Peer | None, why: str, secrets: Secrets | None) -> None:
            if self._over(peer, why, secrets, sock, stream):
                secured()

        def outcome(*of: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(contain, self._owner.close, over, *of)

        self._secure.begin(sock, host, outcome)

    def end(self, sock: socket.socket) -> None:
        """The connection is about to be closed: so is what handshakes have of its socket."""
        if self.waits and not self.due:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def check_time(self, now: float) -> None:
        """See whether the peer is still believed. If not the connection ends: soon with the calls in progress, and then
        without them."""
        owner = self._owner
        if owner.closed or self.peer is None or self._secure is None or self._secure.believes(self.peer):
            return
        if self._ends is None:
            self._ends = now + _PARTING
            who = shown(self.peer.subject)
            _log.info("%s: the certificate of %s is to be checked again; closing", owner, who)
            self._secure.counts.distrusted += 1
            owner.drain()
        elif now >= self._ends:
            owner.close()

    def _over(
        self, peer: Peer | None, why: str, secrets: Secrets | None, sock: socket.socket, stream: RecordStream
    ) -> bool:
        owner = self._owner
        if owner.closed:
            return False
        if peer is None or secrets is None:
            _log.warning("%s: no TLS: %s; closing", owner, shown(why))
            owner.close()
            return False
        assert self._secure is not None
        made, kernel = directions(secrets), self._secure.kernel
        link = None if kernel is None else kernel.take(sock, secrets.outgoing)
        stream.secure(made, self._secure.crew, owner.proceed, link)
        self.waits, self.peer, self._in_kernel = False, peer, link is not None
        self._secure.counts.connections[peer.security] += 1
        self._secure.counts.in_kernel += self._in_kernel
        owner.security, owner.certified = peer.security, " ".join(peer.names)
        whose = shown(peer.subject) if peer.verified else "without a client's certificate"
        where = "in the kernel" if self._in_kernel else "in user space"
        _log.debug("%s: secured by %s, sent %s, %s", owner, peer.cipher, where, whose)
        return True
