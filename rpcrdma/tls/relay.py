"""The threads between secured connections and their records: handshakes, and TLS's own records, off the event loop.

Owns :class:`Relay`, two threads of it; imports the links. A connection that is to be secured gives its socket away and
gets one end of a pair of sockets, on which the same octets come and go in the clear. One thread makes handshakes, the
other enciphers and deciphers. Neither waits for a peer, and a crowd that begins handshakes takes its turns from others
that do, not from connections that are secured. The library releases the interpreter's lock while it computes.

Bounds: a handshake takes HANDSHAKE_TIME at most. HANDSHAKES are in progress, HOST_HANDSHAKES of one host; others are
closed. A peer whose certificate is not believed has FAREWELL to read that. A connection moves some pieces in a turn,
then others have theirs. What a peer does not take within LINGER, once the other end is closed, is given up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from typing import Final

from rpcrdma.tls.certificates import Peer, peer_of
from rpcrdma.tls.link import PIECE, READ, Link, Outcome, Wrap

_log = logging.getLogger(__name__)

HANDSHAKE_TIME: Final = 10.0
HANDSHAKES: Final = 128
"""In progress at a time."""
HOST_HANDSHAKES: Final = 16
FAREWELL: Final = 3.0
LINGER: Final = 10.0
_TURN: Final = 8
"""Pieces, and steps, that one connection moves while others wait."""


class _Thread:
    """A selector, the links in it, and a thread that serves them."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_out, READ)
        self._lock = threading.Lock()
        self._arrived: list[Link] = []
        self._closing = False
        self.links: set[Link] = set()
        self.eager: set[Link] = set()
        """Those that may have more to do at once, whatever the selector says."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, link: Link) -> None:
        """Have the thread serve it."""
        with self._lock:
            if not self._closing:
                self._arrived.append(link)
                link = None  # type: ignore[assignment]
        if link is not None:
            link.close()
            return
        self._wake()

    def close(self) -> None:
        """Close every link, and end the thread."""
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join()
        os.close(self._wake_in)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake
            os.write(self._wake_in, b"\0")

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            for link in [*self.links, *self._arrived]:
                link.close()
            self._selector.close()
            os.close(self._wake_out)

    def _turn(self) -> bool:
        ready = {key.data for key, _ in self._selector.select(0 if self.eager else self.patience())}
        ready.update(self.eager)
        if None in ready:
            ready.discard(None)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_out, 4096)
        with self._lock:
            if self._closing:
                return False
            arrived, self._arrived = self._arrived, []
        self.links.update(arrived)
        for link in [*arrived, *ready]:
            if link in self.links:
                self._serve(link)
        self.tidy()
        return True

    def _serve(self, link: Link) -> None:
        try:
            self.serve(link)
        except (OSError, ValueError) as error:  # ssl's errors are OSErrors
            self.failed(link, error)
        except Exception as error:
            _log.exception("TLS: a connection is closed")
            self.failed(link, error)

    def wait_for(self, link: Link, interest: dict[int, int]) -> None:
        """Wake up for the link when any of these descriptors is ready for what stands beside it."""
        for descriptor, events in interest.items():
            known = link.interest.get(descriptor, 0)
            if known == events:
                continue
            if not events:
                self._selector.unregister(descriptor)
                del link.interest[descriptor]
                continue
            if known:
                self._selector.modify(descriptor, events, link)
            else:
                self._selector.register(descriptor, events, link)
            link.interest[descriptor] = events

    def let_go(self, link: Link) -> None:
        """The link is somebody else's from now on, or nobody's."""
        self.wait_for(link, dict.fromkeys(link.interest, 0))
        self.links.discard(link)
        self.eager.discard(link)

    def serve(self, link: Link) -> None:
        """Do what there is to do. Raises OSError."""
        raise NotImplementedError

    def failed(self, link: Link, error: Exception) -> None:
        """It cannot go on."""
        self.let_go(link)
        link.close()

    def patience(self) -> float | None:
        """Seconds until :meth:`tidy` has something to do; None: never."""
        return None

    def tidy(self) -> None:
        """Look after what takes too long."""


class _Handshakes(_Thread):
    """Brings handshakes to their end."""

    def __init__(self, traffic: _Traffic) -> None:
        self._traffic = traffic
        super().__init__("tls-handshakes")

    def serve(self, link: Link) -> None:
        """One step of it."""
        wanted = None
        if link.refused is None:
            try:
                wanted = link.shake_hands()
            except ssl.SSLCertVerificationError as error:
                link.refused, link.deadline = error, min(link.deadline, time.monotonic() + FAREWELL)
        if link.refused is not None:
            wanted = link.hear_out()
        if wanted is not None:
            self.wait_for(link, {link.sock.fileno(): wanted[0]})
            return
        found = peer_of(link.tls)
        self.let_go(link)
        link.outcome(found, "")
        self._traffic.add(link)

    def failed(self, link: Link, error: Exception) -> None:
        """Say so, once."""
        error = link.refused or error
        link.say_goodbye()  # or the alert that says why
        super().failed(link, error)
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", None) or error
        link.outcome(None, str(reason))

    def patience(self) -> float | None:
        """Until the first is late."""
        if not self.links:
            return None
        return max(0.0, min(link.deadline for link in self.links) - time.monotonic())

    def tidy(self) -> None:
        """Give up those that are late."""
        now = time.monotonic()
        for link in [link for link in self.links if link.deadline <= now]:
            self.failed(link, TimeoutError(f"not done after {HANDSHAKE_TIME:.0f} s"))


class _Traffic(_Thread):
    """Moves octets of connections that are secured."""

    def __init__(self) -> None:
        self._piece = bytearray(PIECE)
        self._tidied = 0.0
        super().__init__("tls-traffic")

    def serve(self, link: Link) -> None:
        """Move what can be moved, as far as it is this one's turn."""
        out = link.out(self._piece, _TURN)
        if out is None:
            self.let_go(link)
            link.say_goodbye()
            link.close()
            return
        into = link.into(_TURN)
        (self.eager.add if out == (0, 0) or (into == (0, 0) and not link.ended) else self.eager.discard)(link)
        self.wait_for(link, {link.sock.fileno(): out[0] | into[0], link.clear.fileno(): out[1] | into[1]})

    def patience(self) -> float | None:
        """Until the next look, if there is anything to look at."""
        return LINGER / 4 if self.links else None

    def tidy(self) -> None:
        """Give up what nobody waits for and the peer does not take."""
        now = time.monotonic()
        if now - self._tidied < LINGER / 4:
            return
        self._tidied = now
        for link in [link for link in self.links if link.is_stuck(LINGER)]:
            self.failed(link, TimeoutError("the peer takes nothing"))


