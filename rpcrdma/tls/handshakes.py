"""The thread that makes handshakes, off the event loop.

Owns :class:`Handshakes`; imports the handshake. The thread waits for no peer. When a handshake has ended well, its
connection gets the secrets and makes TLS's records itself (:mod:`rpcrdma.tls.records`), without this thread.

Bounds: a handshake takes HANDSHAKE_TIME at most. HANDSHAKES are in progress, HOST_HANDSHAKES of one host; who gives way
to others is decided by :mod:`rpcrdma.crowd`. A peer whose certificate is not believed has FAREWELL to read that. A
few handshakes of each host have a turn; then others have theirs.
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
from collections.abc import Callable
from typing import Final

from rpcrdma.crowd import Crowd
from rpcrdma.tls.certificates import Peer, peer_of
from rpcrdma.tls.counts import Counts, unbelieved
from rpcrdma.tls.handshake import READ, Handshake, Outcome, Wrap
from rpcrdma.tls.secrets import KeyLog, Secrets

_log = logging.getLogger(__name__)

HANDSHAKE_TIME: Final = 10.0
HANDSHAKES: Final = 128
"""In progress at a time."""
HOST_HANDSHAKES: Final = 16
FAREWELL: Final = 3.0
LOOK: Final = 5.0
"""Seconds between looks for certificates that have changed."""
_HOST_TURNS: Final = 2
"""Handshakes of one host that have a turn while those of others wait."""


class Handshakes:
    """A selector, the handshakes in it, and a thread that serves them."""

    def __init__(self, log: KeyLog, look: Callable[[], None] = lambda: None, counts: Counts | None = None) -> None:
        """``log``: where secrets of those come that begin here; closed with this. ``look``: for certificates that have
        changed; called now and then by the thread. Raises OSError."""
        self._log, self._look = log, look
        self._counts = Counts() if counts is None else counts
        self._looked = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_out, READ)
        self._lock = threading.Lock()
        self._crowd: Crowd[Handshake] = Crowd(HANDSHAKES, HOST_HANDSHAKES)
        self._arrived: list[Handshake] = []
        self._closing = False
        self._present: set[Handshake] = set()
        self._eager: dict[Handshake, None] = {}
        """Those that had to wait for their turn; who has waited longest is first."""
        self._thread = threading.Thread(target=self._run, name="tls-handshakes", daemon=True)
        self._thread.start()

    def begin(self, sock: socket.socket, host: str, wrap: Wrap, outcome: Outcome) -> None:
        """Begin a handshake with a peer of a host, on a socket that does not block. Nobody else reads from it or writes
        to it until the outcome; to end the handshake, shut it down. Raises OSError, ConnectionError among them if there
        are too many."""

        def over(peer: Peer | None, why: str, secrets: Secrets | None) -> None:
            with self._lock:
                self._crowd.leave(one)
                self._counts.ended(one.result, time.monotonic() - one.since)
            outcome(peer, why, secrets)

        own = sock.dup()  # whoever has the other may close it at any time
        one = Handshake(own, wrap, over, HANDSHAKE_TIME, host)
        try:
            with self._lock:
                if self._closing:
                    raise ConnectionError("no handshakes are made any more")
                displaced = self._crowd.enter(one, one.since)
                self._arrived.append(one)
        except ConnectionError:
            own.close()
            with self._lock:
                self._counts.ended("busy", 0.0)
            raise
        if displaced is not None:
            displaced.give_way()
        self._wake()

    def close(self) -> None:
        """End every handshake, and the thread."""
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join()
        os.close(self._wake_in)
        self._log.close()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake
            os.write(self._wake_in, b"\0")

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            for one in [*self._present, *self._arrived]:
                one.sock.close()
            self._selector.close()
            os.close(self._wake_out)

    def _turn(self) -> bool:
        found = [key.data for key, _ in self._selector.select(0 if self._eager else self._patience())]
        if None in found:
            found.remove(None)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_out, 4096)
        with self._lock:
            if self._closing:
                return False
            arrived, self._arrived = self._arrived, []
        self._present.update(arrived)
        turns: Counter[str] = Counter()
        for one in dict.fromkeys([*self._eager, *found, *arrived]):
            turns[one.host] += 1
            if one not in self._present:
                pass  # it has gone meanwhile
            elif turns[one.host] <= _HOST_TURNS:
                self._eager.pop(one, None)
                self._serve(one)
            else:
                self._eager.setdefault(one)
        try:
            self._tidy()
        except Exception:
            _log.exception("TLS: what takes too long is not looked after")
        return True

    def _serve(self, one: Handshake) -> None:
        try:
            wanted = self.step(one)
            if wanted is not None:
                self._wait_for(one, wanted)
            else:
                self._let_go(one)
                one.sock.close()
        except (OSError, ValueError) as error:  # ssl's errors are OSErrors
            self._give_up(one, error)
        except Exception as error:
            _log.exception("TLS: a connection is closed")
            self._give_up(one, error)

    def step(self, one: Handshake) -> int | None:
        """One step of it: what its socket is waited for; None: it has ended well. Raises OSError."""
        if one.refused is None:
            try:
                wanted = one.go_on(self._log)
                if wanted is None:
                    one.result = "done"
                    one.tell(peer_of(one.tls), "", one.secrets())
                return wanted
            except ssl.SSLCertVerificationError as error:
                one.refused, one.deadline = error, min(one.deadline, time.monotonic() + FAREWELL)
        return one.hear_out()

    def _give_up(self, one: Handshake, error: Exception) -> None:
        """It cannot go on. What fails even then costs this one only: all others need the thread."""
        try:
            one.result = _result(one, error)
            error = one.refused or error
            reason = getattr(error, "verify_message", "") or getattr(error, "reason", None) or error
            try:
                one.say_goodbye()
            finally:
                one.tell(None, str(reason))
        except Exception:
            _log.exception("TLS: a connection is closed without a word")
        finally:
            self._let_go(one)
            one.sock.close()

    def _wait_for(self, one: Handshake, events: int) -> None:
        if one.interest == 0:
            self._selector.register(one.sock, events, one)
        elif one.interest != events:
            self._selector.modify(one.sock, events, one)
        one.interest = events

    def _let_go(self, one: Handshake) -> None:
        if one.interest:
            self._selector.unregister(one.sock)
            one.interest = 0
        self._present.discard(one)
        self._eager.pop(one, None)

    def _patience(self) -> float:
        """Until the first is late, or certificates are looked at."""
        first = min((one.deadline for one in self._present), default=float("inf"))
        return max(0.0, min(first, self._looked + LOOK) - time.monotonic())

    def _tidy(self) -> None:
        """Look at certificates now and then; give up those that are late."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            self._look()
        for one in [one for one in self._present if one.deadline <= now]:
            late = f"not done after {HANDSHAKE_TIME:.0f} s"
            self._give_up(one, TimeoutError("not done, and others wait" if one.displaced else late))


def _result(one: Handshake, error: Exception) -> str:
    """Of a handshake that cannot go on."""
    if one.refused is not None:
        return unbelieved(one.refused.verify_code)
    return "displaced" if one.displaced else "late" if isinstance(error, TimeoutError) else "failed"
