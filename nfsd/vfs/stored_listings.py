"""Directories of stores listed, a few entries at a time.

Owns :class:`StoredListing`, and ListingFailed; imports the contract, and the listing that entries are put into.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from typing import Final

from nfsd.backends.interface import Entry, Found, Store
from nfsd.vfs.attributes import raw_fileid
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.listing import OUTCOMES, Listing
from nfsd.vfs.records import Node
from nfsd.vfs.store_mounts import KIND, key_of
from nfsd.vfs.types import Credential, DirectoryEntry
from rpcrdma.firewall import report

_AT_ONCE: Final = 64
_SHIFT: Final = 2
"""``.`` and ``..`` have the first two cookies that there may be; a store's are behind them."""
_HERE: Final = 3
_ABOVE: Final = 4
_LAST: Final = (1 << 63) - 1 + _SHIFT
_FULL, _GROW, _NEEDS, _FAILED = OUTCOMES["full"], OUTCOMES["grow"], OUTCOMES["needs"], OUTCOMES["failed"]


class ListingFailed(Exception):
    """The listing's encoder gave up, for a ``status`` of its protocol's."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class StoredListing:
    """One listing."""

    def __init__(
        self,
        store: Store,
        credential: Credential,
        directory: Node,
        listing: Listing,
        known: KnownFiles,
        grow: Callable[[], Awaitable[memoryview]] | None,
    ) -> None:
        self._store = store
        self._credential = credential
        self._directory = directory
        self._listing = listing
        self._known = known
        self._grow = grow

    async def fill(
        self,
        look: bytearray,
        cookie: int,
        complete: Callable[[DirectoryEntry], Awaitable[bool]],
        gone: Callable[[], bool],
        *,
        rooted: bool,
    ) -> bool:
        """Take the entries behind a cookie; as :meth:`nfsd.vfs.listings.Listings.list_directory`. ``look``: at the
        directory, which is its export's root or not (``rooted``)."""
        if cookie and not _HERE <= cookie <= _LAST:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._listing.begin(self._directory, look, self._known.codec, -1, rooted=rooted)
        for entry in await self._dots(look, cookie, rooted=rooted):
            if not await self._put(entry, complete):
                return False
        cookie = max(0, cookie - _SHIFT) if cookie > _ABOVE else 0
        while True:
            if gone():  # a large directory takes many turns, which others wait for
                raise OSError(errno.ETIMEDOUT, "the caller has gone")
            entries = await self._next(cookie)
            if not entries:
                return True
            for entry in entries:
                if not await self._put(entry._replace(cookie=entry.cookie + _SHIFT), complete):
                    return False
            self._listing.settle(self._known.nodes)
            cookie = entries[-1].cookie

    async def _next(self, cookie: int) -> list[Entry]:
        """Entries behind a cookie: no more at a time than the listing has room to mark, and always further ones."""
        found = await self._store.names.entries(self._credential, self._directory, cookie, _AT_ONCE, looks=True)
        entries, last = found[:_AT_ONCE], max(cookie, _HERE - 1)
        for entry in entries:
            if not last < entry.cookie <= _LAST - _SHIFT:
                report("a store's listing", ValueError(f"cookie {entry.cookie} behind {last}"))
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            last = entry.cookie
        return entries

    async def _dots(self, look: bytearray, cookie: int, *, rooted: bool) -> list[Entry]:
        """``.`` and ``..``, as far as they are behind the cookie. The export's root is its own parent."""
        here = Found(key_of(self._directory), look)
        found = []
        if cookie < _HERE:
            found.append((b".", _HERE, here))
        if cookie < _ABOVE:
            above = here if rooted else await self._store.names.parent(None, self._directory)
            found.append((b"..", _ABOVE, above))
        return [Entry(name, at, raw_fileid(one.look), one.key, one.look) for name, at, one in found]

    async def _put(self, entry: Entry, complete: Callable[[DirectoryEntry], Awaitable[bool]]) -> bool:
        """Put an entry into the listing; whether there was room."""
        nodes = self._known.nodes
        while True:
            outcome = self._listing.offer(
                entry.name, entry.cookie, entry.fileid, KIND, entry.key, entry.look, entry.error
            )
            if outcome == _GROW:
                self._listing.settle(nodes)
                if self._grow is not None:
                    self._listing.move(await self._grow())
                continue
            if outcome == _NEEDS:
                return await complete(self._listing.pending(nodes))
            if outcome == _FAILED:
                raise ListingFailed(self._listing.error)
            if outcome == _FULL:
                self._listing.settle(nodes)
            return outcome != _FULL