class Relay:
    """Secures connections."""

    def __init__(self) -> None:
        self._traffic = _Traffic()
        self._handshakes = _Handshakes(self._traffic)
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()
        """Handshakes in progress, by host."""

    def secure(self, sock: socket.socket, who: str, wrap: Wrap, outcome: Outcome) -> socket.socket:
        """Begin a handshake with a peer of the host ``who``. Takes the socket, which does not block, and returns the
        one in its place, on which nothing comes before the handshake has ended well, and the end if it has not. Raises
        OSError, ConnectionError among them if there are too many; the socket is closed then."""
        try:
            ours, clear = self._begin(who)
        except OSError:
            sock.close()
            raise

        def over(peer: Peer | None, why: str) -> None:
            with self._lock:
                self._under_way[who] -= 1
                self._under_way += Counter()  # without those that are none
            outcome(peer, why)

        self._handshakes.add(Link(sock, clear, wrap, over, HANDSHAKE_TIME))
        return ours

    def _begin(self, who: str) -> tuple[socket.socket, socket.socket]:
        """Room for one more. Raises OSError."""
        with self._lock:
            if self._under_way[who] >= HOST_HANDSHAKES or self._under_way.total() >= HANDSHAKES:
                raise ConnectionError("too many handshakes are in progress")
            pair = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._under_way[who] += 1
        return pair

    def close(self) -> None:
        """Close every connection, and end the threads."""
        self._handshakes.close()
        self._traffic.close()
