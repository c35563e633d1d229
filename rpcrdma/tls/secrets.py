"""What a handshake leaves to the records: the secrets of both directions (RFC 8446 section 7).

Owns :class:`Secrets` and :class:`KeyLog`; imports nothing of the project. Python's ssl tells these secrets by its key
log and in no other way. The log is a pipe of this process's, which is emptied behind each step of a handshake.
"""

from __future__ import annotations

import hmac
import os
import ssl
from dataclasses import dataclass, field, replace
from typing import Final

_CLIENT: Final = "CLIENT_TRAFFIC_SECRET_0"
_SERVER: Final = "SERVER_TRAFFIC_SECRET_0"
_MOST: Final = 1 << 16
"""Octets of the log that one step of a handshake writes, at most."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A cipher suite (section B.4)."""

    key: int
    """Octets of its key."""
    digest: str


SUITES: Final = {
    "TLS_AES_128_GCM_SHA256": Suite(16, "sha256"),
    "TLS_AES_256_GCM_SHA384": Suite(32, "sha384"),
    "TLS_CHACHA20_POLY1305_SHA256": Suite(32, "sha256"),
}


@dataclass(frozen=True, slots=True)
class Secret:
    """One direction's traffic secret."""

    cipher: str
    octets: bytes = field(repr=False)

    def expand(self, label: str, length: int) -> bytes:
        """HKDF-Expand-Label without a context (section 7.1). No length here is more than a digest's: one block."""
        name = b"tls13 " + label.encode()
        about = length.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
        return hmac.digest(self.octets, about + b"\1", SUITES[self.cipher].digest)[:length]

    def keys(self) -> tuple[bytes, bytes]:
        """The key, and what nonces are made of (section 7.3)."""
        return self.expand("key", SUITES[self.cipher].key), self.expand("iv", 12)

    def next(self) -> Secret:
        """The one behind a KeyUpdate (section 7.2)."""
        return replace(self, octets=self.expand("traffic upd", len(self.octets)))


@dataclass(frozen=True, slots=True)
class Secrets:
    """Those of one connection."""

    incoming: Secret
    outgoing: Secret
    is_server: bool
    early: bytes = field(default=b"", repr=False)
    """What has come behind the handshake already, enciphered."""


class KeyLog:
    """Takes secrets from handshakes, whose steps are made one at a time. Not for several threads."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.path = f"/proc/self/fd/{self._write}"

    def close(self) -> None:
        """Nothing is written to it any more: no handshake is made."""
        os.close(self._read)
        os.close(self._write)

    def take(self) -> dict[str, bytes]:
        """What has been written since the last time, by label."""
        try:
            text = os.read(self._read, _MOST).decode("ascii", "replace")
        except BlockingIOError:
            return {}
        lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
        return {words[0]: bytes.fromhex(words[2]) for words in lines if len(words) == 3}


def secrets_of(tls: ssl.SSLObject, told: dict[str, bytes], early: bytes) -> Secrets:
    """Of a handshake that has come to its end, and ``told`` these. Raises ConnectionError if they are of no use."""
    cipher = (tls.cipher() or ("none",))[0]
    if cipher not in SUITES:
        raise ConnectionError(f"no cipher for records of {cipher}")
    if not {_CLIENT, _SERVER} <= told.keys():
        raise ConnectionError("the library has told no secrets of the handshake")
    of_client, of_server = Secret(cipher, told[_CLIENT]), Secret(cipher, told[_SERVER])
    if tls.server_side:
        return Secrets(of_client, of_server, True, early)
    return Secrets(of_server, of_client, False, early)
