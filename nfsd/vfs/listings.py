"""Directories listed: READDIR.

Owns the open directory streams, and the turns of hosts.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable

from nfsd.vfs.attributes import raw_ctime
from nfsd.vfs.chains import Chains
from nfsd.vfs.change import SETTLE_NS
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.listing import OUTCOMES, Entries, Listing, offset_of
from nfsd.vfs.looking import Looking
from nfsd.vfs.lookups import Lookups
from nfsd.vfs.recent_listings import RecentListings
from nfsd.vfs.records import Node
from nfsd.vfs.roots import Roots
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.stored_listings import ListingFailed as ListingFailed
from nfsd.vfs.stored_listings import StoredListing
from nfsd.vfs.streams import Stream, Streams
from nfsd.vfs.types import Credential, CrossingRefused, DirectoryEntry, DirectoryPage, FileType
from rpcrdma.host_turns import HostTurns

_PAGE_LIMIT = 4096
_TURN = 256
_SHORT_TURN = 64
"""Entries of one turn of a listing: some hundred microseconds on a worker, some tens on the loop."""
_AT_ONCE = max(1, (os.cpu_count() or 1) - 1)
"""Turns of listings that a file system in memory makes at a time: none of them waits, so each takes a processor."""
_END, _FULL, _GROW, _NEEDS = OUTCOMES["end"], OUTCOMES["full"], OUTCOMES["grow"], OUTCOMES["needs"]
_FAILED, _ERROR = OUTCOMES["failed"], OUTCOMES["error"]
VERIFIER = bytes(8)
"""Cookies hold as long as the directory exists, so one verifier fits all (RFC 1813 section 3.3.16)."""


def _never() -> bool:
    """Nobody goes."""
    return False


class Listings:
    """Listing."""

    def __init__(
        self, chains: Chains, looking: Looking, known: KnownFiles, roots: Roots, lookups: Lookups,
        recent: RecentListings,
    ) -> None:  # fmt: skip
        self._chains = chains
        self._looking = looking
        self._known = known
        self._roots = roots
        self._lookups = lookups
        self.streams = Streams(chains.close_later)
        self.recent = recent
        self.turns = HostTurns(self._weight)

    def forget(self) -> None:
        """Exports have changed: close all streams, and remember nothing."""
        self.streams.clear()
        self.recent.clear()

    def _weight(self, lane: int, host: str) -> int:
        return self._chains.executor.weight_of(lane, host)

    async def list_directory(
        self,
        credential: Credential,
        directory: Node,
        cookie: int,
        listing: Listing,
        *,
        complete: Callable[[DirectoryEntry], Awaitable[bool]],
        grow: Callable[[], Awaitable[memoryview]] | None = None,
        gone: Callable[[], bool] = _never,
    ) -> bool:
        """Fill ``listing`` with the entries after ``cookie`` (0 = from the start); whether these were all. ``.`` and
        ``..`` are among them, with these names. Listings of one host share its turns.

        ``complete`` adds (or leaves out) an entry that native code cannot; False: there was no room for it. ``grow``
        gives memory for all entries, once. Raises OSError(EINVAL) for a cookie not ours, and OSError(ETIMEDOUT) when
        there is nobody to be answered any more (``gone``), ListingFailed when the encoder gives up."""
        if directory.type is not FileType.DIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if (store := store_of(directory)) is not None:
            stored = StoredListing(store, credential, directory, listing, self._known, grow)
            rooted = self._roots.is_root(directory)
            return await stored.fill(await self._looking.look(directory), cookie, complete, gone, rooted=rooted)
        position = offset_of(cookie) if cookie else 0
        status = await self._looking.look(directory)
        rooted = self._roots.is_root(directory)
        listing.begin(directory, status, self._known.codec, self._chains.proc_fd, rooted=rooted)
        ctime, shows_changes = raw_ctime(status), self._shows_changes(directory, status)
        listing.go_on(-1, cookie, position if cookie else None)
        if shows_changes and (recent := self.recent.of(directory, cookie, ctime)) is not None:
            listing.recall(recent, self._known.nodes)
        epoch, lane = directory.inode.epoch, directory.mount.lane
        if not listing.recalls and (stream := self.streams.take(credential, directory, cookie, ctime)) is not None:
            listing.go_on(stream.fd, cookie, position if stream.ahead is None else None, stream.ahead or b"")
        try:
            end = await self._list(credential, directory, listing, complete, grow, gone)
        except BaseException:
            if listing.fd >= 0:
                self._chains.close_later(listing.fd, lane)
            raise
        if listing.fd < 0:
            return end
        if end or not listing.taken:
            self._chains.close_later(listing.fd, lane)
        else:
            key = (directory.key, credential)
            ahead = listing.ahead() if shows_changes and not listing.strayed else None
            self.streams.keep(Stream(key, listing.fd, epoch, lane, listing.cookie, ctime=ctime, ahead=ahead))
        return end

    @staticmethod
    def _shows_changes(directory: Node, status: bytearray) -> bool:
        """Whether any change of the directory after this look gives it another ctime, so that names read ahead are
        known to be those that are there still (see ``change``)."""
        return directory.mount.fine or time.time_ns() - raw_ctime(status) > SETTLE_NS

    async def _list(
        self,
        credential: Credential,
        directory: Node,
        listing: Listing,
        complete: Callable[[DirectoryEntry], Awaitable[bool]],
        grow: Callable[[], Awaitable[memoryview]] | None,
        gone: Callable[[], bool],
    ) -> bool:
        mount = directory.mount
        at_once = _AT_ONCE if mount.inline else max(1, mount.export.workers // 2)
        short, begun, recalled = mount.inline, False, False
        while True:
            if listing.recalls:
                if recalled:
                    await asyncio.sleep(0)  # a long listing lets others take their turns
                chain = listing.turn(credential, _TURN, may_look=mount.inline)
                self._chains.executor.run_inline(chain)
                recalled = True
            elif short:
                # Most directories are small: those in memory are done before a worker would have begun.
                chain = listing.turn(credential, _SHORT_TURN)
                self._chains.executor.run_inline(chain)
                short = False
            else:
                async with self.turns.turn(mount.lane, credential.host, at_once, begun=begun):
                    if gone():  # a large directory takes many turns, which others wait for
                        raise OSError(errno.ETIMEDOUT, "the caller has gone")
                    chain = listing.turn(credential, _TURN)
                    await self._chains.run_in_lane(mount.lane, chain)
                begun = True
            chain.check()
            outcome = listing.settle(self._known.nodes)
            for handle, name in listing.found():
                self._known.found_at(directory.mount, handle, directory, name)
            if outcome in (_END, _FULL):
                return outcome == _END
            if outcome == _NEEDS:
                if not await complete(await self._pending(credential, directory, listing)):
                    return False
            elif outcome == _GROW:
                if grow is not None:
                    listing.move(await grow())
            elif outcome == _FAILED:
                raise ListingFailed(listing.error)
            elif outcome == _ERROR:
                if listing.error in (errno.EMFILE, errno.ENFILE):
                    self._chains.spare_descriptors()
                raise OSError(listing.error, os.strerror(listing.error))

    async def _pending(self, credential: Credential, directory: Node, listing: Listing) -> DirectoryEntry:
        """The entry that native code leaves to us; at a mount point what is mounted there, if clients may see it."""
        entry = listing.pending(self._known.nodes)
        if not listing.across:
            return entry
        try:
            node, attributes = await self._lookups.lookup(credential, directory, entry.name)
        except (OSError, CrossingRefused):
            return entry
        return entry._replace(handle=node.handle, attributes=attributes)

    async def readdir(
        self, credential: Credential, directory: Node, cookie: int, *, limit: int, plus: bool,
        gone: Callable[[], bool] = _never,
    ) -> DirectoryPage:  # fmt: skip
        """As :meth:`list_directory`, for Python: at most ``limit`` entries; ``plus`` adds handles and attributes."""
        entries = Entries(min(max(1, limit), _PAGE_LIMIT), plus=plus)

        async def take(entry: DirectoryEntry) -> bool:
            entries.take(entry)
            return True

        end = await self.list_directory(credential, directory, cookie, entries, complete=take, gone=gone)
        return DirectoryPage(entries.entries, end, VERIFIER)
