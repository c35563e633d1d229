"""Directories' entries in an order, with cookies made of their names, where a store has none.

Owns the orders of the directories that are being listed: a listing takes many turns, and sorts a directory once.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from nfsd.backends.simple import Place, Status

FIRST_COOKIE: Final = 3
_KEPT: Final = 8
"""Directories."""

_Seen = tuple[int, int | None, int]
"""What of a directory moves when its names do."""


class Ordered:
    """The directories that are being listed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[_Seen, list[Place]]] = OrderedDict()

    def behind(
        self, directory: bytes, status: Status, cookie: int, most: int, names: Callable[[], Iterable[Place]]
    ) -> list[Place]:
        """Up to ``most`` entries of a directory behind a cookie. ``names`` is asked for all where a listing begins, and
        where the directory, whose ``status`` is older than that, has changed since."""
        seen = (status.mtime, status.ctime, status.nlink)
        with self._lock:
            known = self._kept.pop(directory, None)
        every = known[1] if cookie and known is not None and known[0] == seen else in_order(names())
        start = bisect_right(every, cookie, key=_cookie)
        found = every[start : start + most]
        if found:  # else the listing is over
            with self._lock:
                self._kept[directory] = (seen, every)
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return found


def in_order(found: Iterable[Place]) -> list[Place]:
    """Entries by their cookies, and each has one of its own: where two names make the same, the second has the next."""
    every = [one if one.cookie is not None else one._replace(cookie=hashed(one.name)) for one in found]
    every.sort(key=_order)
    for at in range(1, len(every)):
        if _cookie(every[at]) <= (last := _cookie(every[at - 1])):
            every[at] = every[at]._replace(cookie=last + 1)
    return every


def hashed(name: bytes) -> int:
    """A cookie for a name: always the same, so that a listing goes on where it was whatever has come or gone meanwhile.
    62 bits: among a million names, two share one with a chance of 1 in 9 million."""
    return FIRST_COOKIE + (int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 2)


def _cookie(place: Place) -> int:
    return place.cookie or 0


def _order(place: Place) -> tuple[int, bytes]:
    return _cookie(place), place.name
