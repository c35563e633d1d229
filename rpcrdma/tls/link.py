"""One secured connection: TLS on one side, the clear on the other.

Owns :class:`Link`; imports the certificates. The library is given the peer's octets STEP at a time and works in memory,
so that no step takes long. From a socket it would go on reading for as long as a peer sends records without data.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from rpcrdma.tls.certificates import Peer

STEP: Final = 1 << 14
"""Octets of the peer's that are deciphered at a time."""
PIECE: Final = 1 << 16
"""Octets that are enciphered at a time."""
MOST_EMPTY: Final = 1 << 18
"""Octets of the peer's without any data in them: keys may change, but not all the time."""

Outcome = Callable[[Peer | None, str], None]
"""Takes the client of a handshake that has ended well; or None, and why it has not. Called by a thread."""

Wrap = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]
"""Makes one end of TLS, of what has come from the peer and what is to go there. Called by a thread."""

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Wanted = tuple[int, int]
"""What is waited for of the peer's socket, and of the one in the clear."""


class Link:
    """One connection."""

    def __init__(self, sock: socket.socket, clear: socket.socket, wrap: Wrap, outcome: Outcome, seconds: float) -> None:
        """``seconds``: that the handshake may take."""
        self.sock, self.clear, self.outcome = sock, clear, outcome
        self.deadline = time.monotonic() + seconds
        self.interest: dict[int, int] = {}
        """What each descriptor is waited for."""
        self._wrap = wrap
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._from_peer = self._to_peer = memoryview(b"")
        """Deciphered, and enciphered, and not given to the other side yet."""
        self._ended = False
        """Whether the peer sends no more, and the other side knows."""
        self._empty = 0
        """Octets that have come since there was data in them."""
        self.refused: ssl.SSLError | None = None
        """Why the peer's certificate is not believed."""
        self._room = PIECE
        """Octets that it may send all the same."""
        self._since = 0.0
        """When the peer last took something, or something new was there for it."""

    @property
    def tls(self) -> ssl.SSLObject:
        """This end of it. Raises OSError where it cannot be had."""
        if self._tls is None:
            self._tls = self._wrap(self._incoming, self._outgoing)
        return self._tls

    def close(self) -> None:
        """Close both sides."""
        self.sock.close()
        self.clear.close()

    def is_stuck(self, seconds: float) -> bool:
        """Whether the peer has taken nothing for so long, and the other side has been closed."""
        if not self._to_peer or time.monotonic() - self._since < seconds:
            return False
        poll = select.poll()
        poll.register(self.clear, 0)  # its end is told all the same
        return bool(poll.poll(0))

    def shake_hands(self) -> Wanted | None:
        """Bring the handshake further: what is waited for; None: it has ended well. Raises OSError."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                if not self._push():
                    return WRITE, 0
            else:
                return None
            try:
                came = self._pull()
            except BlockingIOError:
                return READ, 0
            if not came:
                raise ConnectionError("the peer has closed the connection")

    def hear_out(self) -> Wanted:
        """Let a peer whose certificate is not believed read the alert and close. To a client of TLS 1.3 the handshake
        is over before its certificate is looked at, and more of it may be on the way. Closing now would reset the
        connection (RFC 1122 section 4.2.2.13). Linux's kernel misses that while it takes the connection over from its
        helper, and the mount hangs; it notices an alert, or an end that comes later. Raises OSError at the end."""
        assert self.refused is not None
        if not self._push():
            return WRITE, 0
        while self._room:
            try:
                octets = self.sock.recv(self._room)
            except BlockingIOError:
                return READ, 0
            if not octets:
                break
            self._room -= len(octets)
        raise self.refused

    def out(self, piece: bytearray, turns: int) -> Wanted | None:
        """Move octets from the clear side to the peer. Returns what is waited for, (0, 0) for nothing: there may be
        more; None at the end, when all has gone. Raises OSError."""
        for _ in range(turns):
            if not self._push():
                return WRITE, 0
            try:
                got = self.clear.recv_into(piece)
            except BlockingIOError:
                return 0, READ
            if not got:
                return None
            self.tls.write(memoryview(piece)[:got])
        return 0, 0

    def into(self, turns: int) -> Wanted:
        """Move octets from the peer to the clear side: likewise."""
        for _ in range(turns):
            if self._ended:
                return 0, 0
            if self._from_peer:
                try:
                    self._from_peer = self._from_peer[self.clear.send(self._from_peer) :]
                except BlockingIOError:
                    return 0, WRITE
                continue
            try:
                octets = self.tls.read(PIECE)
            except ssl.SSLWantReadError:
                if not self._push():
                    return WRITE, 0  # nothing new is taken before that has gone: an answer to a change of keys, say
                try:
                    self._pull()
                except BlockingIOError:
                    return READ, 0
                continue
            except ssl.SSLError as error:
                if not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                    raise
                octets = b""
            if not octets:
                self._ended = True
                self.clear.shutdown(socket.SHUT_WR)
                return 0, 0
            self._empty = 0
            self._from_peer = memoryview(octets)
        return 0, 0

    @property
    def ended(self) -> bool:
        """Whether the peer sends no more."""
        return self._ended

    def say_goodbye(self) -> None:
        """Tell the peer that this is the end (RFC 8446 section 6.1: close_notify), if it takes that at once."""
        with contextlib.suppress(OSError, ValueError):  # the peer need not say it as well
            self.tls.unwrap()
        with contextlib.suppress(OSError):
            self._push()

    def _push(self) -> bool:
        """Send what has been enciphered, as far as the socket takes it; whether all has gone."""
        while True:
            if not self._to_peer:
                self._to_peer = memoryview(self._outgoing.read(PIECE))
                if not self._to_peer:
                    return True
                self._since = time.monotonic()
            try:
                sent = self.sock.send(self._to_peer)
            except BlockingIOError:
                return False
            self._to_peer, self._since = self._to_peer[sent:], time.monotonic()

    def _pull(self) -> int:
        """Take what has come, one step of it; 0 at the end. Raises BlockingIOError, OSError."""
        octets = self.sock.recv(STEP)
        self._empty += len(octets)
        if self._empty > MOST_EMPTY:
            raise ConnectionError("the peer sends records without data")
        if octets:
            self._incoming.write(octets)
        else:
            self._incoming.write_eof()
        return len(octets)
