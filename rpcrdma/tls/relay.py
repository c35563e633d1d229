"""What lies between a secured connection and its records: handshakes and TLS's own records, off the event loop.

Owns :class:`Relay`, two threads of it; imports the certificates. A connection that is to be secured gives its socket
away and gets one end of a pair of sockets, on which the same octets come and go in the clear. One thread makes
handshakes, the other enciphers and deciphers: neither waits for a peer, and a crowd that begins handshakes takes its
turns from others that do, not from connections that are secured. The library releases the interpreter's lock while it
computes.

Bounds: a handshake takes HANDSHAKE_TIME at most. HANDSHAKES are in progress, HOST_HANDSHAKES of one host; others are
closed. Each direction of a connection holds one piece of PIECE octets, and what the kernel holds for the pair. What a
peer does not take within LINGER, once the other end is closed, is given up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from rpcrdma.tls.certificates import Peer, peer_of

_log = logging.getLogger(__name__)

HANDSHAKE_TIME: Final = 10.0
HANDSHAKES: Final = 128
"""In progress at a time."""
HOST_HANDSHAKES: Final = 16
LINGER: Final = 10.0
PIECE: Final = 1 << 16
_TURN: Final = 16
"""Pieces that one connection moves while others wait."""

Outcome = Callable[[Peer | None, str], None]
"""Takes the client of a handshake that has ended well; or None, and why it has not. Called by a thread."""

Wrap = Callable[[socket.socket], ssl.SSLSocket]
"""Gives a socket its part in the handshake, which is not begun yet. Called by a thread."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class _Link:
    """One connection: TLS on one side, the clear on the other."""

    __slots__ = (
        "clear",
        "deadline",
        "ended",
        "from_clear",
        "from_peer",
        "interest",
        "outcome",
        "peer",
        "since",
        "sock",
        "wrap",
    )

    peer: ssl.SSLSocket
    """``sock``, once its handshake has begun."""

    def __init__(self, sock: socket.socket, clear: socket.socket, wrap: Wrap, outcome: Outcome) -> None:
        self.sock, self.clear, self.wrap, self.outcome = sock, clear, wrap, outcome
        self.deadline = time.monotonic() + HANDSHAKE_TIME
        self.from_peer = self.from_clear = memoryview(b"")
        """What has been taken from the one side and not been given to the other."""
        self.ended = False
        """Whether the peer sends no more, and the other side knows."""
        self.since = 0.0
        """When the peer last took something of ``from_clear``."""
        self.interest: dict[int, int] = {}
        """What each descriptor is waited for."""

    def close(self) -> None:
        """Close both sides."""
        (self.peer if hasattr(self, "peer") else self.sock).close()
        self.clear.close()


