"""Whose an address is, and what networks that is in. Imports nothing of the project."""

from __future__ import annotations

import functools
import ipaddress

_IPV4 = (16, 24)
_IPV6 = (32, 48, 56)
"""Lengths of the prefixes that are given to one customer, site or subnet, as a rule (RFC 6177 section 2)."""


@functools.lru_cache(maxsize=4096)
def host_of(address: str) -> str:
    """The client that an address belongs to: itself, or the IPv6 /64 it is in."""
    if ":" not in address:
        return address
    network = ipaddress.IPv6Address(address.partition("%")[0]).packed[:8]
    return f"{ipaddress.IPv6Address(network + bytes(8))}/64"


@functools.lru_cache(maxsize=4096)
def networks_of(host: str) -> tuple[str, ...]:
    """The networks that a client (:func:`host_of`) is in, the largest first."""
    lengths = _IPV6 if ":" in host else _IPV4
    address = host.partition("/")[0]
    return tuple(str(ipaddress.ip_network(f"{address}/{length}", strict=False)) for length in lengths)
