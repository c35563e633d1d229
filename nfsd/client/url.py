"""URLs that name a file on a server: ``rdma://host[:port]/export/path``, ``tcp://``, ``tls://``. Owns :class:`Url`.

The form is that of RFC 3986: octets that a URL cannot carry are escaped with ``%``. Nothing in the path is interpreted
here; ``%2F`` is refused, since no name can have a slash.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

DEFAULT_PORTS: Final = {"rdma": 20049, "tcp": 2049, "tls": 2049}
"""RFC 8267 section 7 for RDMA, RFC 8881 section 2.9.3 for TCP, with TLS (RFC 9289) at the same port."""
_SAFE: Final = "/-._~!$&'()*+,;=:@"


class UrlError(ValueError):
    """Text that names no file on a server; the message says why, and what would."""


@dataclass(frozen=True, slots=True)
class Url:
    """One place on one server."""

    transport: str
    """``rdma``, ``tcp`` or ``tls``."""
    host: str
    """A name or a literal address, without brackets."""
    port: int
    names: tuple[bytes, ...]
    """The path, component by component; empty ones and ``.`` are left out, ``..`` is kept."""

    @property
    def path(self) -> str:
        """The path as text, for the file system's functions."""
        return "/" + "/".join(os.fsdecode(name) for name in self.names)

    @property
    def server(self) -> str:
        """``scheme://host:port``, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.transport}://{host}:{self.port}"

    def __str__(self) -> str:
        return self.server + "/" + quote(b"/".join(self.names), safe=_SAFE)

    def joined(self, *names: bytes) -> Url:
        """The place ``names`` below this one."""
        return Url(self.transport, self.host, self.port, (*self.names, *names))


def is_url(text: str) -> bool:
    """Whether ``text`` is meant as a URL (and not as a local path)."""
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme.isalpha()


def parse(text: str) -> Url:
    """Take a URL apart. Raises UrlError."""
    example = "rdma://host/export/path"
    if not is_url(text):
        raise UrlError(f"{text!r} is no URL; one looks like {example}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"{text!r}: {error}") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise UrlError(f"{text!r}: the scheme is rdma, tcp or tls, as in {example}")
    if parts.username is not None:
        raise UrlError(f"{text!r}: NFS takes no user name in a URL; calls are made with your own user and group ids")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise UrlError(f"{text!r}: write ? as %3F and # as %23 if they belong to a name")
    if not parts.hostname:
        raise UrlError(f"{text!r} names no host, as {example} does")
    if ":" in parts.hostname:
        try:
            ipaddress.IPv6Address(parts.hostname)
        except ValueError:
            raise UrlError(f"{text!r}: {parts.hostname} is no IPv6 address") from None
    if port == 0:
        raise UrlError(f"{text!r}: there is no port 0")
    names = tuple(unquote_to_bytes(part) for part in parts.path.split("/"))
    for name in names:
        if b"/" in name or b"\0" in name:
            raise UrlError(f"{text!r}: a name holds neither a slash nor a NUL")
    kept = tuple(name for name in names if name not in (b"", b"."))
    return Url(parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme], kept)


def components(path: str | os.PathLike[str]) -> list[bytes]:
    """A path below a file system's root, component by component; ``..`` is kept. Raises UrlError for a NUL."""
    octets = os.fsencode(os.fspath(path))
    if b"\0" in octets:
        raise UrlError(f"{os.fspath(path)!r}: a name holds no NUL")
    return [name for name in octets.split(b"/") if name not in (b"", b".")]
