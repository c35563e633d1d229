"""Netgroups, as the system's name service has them (innetgr(3)): which hosts belong together.

Owns :func:`in_netgroup`; imports the look-up of addresses. nsswitch says which service is asked: files, NIS, LDAP. If
there is none, or it does not answer, nobody is in a netgroup.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable

_asking = threading.Lock()
"""The C library keeps a place in the list of services between calls (netgroup(3): MT-Unsafe race:netgrent)."""


def is_member(group: str, host: str) -> bool:
    """Whether the system says that a netgroup has a host of this name (blocking)."""
    try:
        function = ctypes.CDLL(None).innetgr
    except (AttributeError, OSError):
        return False  # a C library without netgroups
    function.argtypes, function.restype = [ctypes.c_char_p] * 4, ctypes.c_int
    try:
        octets = group.encode(), host.encode()
    except UnicodeEncodeError:
        return False
    with _asking:
        return bool(function(*octets, None, None) == 1)


def in_netgroup(group: str, address: str, names: Iterable[str], addresses_of: Callable[[str], frozenset[str]]) -> bool:
    """Whether a peer is in a netgroup (blocking): by its address, or by one of its ``names``, which lead back to it.

    Linux's server takes a name without its domain as well, whatever domain that is; here it counts only if it leads to
    the peer by itself, for whoever owns a domain can have a host of any name in it."""
    if is_member(group, address):
        return True
    for name in names:
        if is_member(group, name):
            return True
        short, dot, _ = name.partition(".")
        if dot and is_member(group, short) and address in addresses_of(short):
            return True
    return False
