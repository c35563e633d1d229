"""The memory that a requester exposes for its calls (RFC 8166 section 3.4, RFC 5042).

Owns :class:`Registrations`, the registered memory of one connection, and :class:`Exposed`, a part of it. Imports the
vocabulary of :mod:`rpcrdma.wire`.

Keeping registrations
    With ``keep`` the memory of calls that are over stays registered, up to so many octets, and a later call with the
    same memory finds it. A registration belongs to one call at a time. The server could reach this memory all the time,
    so it is for servers that are trusted with it; nothing of it may be invalidated by them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections import OrderedDict
from typing import Protocol

from rpcrdma.wire.chunks import Segment


class Registrar(Protocol):
    """What a connection's endpoint does for us."""

    def register(self, view: memoryview, *, remote_read: bool = False, remote_write: bool = False) -> tuple[int, int]:
        """Expose ``view``. Returns its (handle, offset of the first octet)."""

    def invalidate(self, handle: int) -> None:
        """Withdraw a registration. Raises KeyError for one that is withdrawn already."""


_Key = tuple[int, int, bool]


class Exposed:
    """Memory that the peer may access in one way."""

    __slots__ = ("handle", "key", "length", "offset")

    def __init__(self, handle: int, offset: int, length: int, key: _Key | None) -> None:
        self.handle = handle
        self.offset = offset
        self.length = length
        self.key = key

    def segments(self, count: int) -> list[Segment]:
        """Cut into at most ``count`` segments of nearly equal length, none of them empty."""
        count = max(min(count, self.length), 1)
        cuts = [self.length * index // count for index in range(count + 1)]
        return [(self.handle, end - start, self.offset + start) for start, end in itertools.pairwise(cuts)]


def _key_of(view: memoryview, write: bool) -> _Key | None:
    """What tells memory from other memory; None for what is read-only, which is hardly ever used twice."""
    if view.readonly or not view.c_contiguous:
        return None
    return ctypes.addressof(ctypes.c_char.from_buffer(view)), len(view), write


class Registrations:
    """All of them."""

    def __init__(self, registrar: Registrar, keep: int = 0) -> None:
        self._registrar = registrar
        self._keep = keep
        self._kept: OrderedDict[_Key, Exposed] = OrderedDict()
        self.kept_octets = 0
        self.made = 0
        """Registrations made."""
        self.found = 0
        """Registrations that were there already."""
        self.in_use = 0
        """Registrations that belong to calls now."""

    def expose(self, view: memoryview, *, write: bool, keep: bool = True) -> Exposed:
        """Let the peer read ``view``, or write to it; ``keep`` is False for memory that others will have later. Raises
        OSError, BufferError."""
        key = _key_of(view, write) if keep and self._keep and len(view) else None
        if key is not None:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self.kept_octets -= kept.length
                self.found += 1
                self.in_use += 1
                return kept
        handle, offset = self._registrar.register(view, remote_read=not write, remote_write=write)
        self.made += 1
        self.in_use += 1
        return Exposed(handle, offset, len(view), key)

    def withdraw(self, exposed: Exposed, *, gone: bool = False) -> None:
        """A call is over. Unless its memory is kept, the peer cannot access it when this returns; ``gone`` is memory
        that the peer has invalidated itself."""
        self.in_use -= 1
        if gone:
            return
        if exposed.key is not None and exposed.length <= self._keep:
            twin = self._kept.pop(exposed.key, None)
            if twin is not None:  # two calls at a time had this memory
                self._forget(twin)
            self._kept[exposed.key] = exposed
            self.kept_octets += exposed.length
            while self.kept_octets > self._keep:
                _, oldest = self._kept.popitem(last=False)
                self._forget(oldest)
            return
        self._invalidate(exposed)

    def _forget(self, kept: Exposed) -> None:
        self.kept_octets -= kept.length
        self._invalidate(kept)

    def _invalidate(self, exposed: Exposed) -> None:
        # The peer may have invalidated what it should not have, and nothing is left on a connection that is gone.
        with contextlib.suppress(KeyError):
            self._registrar.invalidate(exposed.handle)

    def clear(self) -> None:
        """End all access."""
        for kept in self._kept.values():
            self._invalidate(kept)
        self._kept.clear()
        self.kept_octets = 0
