"""What is lost of data that clients were told is written, and how they learn of it: by the write verifier.

Owns the verifiers (RFC 1813 section 3.3.7) and the counts of failures. Each store and each file system has its own, so
that what one has lost makes nobody send again what others have.
"""

from __future__ import annotations

import contextlib
import os

from rpcrdma.log_limits import limited_logger
from rpcrdma.shown import path_shown

_log = limited_logger(__name__)


class WriteBack:
    """The write verifier of one store, and what changes it."""

    def __init__(self) -> None:
        self.verifier = os.urandom(8)
        """8 octets, new at each start of the server and after each failure of write-back (RFC 1813 section 3.3.7)."""
        self.failures = 0
        """How many there have been."""
        self.lanes: set[int] = set()
        """Those that its files are closed in."""

    def renew(self) -> None:
        """What has not been committed may be lost: clients are to send it again."""
        self.verifier = os.urandom(8)

    def failed(self, error: int, descriptor: int = -1) -> None:
        """Write-back has failed, of this file if known. Clients must send unstable writes again (RFC 1813, 3.3.21)."""
        self.renew()
        self.failures += 1
        what = "a file"
        with contextlib.suppress(OSError):
            what = path_shown(os.readlink(f"/proc/self/fd/{descriptor}"))
        _log.error("data written to %s is lost: %s (%d failures there so far)", what, os.strerror(error), self.failures)


class WriteBacks:
    """Those of all stores. One that was met is remembered: the same file system comes back with the same verifier,
    however long nobody has used it."""

    def __init__(self) -> None:
        self._by_store: dict[bytes, WriteBack] = {}

    def of(self, store: bytes, lane: int) -> WriteBack:
        """That of the store or file system which is called this over restarts, and which is now in this lane too."""
        found = self._by_store.setdefault(store, WriteBack())
        found.lanes.add(lane)
        return found

    def failed_in(self, lane: int, error: int) -> None:
        """Write-back has failed, of a file that is known by its lane only."""
        for one in self._by_store.values():
            if lane in one.lanes:
                one.failed(error)

    def renew(self) -> None:
        """Each is another from now on."""
        for one in self._by_store.values():
            one.renew()

    @property
    def failures(self) -> int:
        """How many there have been, of all."""
        return sum(one.failures for one in self._by_store.values())
