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
from typing import Protocol

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.tls.certificates import Peer
from rpcrdma.tls.link import Outcome

_log = limited_logger(__name__)

Secure = Callable[[socket.socket, str, Outcome], socket.socket]
"""Begins a handshake with a host: takes the socket, and returns the one in its place. Raises OSError."""


class Owner(Protocol):
    """The connection, as far as this needs it."""

    closed: bool
    security: str

    def close(self) -> None:
        """Close it."""


class Securing:
    """Whether, and how far, one connection is secured."""

    def __init__(self, secure: Secure | None, loop: asyncio.AbstractEventLoop, owner: Owner) -> None:
        """Without ``secure`` it never is."""
        self._secure, self._loop, self._owner = secure, loop, owner
        self.due = False
        """Whether the handshake begins when the reply has left."""
        self.waits = False
        """Whether nothing is read: it is due, or under way."""
        self.peer: Peer | None = None
        """Who is on the other side of a secured connection."""

    def ask(self) -> bool:
        """The peer asks for it, and will be told so. False: it cannot be had, or is had already."""
        if self._secure is None or self.waits or self.peer is not None:
            return False
        self.due = self.waits = True
        return True

    def begin(self, sock: socket.socket, host: str, secured: Callable[[], None]) -> socket.socket:
        """Begin the handshake: takes the socket and returns the one in its place. ``secured`` is called when it has
        ended well: read on, what comes now is the peer's. Raises OSError; ``sock`` is closed then."""
        assert self._secure is not None
        self.due = False

        def outcome(peer: Peer | None, why: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(contain, self._owner.close, self._over, peer, why, secured)

        return self._secure(sock, host, outcome)

    def _over(self, peer: Peer | None, why: str, secured: Callable[[], None]) -> None:
        owner = self._owner
        if owner.closed:
            return
        if peer is None:
            _log.warning("%s: no TLS: %s; closing", owner, why)
            owner.close()
            return
        self.waits, self.peer, owner.security = False, peer, peer.security
        _log.debug("%s: secured by %s %s", owner, peer.cipher, peer.subject or "without a client's certificate")
        secured()
