"""Directories that are listed again and again: for a moment, the answers are remembered.

Owns what is remembered of which directory, and for how long. A crowd of clients that starts up lists the same
directories. What costs most in a listing is to look at each file, and to make its handle.

What is remembered is what the kernel would say now:

- Names, as long as the directory has the ctime it had. That is so old that any change gives it another one
  (:mod:`nfsd.vfs.change`). Who may read and search it is asked of the kernel each time.
- Attributes, only of files that nobody uses over NFS: whatever call of ours changes a file has a node of it. And only
  of files with one name, so that their directory is told what other processes do to them
  (:mod:`nfsd.vfs.child_events`).

What a process does through memory that it has mapped is told by nobody, nor is what a second NFS server does by handle.
So nothing is remembered for longer than a second. Clients believe what they have been told for longer than that.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

from nfsd.vfs.chains import Chains
from nfsd.vfs.child_events import ChildEvents
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.recent_listing import RecentListing
from nfsd.vfs.records import Node

_LIFE: Final = 1.0
"""Seconds for which something is remembered."""
_AGAIN: Final = 10.0
"""Seconds within which a directory must be listed for the second time."""
_LISTED: Final = 1024
"""Directories of which it is known when they were listed last."""
_MOST: Final = 64
"""Directories of which something is remembered."""
_OCTETS: Final = 32 << 20
"""Of memory, for all of them; half of it for one: about 40,000 files. What is under way may add a turn."""


class _Listed(NamedTuple):
    """When a listing of a directory was begun, or went on with what was ``remembered`` of it."""

    time: float
    remembered: bool


class _Kept:
    """What is remembered of one of them."""

    __slots__ = ("listing", "timer", "watch")

    def __init__(self, listing: RecentListing, watch: int, timer: asyncio.TimerHandle) -> None:
        self.listing = listing
        self.watch = watch
        self.timer = timer


class RecentListings:
    """What is remembered, by the directory's handle."""

    def __init__(self, chains: Chains, nodes: NodeTable, *, wanted: bool) -> None:
        self._wanted = wanted
        self._nodes = nodes
        self._events = ChildEvents(chains)
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._of: dict[int, bytes] = {}
        """By watch."""
        self._listed: OrderedDict[bytes, _Listed] = OrderedDict()
        """When each directory was listed, those last that were listed last."""
        self._recalled = 0

    @property
    def recalled(self) -> int:
        """Entries that have been listed from memory so far."""
        return self._recalled + sum(kept.listing.recalled for kept in self._kept.values())

    def of(self, directory: Node, cookie: int, ctime: int) -> RecentListing | None:
        """What is remembered of a directory with this ctime, or is to be. ``cookie``: where a listing begins."""
        handle = directory.handle
        if handle in self._kept:
            self._hear()
        kept = self._kept.get(handle)
        if kept is not None:
            if kept.listing.ctime == ctime and kept.listing.forget_used(self._nodes):
                self._kept.move_to_end(handle)
                self._make_room()
                return kept.listing
            self._drop(handle)
        if self._wanted and self._is_listed_again(directory, cookie):
            return self._begin(directory, ctime)
        return None

    def clear(self) -> None:
        """Forget everything."""
        for handle in list(self._kept):
            self._drop(handle)
        self._listed.clear()
        self._events.close()

    def _is_listed_again(self, directory: Node, cookie: int) -> bool:
        mount = directory.mount
        if mount.by_place or not (mount.inline or mount.caching):
            return False
        before = self._listed.get(directory.handle)
        now = asyncio.get_running_loop().time()
        again = before is not None and now - before.time <= _AGAIN
        if cookie == 0:
            self._note_listed(directory.handle, remembered=False)
            return again
        return again and before is not None and before.remembered

    def _note_listed(self, handle: bytes, *, remembered: bool) -> None:
        self._listed.pop(handle, None)
        self._listed[handle] = _Listed(asyncio.get_running_loop().time(), remembered)
        if len(self._listed) > _LISTED:
            self._listed.popitem(last=False)

    def _begin(self, directory: Node, ctime: int) -> RecentListing | None:
        handle = directory.handle
        watch = self._events.add(directory.fd)
        if watch < 0:
            return None
        if watch in self._of:
            return None  # the same directory, by another export's handle
        if len(self._kept) >= _MOST:
            self._drop(next(iter(self._kept)))
        timer = asyncio.get_running_loop().call_later(_LIFE, self._expire, handle)
        kept = self._kept[handle] = _Kept(RecentListing(ctime, _OCTETS // 2, self._nodes), watch, timer)
        self._of[watch] = handle
        return kept.listing

    def _make_room(self) -> None:
        """Forget those that were used least recently."""
        while sum(kept.listing.octets for kept in self._kept.values()) > _OCTETS:
            self._drop(next(iter(self._kept)))

    def _expire(self, handle: bytes) -> None:
        """Begin anew with whatever is listed next: those in the middle of it need not wait for the beginning."""
        self._drop(handle)
        self._note_listed(handle, remembered=True)

    def _drop(self, handle: bytes) -> None:
        kept = self._kept.pop(handle)
        kept.listing.forget()
        self._recalled += kept.listing.recalled
        kept.timer.cancel()
        del self._of[kept.watch]
        self._events.remove(kept.watch)

    def _hear(self) -> None:
        """Take note of changes."""
        heard = self._events.heard()
        if heard is None:
            self.clear()
            return
        for watch, name in heard:
            if watch in self._of:
                self._kept[self._of[watch]].listing.forget_name(name)
