"""The entries of ``clients``: which hosts each is for, and how these may use the export.

Owns :class:`Pattern` and :class:`Access`; imports the name services. Addresses match by exact arithmetic. Names match
by what :class:`nfsd.names.HostNames` already knows, so nothing here waits. Names in certificates (``cert:``) match what
a handshake has proved (:class:`rpcrdma.tls.certificates.Peer`); the address does not matter then.

A *peer* is one word in all this: its address, and behind it, each after a space, the names of its certificate. So it
can be looked up in one step.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from nfsd.exported import ANY_SECURITY, WITHOUT_PROOF
from nfsd.names import HostNames
from rpcrdma.paces import NO_BOUND, Bound

_CACHE_LIMIT = 4096
RESERVED_PORTS = 1024
"""Those below take a privilege on the client's host."""


class Connection(Protocol):
    """What a call came on."""

    netid: str
    peer_address: str
    peer_port: int
    security: str
    certified: str


@dataclass(frozen=True, slots=True)
class Access:
    """How one client may use one export."""

    read_only: bool
    squash: str
    anonuid: int
    anongid: int
    secure: bool | str = False
    umask: int = 0
    """Bits that the modes of new files lose."""
    manage_gids: bool = False
    """Whether the server's own lists of users' groups count, whatever their calls say."""
    rate: Bound = NO_BOUND
    """What the client may do in a second on this export, in place of what clients may do on all."""
    weight: int = 1
    """Turns that the client has on this export for one of another's."""
    xprtsec: tuple[str, ...] = ANY_SECURITY
    """How its connections may be secured."""
    sec: tuple[str, ...] = WITHOUT_PROOF
    """How its callers may be known. No word stands for another, as in Linux's server."""

    def is_secured(self, transport: Connection) -> bool:
        """Whether a connection is secured as it must be. With a certificate a client may do what it may without one."""
        if self.xprtsec == ANY_SECURITY:
            return True
        security = transport.security
        return security in self.xprtsec or (security == "mtls" and "tls" in self.xprtsec)

    def has_port(self, transport: Connection) -> bool:
        """Whether a client may use the export from the port it has. Below 1024, only root may bind one: the kernel of a
        host that is trusted vouches for the ids in its calls. Nothing vouches for them elsewhere."""
        if not self.secure or 0 < transport.peer_port < RESERVED_PORTS:
            return True
        return self.secure == "tcp" and transport.netid.startswith("rdma")

    def takes(self, transport: Connection) -> bool:
        """Whether a client may use the export on the connection it has."""
        return self.has_port(transport) and self.is_secured(transport)


@lru_cache(maxsize=_CACHE_LIMIT)
def canonical_address(text: str) -> str:
    """A peer's address in the one spelling used for matching: no zone, IPv4 where IPv6 only carries it."""
    text = text.partition(" ")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def peer_of(transport: Connection) -> str:
    """Whom a connection is with."""
    return f"{transport.peer_address} {transport.certified}" if transport.certified else transport.peer_address


CERTIFICATE: Final = "cert:"
"""What an entry begins with that is for clients by the names in their certificates."""


def certificate_problem(entry: str) -> str:
    """What is wrong with an entry that begins so; empty: nothing. Of names with wildcards the first label is one, and
    stands for one (RFC 6125 section 6.4.3)."""
    name = entry.removeprefix(CERTIFICATE)
    kind, _, value = name.partition(":")
    label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    shapes = {
        "dns": rf"(\*\.)?{label}(\.{label})*",
        "email": r"[!-)+-?A-~]{1,64}@[!-)+-?A-~]{1,255}",
        "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[!-)+-~]{1,512}",
    }
    if name == "*" or (kind in shapes and re.fullmatch(shapes[kind], value)):
        return ""
    if kind == "ip":
        try:
            ipaddress.ip_address(value)
        except ValueError:
            return f"{value!r} is no address; write for example cert:ip:192.0.2.1"
        return ""
    return f"{entry!r} is no name in certificates; write for example cert:dns:host.example.org, or cert:*"


def _in_certificate(entry: str) -> str:
    """A name of an entry in the spelling in which certificates' are compared."""
    kind, _, value = entry.partition(":")
    if kind == "ip":
        return f"ip:{canonical_address(value)}"
    return entry if kind == "uri" else entry.lower()


class Pattern:
    """One entry of ``clients``, taken apart once."""

    __slots__ = ("access", "certificate", "name", "netgroup", "network", "specificity")

    def __init__(self, host: str, access: Access) -> None:
        self.access = access
        self.network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
        self.name = ""
        self.netgroup = host[1:] if host.startswith("@") else ""
        self.certificate = ""
        """A name in certificates, in the spelling that is compared."""
        if host.startswith(CERTIFICATE):
            self.certificate = _in_certificate(host.removeprefix(CERTIFICATE))
            exact = "*" not in self.certificate
            self.specificity = (6, 0) if exact else (5, len(self.certificate)) if self.certificate != "*" else (0, 1)
            return
        try:
            self.network = ipaddress.ip_network(host, strict=False)
        except ValueError:
            self.name = host.lower().rstrip(".")
        if self.network is not None:
            single = self.network.prefixlen == self.network.max_prefixlen
            self.specificity = (4, 0) if single else (2, self.network.prefixlen)
        elif self.name == "*":
            self.specificity = (0, 0)
        elif self.netgroup:
            self.specificity = (0, 2)
        else:
            self.specificity = (1, len(self.name)) if self.is_wildcard else (3, 0)

    @property
    def is_wildcard(self) -> bool:
        """Whether it is a pattern that names of peers are compared with."""
        return not self.netgroup and ("*" in self.name or "?" in self.name)

    def matches(
        self,
        address: ipaddress.IPv4Address | ipaddress.IPv6Address | None,
        peer: str,
        names: HostNames,
        certified: Sequence[str] = (),
    ) -> bool:
        """Whether the entry is for a peer at an address (in its canonical spelling), as far as its names are known;
        ``certified``: those that its certificate proves."""
        if self.certificate:
            return any(self._proved_by(_in_certificate(name)) for name in certified)
        if self.network is not None:
            return address is not None and address.version == self.network.version and address in self.network
        if self.name == "*":
            return True
        if self.netgroup:
            return names.in_netgroup(peer, self.netgroup)
        if self.is_wildcard:
            return any(fnmatch.fnmatchcase(name, self.name) for name in names.names_of(peer))
        return peer in names.addresses_of(self.name)

    def _proved_by(self, name: str) -> bool:
        if "*" not in self.certificate:
            return name == self.certificate
        if self.certificate == "*":
            return True
        kind, _, rest = name.partition(".")
        return kind.startswith("dns:") and kind != "dns:" and f"dns:*.{rest}" == self.certificate
