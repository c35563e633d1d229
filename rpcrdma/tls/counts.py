"""What has become of TLS's handshakes, and how many connections are secured now. Owns :class:`Counts`; imports nothing.

One thread writes each number; others read them at any time.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping
from typing import Final

RESULTS: Final = ("done", "revoked", "expired", "untrusted", "late", "displaced", "busy", "failed")
"""How handshakes end: well; the client's certificate is revoked, has expired, or is not believed for another reason; it
took too long; it gave way to others, or found no place; anything else, such as no common cipher."""
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds, of the histogram."""
_VERIFICATION: Final = {23: "revoked", 10: "expired"}
"""X509_V_ERR_CERT_REVOKED and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""


class Counts:
    """Of one server."""

    def __init__(self) -> None:
        self.handshakes: Counter[str] = Counter()
        self.buckets = [0] * (len(BOUNDS) + 1)
        """Handshakes that have ended well, by how long they took."""
        self.seconds = 0.0
        self.connections: Counter[str] = Counter()
        """That are secured now, by ``tls`` and ``mtls``."""
        self.in_kernel = 0
        """Those of them for which the kernel enciphers."""
        self.distrusted = 0
        """Connections that were ended, since their client's certificate is to be checked again."""
        self.expiries: Mapping[str, float] = {}
        """When the first of a file's certificates, or lists, expires (time.time), by what the file is."""

    def ended(self, result: str, seconds: float) -> None:
        """A handshake has ended, with one of :data:`RESULTS`."""
        self.handshakes[result] += 1
        if result == "done":
            self.buckets[bisect.bisect_left(BOUNDS, seconds)] += 1
            self.seconds += seconds


def unbelieved(code: int) -> str:
    """The result of a handshake whose client's certificate was refused with this code of OpenSSL."""
    return _VERIFICATION.get(code, "untrusted")
