"""The server's certificate, and whose certificates it believes (RFC 9289 section 5).

Owns :class:`Certificates`, which makes the context of each handshake, and :class:`Peer`, what a handshake has told of a
client. Imports what reads files. Files that have changed are read again: a certificate that is renewed is
used by the next handshake. One that cannot be used any more leaves the one before in use, and the log says so.

Trust in a client is looked at again later (RFC 9289 section 5.2.1). The library can check a certificate in a handshake
only. So where roots or revocation lists have changed, all clients with certificates shake hands again: who is still
believed connects again at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final

from rpcrdma.plain_files import NotAFile, demand, read
from rpcrdma.tls.counts import Counts
from rpcrdma.tls.expiry import expiry_of

_log = logging.getLogger(__name__)

ALPN: Final = "sunrpc"
"""RFC 9289 section 4.1: what both sides name in their handshake."""
_NAMES: Final = {"DNS": "dns", "IP Address": "ip", "email": "email", "URI": "uri"}
_MOST_NAMES: Final = 32
_LONGEST_NAME: Final = 512
_LARGEST: Final = 1 << 30
"""Octets of roots or revocation lists by which they are told from others."""


class TlsError(Exception):
    """The certificates cannot be used; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where everything is, as the configuration names it. PEM files."""

    certificate: str
    """The server's certificate, with those between it and a root."""
    key: str
    """Its private key."""
    clients: str = ""
    """Roots that clients' certificates are checked with. Empty: clients have no certificates."""
    revoked: str = ""
    """Revocation lists of those roots, and of whom they let issue certificates. With them a certificate is not believed
    unless each of its issuers has a list."""

    def names(self) -> list[str]:
        """Those that are there."""
        return [name for name in (self.certificate, self.key, self.clients, self.revoked) if name]


@dataclass(frozen=True, slots=True)
class Peer:
    """A client whose connection is secured."""

    cipher: str
    subject: str = ""
    """Of its certificate, for people; empty: it has shown none."""
    names: tuple[str, ...] = ()
    """Its subject alternative names (RFC 5280 section 4.2.1.6), as in ``dns:host``, ``ip:10.0.0.1``, ``email:…``."""
    until: float = float("inf")
    """When its certificate expires (time.time)."""
    trust: bytes = b""
    """By which roots and lists it was believed."""

    @property
    def verified(self) -> bool:
        """Whether it has shown a certificate. One that is not believed ends the handshake."""
        return bool(self.subject)

    @property
    def security(self) -> str:
        """``mtls`` or ``tls``, as the configuration's ``xprtsec`` names them."""
        return "mtls" if self.verified else "tls"


class Context(ssl.SSLContext):
    """What handshakes are made with."""

    trust = b""
    """Tells the roots and revocation lists that clients are checked with from others."""


class Certificates:
    """Makes contexts for handshakes. All but ``believes`` is used by one thread at a time."""

    def __init__(self, files: Files, log: str | None = None, counts: Counts | None = None) -> None:
        """``log``: where the library is to tell its secrets. ``counts`` are told when files expire. Raises TlsError."""
        self.files, self._log = files, log
        self._counts = Counts() if counts is None else counts
        self._seen = _stamps(files)
        self._context = self._made()

    def _made(self) -> Context:
        context = make_context(self.files)
        self._counts.expiries = expiries(self.files)
        if self._log is not None:
            context.keylog_filename = self._log
        return context

    def wrap(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """The server's part in a handshake that begins now. Raises OSError."""
        self.look()
        return self._context.wrap_bio(incoming, outgoing, server_side=True)

    def believes(self, peer: Peer) -> bool:
        """Whether a client that was believed still is, as far as is known since the last :meth:`look`."""
        return not peer.verified or (peer.trust == self._context.trust and time.time() < peer.until)

    def look(self) -> None:
        """Read what has changed."""
        seen = _stamps(self.files)
        if seen != self._seen:
            self._seen = seen
            try:
                self._context = self._made()
                _log.info("TLS: %s is used from now on", self.files.certificate)
            except TlsError as error:
                _log.error("TLS: %s; what was read before stays in use", error)


def _digest(name: str) -> bytes:
    return hashlib.sha256(read(name, _LARGEST)).digest()


def _stamps(files: Files) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes when a file does."""
    found: list[tuple[int, int, int] | None] = []
    for name in files.names():
        try:
            about = os.stat(name)
            found.append((about.st_ino, about.st_mtime_ns, about.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def make_context(files: Files) -> Context:
    """Read the files. RFC 9289 section 5: TLS 1.3 and nothing older; and no early data, which could be replayed
    (OpenSSL takes none unless told to). Raises TlsError."""
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a client connects seldom; and what was not asked for would lie between replies
    context.set_alpn_protocols([ALPN])
    what = files.certificate
    try:
        for name in files.names():
            demand(name)  # OpenSSL opens them, and would wait for a pipe's writer
        context.load_cert_chain(files.certificate, files.key)
        if files.clients:
            what = files.clients
            context.load_verify_locations(files.clients)
            context.verify_mode = ssl.CERT_OPTIONAL
        if files.revoked:
            what = files.revoked
            context.load_verify_locations(files.revoked)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
        context.trust = b"".join(_digest(name) for name in (files.clients, files.revoked) if name)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{files.key} is not the key of {files.certificate}; name the one that is") from None
        raise TlsError(f"{what} cannot be used ({error.reason or error}); it must be PEM") from None
    except NotAFile as error:
        raise TlsError(f"{error.filename}: {error.strerror}; name a PEM file") from None
    except OSError as error:
        missing = next((name for name in files.names() if not os.access(name, os.R_OK)), what)
        raise TlsError(
            f"{missing}: {error.strerror or error}; it must be there and readable by the server's user"
        ) from None
    return context


def expiries(files: Files) -> dict[str, float]:
    """When the first certificate or list of each file expires, by the configuration's names."""
    named = {"certificate": files.certificate, "client_roots": files.clients, "revoked": files.revoked}
    found = {}
    for what, name in named.items():
        with contextlib.suppress(OSError):  # it has been read, and may be gone by now
            if name and (until := expiry_of(read(name, _LARGEST))) != float("inf"):
                found[what] = until
    return found


def peer_of(tls: ssl.SSLObject) -> Peer:
    """What a handshake that has come to its end tells of the client."""
    cipher = tls.cipher()
    shown: Any = tls.getpeercert()
    if not shown:
        return Peer(cipher[0] if cipher else "")
    subject = ",".join(f"{key}={value}" for part in shown.get("subject", ()) for key, value in part)
    names = tuple(f"{_NAMES[kind]}:{name}" for kind, name in shown.get("subjectAltName", ()) if _counts(kind, name))
    until = float(ssl.cert_time_to_seconds(shown["notAfter"])) if "notAfter" in shown else float("inf")
    trust = getattr(tls.context, "trust", b"")
    serial = shown.get("serialNumber", "?")
    return Peer(cipher[0] if cipher else "", subject or f"serial {serial}", names[:_MOST_NAMES], until, trust)


def _counts(kind: str, name: str) -> bool:
    """Whether a subject alternative name says who somebody is. One with a wildcard does not (RFC 9289 section 5.2.1),
    nor does one that could be read as several, or as another."""
    plain = all("!" <= character <= "~" for character in name) and "*" not in name
    return kind in _NAMES and plain and 0 < len(name) <= _LONGEST_NAME
