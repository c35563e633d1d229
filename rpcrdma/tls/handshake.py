"""One handshake of TLS, by Python's ssl.

Owns :class:`Handshake`; imports the certificates and what a handshake leaves to the records. The library is given the
peer's octets STEP at a time and works in memory, so that no step takes long. From a socket it would go on reading for
as long as a peer sends records without end.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from rpcrdma.tls.certificates import Peer
from rpcrdma.tls.secrets import KeyLog, Secrets, secrets_of

STEP: Final = 1 << 14
"""Octets of the peer's that are looked at at a time."""
_PIECE: Final = 1 << 16
_MOST_HEARD: Final = 1 << 16
"""Octets that a peer may send whose certificate is not believed."""

Outcome = Callable[[Peer | None, str, Secrets | None], None]
"""Takes the client of a handshake that has ended well, and the secrets; or None, and why it has not. Called by a
thread."""

Wrap = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]
"""Makes one end of TLS, of what has come from the peer and what is to go there. Called by a thread."""

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Handshake:
    """One handshake."""

    def __init__(self, sock: socket.socket, wrap: Wrap, outcome: Outcome, seconds: float, host: str = "") -> None:
        """``seconds``: that it may take; ``host``: whose it is."""
        self.sock = sock
        self._outcome: Outcome | None = outcome
        self.host, self.since = host, time.monotonic()
        self.deadline = self.since + seconds
        self.displaced = False
        """Whether it is to end, since others wait."""
        self.result = "failed"
        """How it has ended, of :data:`rpcrdma.tls.counts.RESULTS`."""
        self.interest = 0
        """What the socket is waited for."""
        self._wrap = wrap
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._to_peer = memoryview(b"")
        """What has not been sent yet."""
        self._told: dict[str, bytes] = {}
        """Secrets."""
        self._done = False
        """Whether all has been agreed on."""
        self.refused: ssl.SSLCertVerificationError | None = None
        """Why the peer's certificate is not believed."""
        self._room = _MOST_HEARD
        """Octets that it may send all the same."""

    def give_way(self) -> None:
        """Have it end as soon as its thread looks; called by any thread."""
        self.displaced, self.deadline = True, 0.0

    @property
    def tls(self) -> ssl.SSLObject:
        """This end of it. Raises OSError where it cannot be had."""
        if self._tls is None:
            self._tls = self._wrap(self._incoming, self._outgoing)
        return self._tls

    def tell(self, peer: Peer | None, why: str, secrets: Secrets | None = None) -> None:
        """Say how it has ended. It is said once."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome(peer, why, secrets)

    def go_on(self, log: KeyLog) -> int | None:
        """Bring it further: what the socket is waited for; None: it has ended well. Raises OSError."""
        while not self._done:
            try:
                self.tls.do_handshake()
                self._done = True
            except ssl.SSLWantReadError:
                pass
            finally:
                self._told |= log.take()
            if not self._push():
                return WRITE
            if not self._done:
                try:
                    came = self._pull()
                except BlockingIOError:
                    return READ
                if not came:
                    raise ConnectionError("the peer has closed the connection")
        return None if self._push() else WRITE

    def secrets(self) -> Secrets:
        """What it leaves to the records, once it has ended well. The library has read no further than the handshake
        goes: what has come behind it is the records'. Raises ConnectionError."""
        return secrets_of(self.tls, self._told, self._incoming.read())

    def hear_out(self) -> int:
        """Let a peer whose certificate is not believed read the alert and close. To a client of TLS 1.3 the handshake
        is over before its certificate is looked at, and more of it may be on the way. Closing now would reset the
        connection (RFC 1122 section 4.2.2.13). Linux's kernel misses that while it takes the connection over from its
        helper, and the mount hangs; it notices an alert, or an end that comes later. Returns what the socket is waited
        for. Raises OSError at the end."""
        assert self.refused is not None
        if not self._push():
            return WRITE
        while self._room:
            try:
                octets = self.sock.recv(self._room)
            except BlockingIOError:
                return READ
            if not octets:
                break
            self._room -= len(octets)
        raise self.refused

    def say_goodbye(self) -> None:
        """Tell the peer that this is the end, or the alert that says why, if it takes that at once."""
        if self._tls is None:
            return  # it could not be made, and is not to be tried again
        with contextlib.suppress(OSError, ValueError):  # the peer need not say it as well
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            self._push()

    def _push(self) -> bool:
        """Send what is there for the peer, as far as the socket takes it; whether all has gone."""
        while True:
            if not self._to_peer:
                self._to_peer = memoryview(self._outgoing.read(_PIECE))
                if not self._to_peer:
                    return True
            try:
                sent = self.sock.send(self._to_peer)
            except BlockingIOError:
                return False
            self._to_peer = self._to_peer[sent:]

    def _pull(self) -> int:
        """Take what has come, one step of it; 0 at the end. Raises BlockingIOError, OSError."""
        octets = self.sock.recv(STEP)
        if octets:
            self._incoming.write(octets)
        else:
            self._incoming.write_eof()
        return len(octets)
