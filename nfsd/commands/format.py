"""Attributes in the words of ls(1) and stat(1). Owns no state; imports the client's types only."""

from __future__ import annotations

import grp
import pwd
import stat as modes
import time
from functools import lru_cache
from typing import Final

from nfsd.client import Stat

_HALF_A_YEAR: Final = 31556952 // 2
_UNITS: Final = "KMGTPE"

KINDS: Final = {
    modes.S_IFREG: "regular file", modes.S_IFDIR: "directory", modes.S_IFLNK: "symbolic link",
    modes.S_IFBLK: "block special file", modes.S_IFCHR: "character special file", modes.S_IFSOCK: "socket",
    modes.S_IFIFO: "fifo",
}  # fmt: skip


def human(size: int) -> str:
    """A size in powers of 1024, rounded up, as ``ls -h`` has it: 999, 1.5K, 24M."""
    if size < 1024:
        return str(size)
    divisor = 1024
    for unit in _UNITS:
        tenths = -(-size * 10 // divisor)
        if tenths < 100:
            return f"{tenths // 10}.{tenths % 10}{unit}"
        whole = -(-size // divisor)
        if whole < 1024 or unit == _UNITS[-1]:
            return f"{whole}{unit}"
        divisor *= 1024
    raise AssertionError


def told(value: object) -> str:
    """A value, or a question mark for what the server does not tell."""
    return "?" if value is None else str(value)


def when(nanoseconds: int | None, now: float) -> str:
    """A time as ``ls -l`` has it: with the hour for the last six months, with the year otherwise."""
    if nanoseconds is None:
        return "?"
    seconds = nanoseconds // 1_000_000_000
    local = time.localtime(seconds)
    recent = now - _HALF_A_YEAR < seconds <= now
    return time.strftime("%b %e %H:%M" if recent else "%b %e  %Y", local)


def exact(nanoseconds: int | None) -> str:
    """A time as stat(1) has it."""
    if nanoseconds is None:
        return "?"
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    local = time.localtime(seconds)
    return time.strftime("%Y-%m-%d %H:%M:%S", local) + f".{rest:09d} " + time.strftime("%z", local)


@lru_cache(1024)
def user(owner: str | None) -> str:
    """An owner by name: the server's name without its domain, or this host's name for the number."""
    if owner is None:
        return "?"
    if not owner.isdecimal():
        return owner.partition("@")[0]
    try:
        return pwd.getpwuid(int(owner)).pw_name
    except (KeyError, OverflowError):
        return owner


@lru_cache(1024)
def group(name: str | None) -> str:
    """As :func:`user`, for groups."""
    if name is None:
        return "?"
    if not name.isdecimal():
        return name.partition("@")[0]
    try:
        return grp.getgrgid(int(name)).gr_name
    except (KeyError, OverflowError):
        return name


def size_of(stat: Stat, *, in_units: bool) -> str:
    """The size, or a device's numbers."""
    if modes.S_ISCHR(stat.st_mode) or modes.S_ISBLK(stat.st_mode):
        return f"{stat.st_rdev[0]}, {stat.st_rdev[1]}"
    return human(stat.st_size) if in_units else str(stat.st_size)
