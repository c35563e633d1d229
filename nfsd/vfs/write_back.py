"""What is lost of data that clients were told is written, and how they learn of it: by the write verifier.

Owns the verifier (RFC 1813 section 3.3.7) and the count of failures.
"""

from __future__ import annotations

import contextlib
import os

from nfsd.shown import path_shown
from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)


class WriteBack:
    """The write verifier, and what changes it."""

    def __init__(self) -> None:
        self.verifier = os.urandom(8)
        """8 octets, new at each start of the server and after each failure of write-back (RFC 1813 section 3.3.7)."""
        self.failures = 0
        """How many there have been."""

    def failed(self, error: int, descriptor: int = -1) -> None:
        """Write-back has failed, of this file if known. Clients must send unstable writes again (RFC 1813, 3.3.21)."""
        self.verifier = os.urandom(8)
        self.failures += 1
        what = "a file"
        with contextlib.suppress(OSError):
            what = path_shown(os.readlink(f"/proc/self/fd/{descriptor}"))
        _log.error("data written to %s is lost: %s (%d failures so far)", what, os.strerror(error), self.failures)
