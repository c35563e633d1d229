"""Whose an address is. Imports nothing of the project."""

from __future__ import annotations

import functools
import ipaddress


@functools.lru_cache(maxsize=4096)
def host_of(address: str) -> str:
    """The client that an address belongs to: itself, or the IPv6 /64 it is in."""
    if ":" not in address:
        return address
    network = ipaddress.IPv6Address(address.partition("%")[0]).packed[:8]
    return f"{ipaddress.IPv6Address(network + bytes(8))}/64"