class _Thread:
    """A selector, the links in it, and a thread that serves them."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_out, _READ)
        self._lock = threading.Lock()
        self._arrived: list[_Link] = []
        self._closing = False
        self.links: set[_Link] = set()
        self.eager: set[_Link] = set()
        """Those that may have more to do at once, whatever the selector says."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, link: _Link) -> None:
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

    def _serve(self, link: _Link) -> None:
        try:
            self.serve(link)
        except (OSError, ValueError) as error:  # ssl's errors are OSErrors
            self.failed(link, error)
        except Exception as error:
            _log.exception("TLS: a connection is closed")
            self.failed(link, error)

    def wait_for(self, link: _Link, interest: dict[int, int]) -> None:
        """Wake up for the link when any of these descriptors is ready for what stands beside it."""
        for descriptor, events in interest.items():
            known = link.interest.get(descriptor, 0)
            if known == events:
                continue
            if not events:
                self._selector.unregister(descriptor)
            elif known:
                self._selector.modify(descriptor, events, link)
            else:
                self._selector.register(descriptor, events, link)
        link.interest = {descriptor: events for descriptor, events in interest.items() if events}

    def let_go(self, link: _Link) -> None:
        """The link is somebody else's from now on, or nobody's."""
        self.wait_for(link, dict.fromkeys(link.interest, 0))
        self.links.discard(link)
        self.eager.discard(link)

    def serve(self, link: _Link) -> None:
        """Do what there is to do. Raises OSError."""
        raise NotImplementedError

    def failed(self, link: _Link, error: Exception) -> None:
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

    def serve(self, link: _Link) -> None:
        """One step of it."""
        if not hasattr(link, "peer"):
            link.peer = link.wrap(link.sock)
        try:
            link.peer.do_handshake()
        except ssl.SSLWantReadError:
            self.wait_for(link, {link.peer.fileno(): _READ})
            return
        except ssl.SSLWantWriteError:
            self.wait_for(link, {link.peer.fileno(): _WRITE})
            return
        found = peer_of(link.peer)
        self.let_go(link)
        link.outcome(found, "")
        self._traffic.add(link)

    def failed(self, link: _Link, error: Exception) -> None:
        """Say so, once."""
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

    def serve(self, link: _Link) -> None:
        """Move what can be moved, as far as it is this one's turn."""
        waits_out, more_out = self._out(link)
        if waits_out is None:
            self.let_go(link)
            self._say_goodbye(link)
            return
        waits_in, more_in = self._in(link)
        (self.eager.add if more_out or more_in else self.eager.discard)(link)
        peer, clear = link.peer.fileno(), link.clear.fileno()
        self.wait_for(link, {peer: waits_out[0] | waits_in[0], clear: waits_out[1] | waits_in[1]})

    def _out(self, link: _Link) -> tuple[tuple[int, int] | None, bool]:
        """From the clear side to the peer: what is waited for of the peer and of the clear side, None at the end; and
        whether there may be more at once."""
        for _ in range(_TURN):
            if not link.from_clear:
                try:
                    got = link.clear.recv_into(self._piece)
                except BlockingIOError:
                    return (0, _READ), False
                if not got:
                    return None, False
                link.from_clear, link.since = memoryview(self._piece)[:got], time.monotonic()
            try:
                sent = link.peer.send(link.from_clear)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
                if link.from_clear.obj is self._piece:
                    link.from_clear = memoryview(bytes(link.from_clear))
                return (_WRITE if isinstance(error, ssl.SSLWantWriteError) else _READ, 0), False
            link.from_clear, link.since = link.from_clear[sent:], time.monotonic()
            if link.from_clear and link.from_clear.obj is self._piece:
                link.from_clear = memoryview(bytes(link.from_clear))
        return (0, _READ), True

    def _in(self, link: _Link) -> tuple[tuple[int, int], bool]:
        """From the peer to the clear side: likewise."""
        for _ in range(_TURN):
            if link.ended:
                return (0, 0), False
            if not link.from_peer:
                try:
                    got = link.peer.recv_into(self._piece)
                except ssl.SSLWantReadError:
                    return (_READ, 0), False
                except ssl.SSLWantWriteError:
                    return (_WRITE, 0), False
                except (ssl.SSLEOFError, ConnectionError):
                    got = 0
                if not got:
                    link.ended = True
                    link.clear.shutdown(socket.SHUT_WR)
                    return (0, 0), False
                link.from_peer = memoryview(self._piece)[:got]
            try:
                sent = link.clear.send(link.from_peer)
            except BlockingIOError:
                sent = 0
            link.from_peer = link.from_peer[sent:]
            if link.from_peer:
                if link.from_peer.obj is self._piece:
                    link.from_peer = memoryview(bytes(link.from_peer))
                return (0, _WRITE), False
        return (_READ, 0), True

    def patience(self) -> float | None:
        """Until the next look, if there is anything to look at."""
        return LINGER / 4 if self.links else None

    def tidy(self) -> None:
        """Give up what nobody waits for and the peer does not take."""
        now = time.monotonic()
        if now - self._tidied < LINGER / 4:
            return
        self._tidied = now
        for link in [link for link in self.links if link.from_clear and now - link.since >= LINGER]:
            poll = select.poll()
            poll.register(link.clear, 0)  # the end of the other side is told all the same
            if poll.poll(0):
                self.failed(link, TimeoutError("the peer takes nothing"))

    @staticmethod
    def _say_goodbye(link: _Link) -> None:
        """Tell the peer that this is the end (RFC 8446 section 6.1: close_notify), if it takes that at once."""
        with contextlib.suppress(OSError, ValueError):  # the peer need not say it as well
            link.peer.unwrap()
        link.close()


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

        self._handshakes.add(_Link(sock, clear, wrap, over))
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
