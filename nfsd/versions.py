"""Versions of NFS as sets, a bit each: those of the server, and those that an export is for.

Owns the bits and their names; imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

V3: Final = 1
_V40: Final = 2
V4: Final = 0b1110
"""Every minor version of 4."""
ALL: Final = V3 | V4
NAMES: Final = {"3": V3, "4": V4, "4.0": _V40, "4.1": _V40 << 1, "4.2": _V40 << 2}
"""As the configuration has them."""


def of_minor(minor: int) -> int:
    """The bit of a minor version of NFSv4; 0: there is no such version here."""
    return (_V40 << minor) & V4 if minor < 3 else 0


def of_names(names: Iterable[str] | None) -> int:
    """The versions that are named; all without names."""
    if names is None:
        return ALL
    found = 0
    for name in names:
        found |= NAMES[name]
    return found


def shown(versions: int) -> str:
    """Their names, for people."""
    return ", ".join(name for name, bits in NAMES.items() if name != "4" and bits & versions)
