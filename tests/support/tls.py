"""A peer of TLS that keeps to no rule: records of any kind, sealed with its keys. And lists of certificates that are
revoked."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rpcrdma.tls.secrets import Secret

HANDSHAKE, ALERT, DATA = 22, 21, 23
"""Kinds of records (RFC 8446 section 5.1)."""
KEY_UPDATE = b"\x18\0\0\1"
"""What a change of keys begins with; an octet follows, whether the other side is to change its own (section 4.6.3)."""


class Forged:
    """Seals as a peer could, by the ciphers of ``cryptography``."""

    def __init__(self, secret: Secret) -> None:
        """Of a suite with AES-GCM."""
        self.secret, self.sequence = secret, 0
        self._key, self._iv = secret.keys()

    def seal(self, kind: int, content: bytes, padding: int = 0) -> bytes:
        """A record; of kind 0: one that says of no kind."""
        nonce = (int.from_bytes(self._iv, "big") ^ self.sequence).to_bytes(12, "big")
        self.sequence += 1
        inner = content + (bytes([kind]) if kind else b"") + bytes(padding)
        header = bytes([DATA, 3, 3]) + (len(inner) + 16).to_bytes(2, "big")
        return header + AESGCM(self._key).encrypt(nonce, inner, header)

    def update(self) -> None:
        """Go on with the next keys."""
        self.secret, self.sequence = self.secret.next(), 0
        self._key, self._iv = self.secret.keys()


def list_of(authority: trustme.CA, *revoked: str) -> bytes:
    """A revocation list with the certificates in these files."""
    key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    made = made.last_update(now - datetime.timedelta(days=1)).next_update(now + datetime.timedelta(days=1))
    for name in revoked:
        number = x509.load_pem_x509_certificate(Path(name).read_bytes()).serial_number
        one = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
        made = made.add_revoked_certificate(one)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]
