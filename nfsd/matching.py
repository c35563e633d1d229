"""The entries of ``clients``: which hosts each is for, and how these may use the export.

Owns :class:`Pattern` and :class:`Access`; imports the name services. Addresses match by exact arithmetic. Names match
by what :class:`nfsd.names.HostNames` already knows, so nothing here waits.
"""

from __future__ import annotations

import fnmatch
import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from nfsd.exported import ANY_SECURITY
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
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


class Pattern:
    """One entry of ``clients``, taken apart once."""

    __slots__ = ("access", "name", "netgroup", "network", "specificity")

    def __init__(self, host: str, access: Access) -> None:
        self.access = access
        self.network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
        self.name = ""
        self.netgroup = host[1:] if host.startswith("@") else ""
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
            self.specificity = (0, 1)
        else:
            self.specificity = (1, len(self.name)) if self.is_wildcard else (3, 0)

    @property
    def is_wildcard(self) -> bool:
        """Whether it is a pattern that names of peers are compared with."""
        return not self.netgroup and ("*" in self.name or "?" in self.name)

    def matches(
        self, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, peer: str, names: HostNames
    ) -> bool:
        """Whether the entry is for a peer (in its canonical spelling), as far as its names are known."""
        if self.network is not None:
            return address is not None and address.version == self.network.version and address in self.network
        if self.name == "*":
            return True
        if self.netgroup:
            return names.in_netgroup(peer, self.netgroup)
        if self.is_wildcard:
            return any(fnmatch.fnmatchcase(name, self.name) for name in names.names_of(peer))
        return peer in names.addresses_of(self.name)
