"""Names and directories, for reading: LOOKUP, READDIR, the way up.

Owns the open directory streams. Symbolic links are never followed and no name leads above the directory it is looked up
in: every component is opened with openat2's RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS. ``..`` is the one way up: its
result is taken only if the way from there to the top passes the export's root.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable

from nfsd.exported import Exports
from nfsd.vfs.attributes import (
    attributes_of,
    raw_ctime,
    raw_device,
    raw_fileid,
    raw_mount,
    statx_buffer,
)
from nfsd.vfs.change import SETTLE_NS
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.listing import OUTCOMES, Entries, Listing, offset_of
from nfsd.vfs.listing_turns import ListingTurns
from nfsd.vfs.opens import OpenOperations
from nfsd.vfs.records import Node
from nfsd.vfs.resources import FileLimits
from nfsd.vfs.streams import Stream, Streams
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    O_PATH,
    OPEN_HOW_SIZE,
    RESOLVE_CACHED,
    RESOLVE_COMPONENT,
    RESOLVE_NO_XDEV,
    STATX_MASK,
    SYS_OPENAT,
    SYS_OPENAT2,
    SYS_STATX,
    handle_buffer,
    open_how,
)
from nfsd.vfs.types import Attributes, Credential, CrossingRefused, DirectoryEntry, DirectoryPage, FileType

_HOW = open_how(O_PATH)
_HOW_CACHED = open_how(O_PATH, 0, RESOLVE_COMPONENT | RESOLVE_CACHED)
_HOW_STAY = open_how(O_PATH, 0, RESOLVE_COMPONENT | RESOLVE_NO_XDEV)
_HOW_STAY_CACHED = open_how(O_PATH, 0, RESOLVE_COMPONENT | RESOLVE_NO_XDEV | RESOLVE_CACHED)
_UP = O_PATH | os.O_DIRECTORY
_STEPS_UP = 5
_DEEPEST = 4096
"""Directories above one another the way up is followed through: more than PATH_MAX can name."""

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


class ListingFailed(Exception):
    """The listing's encoder gave up, for a ``status`` of its protocol's."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def check_name(name: bytes) -> None:
    """Refuse what cannot be one component of a path: EINVAL."""
    if not name or b"/" in name or b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _place(status: bytearray) -> tuple[int, tuple[int, int], int]:
    """What tells one directory from another on the way up: inode, device and mount."""
    return raw_fileid(status), raw_device(status), raw_mount(status)


class DirectoryOperations(OpenOperations):
    """Looking up and listing."""

    def __init__(self, exports: Exports, state_dir: str, limits: FileLimits | None = None) -> None:
        super().__init__(exports, state_dir, limits)
        self.streams = Streams(self.close_later)
        self.turns = ListingTurns(self._weight)

    def _weight(self, lane: int, host: str) -> int:
        return self.executor.weight_of(lane, host)

    # -- one name ------------------------------------------------------------------------------------------------
    async def lookup(self, credential: Credential, directory: Node, name: bytes) -> tuple[Node, Attributes]:
        """One name. ``.`` and ``..`` are taken; ``..`` of an export's root is the root itself. Slashes, NUL and
        empty names raise OSError(EINVAL); mount points follow the export's policy (CrossingRefused)."""
        check_name(name)
        if directory.type is not FileType.DIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if name == b"..":
            return await self._lookup_parent(credential, directory)
        mount = directory.mount
        status, kernel = statx_buffer(), handle_buffer()
        stay = not mount.export.cross_mounts
        chain, opened = Chain(), None
        if mount.caching:
            chain, opened = self._lookup_chain(
                credential, directory, name, _HOW_STAY_CACHED if stay else _HOW_CACHED, status, kernel
            )
            self.executor.run_inline(chain)
        if opened is None or opened.error == errno.EAGAIN:
            chain, opened = self._lookup_chain(credential, directory, name, _HOW_STAY if stay else _HOW, status, kernel)
            await self.run(mount, chain, opened)
        if opened.error == errno.EXDEV:
            raise CrossingRefused
        if opened.error == errno.ENOENT:
            await self.look(directory)  # ESTALE when it is the directory that is gone
        if opened.result >= 0 and raw_mount(status) != mount.mnt_id:
            return await self._cross(directory, name, opened, status, chain, kernel)
        self.check(chain, opened)
        node = self.adopt(mount, opened.result, status, kernel, directory, name)
        return node, self.seen(node, status)

    def seen(self, node: Node, status: bytearray) -> Attributes:
        """The attributes of a node just looked at."""
        node.inode.saw_ctime(raw_ctime(status))
        return attributes_of(status, node.mount, node.inode.change)

    def _lookup_chain(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        how: bytes,
        status: bytearray,
        kernel: bytearray,
    ) -> tuple[Chain, Step]:
        chain = Chain(credential)
        opened = chain.add(SYS_OPENAT2, directory.fd, name, how, OPEN_HOW_SIZE)
        self.add_look(chain, opened, status, kernel, directory.mount.naming)
        return chain, opened

    async def _cross(
        self,
        directory: Node,
        name: bytes,
        opened: Step,
        status: bytearray,
        chain: Chain,
        kernel: bytearray,
    ) -> tuple[Node, Attributes]:
        """Take what was found on another mount than its directory's."""
        try:
            mount = await self.across(directory.mount, opened, status, kernel, failed=chain.failed)
        except BaseException:
            self.abandon(opened)
            raise
        node = self.adopt(mount, opened.result, status, kernel, directory, name)
        return node, self.seen(node, status)

    # -- the way up ----------------------------------------------------------------------------------------------
    async def parent(self, credential: Credential, directory: Node) -> Node | None:
        """The parent directory; None at the export's root (LOOKUPP, which then continues in the pseudo file system)."""
        if directory.type is not FileType.DIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if self.is_root(directory):
            return None
        return (await self._lookup_parent(credential, directory))[0]

    async def _lookup_parent(self, credential: Credential, directory: Node) -> tuple[Node, Attributes]:
        status, kernel = statx_buffer(), handle_buffer()
        chain = Chain(credential)
        if self.is_root(directory):
            # Search permission is needed as for any other name.
            opened = chain.add(SYS_OPENAT, directory.fd, b".", _UP)
        else:
            opened = chain.add(SYS_OPENAT, directory.fd, b"..", _UP)
        self.add_look(chain, opened, status, kernel, directory.mount.naming)
        await self.run(directory.mount, chain, opened)
        if opened.error == errno.ENOENT:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if opened.result < 0 or raw_mount(status) == directory.mount.mnt_id:
            self.check(chain, opened)
        try:
            await self._check_inside(directory, opened.result, status)
            mount = await self.across(directory.mount, opened, status, kernel, failed=chain.failed)
        except BaseException:
            self.abandon(opened)
            raise
        node = self.adopt(mount, opened.result, status, kernel)
        return node, self.seen(node, status)

    async def _check_inside(self, directory: Node, descriptor: int, status: bytearray) -> None:
        """Follow the way up from a directory to the export's root. Somebody may have moved the directory out of the
        export, or reached it through a bind mount whose source lies outside: then its parents are none of the client's
        business, and its handle is stale."""
        root = await self.root(directory.export)
        goal = _place(await self.look(root))
        here = _place(status)
        held: Step | None = None
        last: Step | int = descriptor
        try:
            for _ in range(_DEEPEST // _STEPS_UP):
                if here == goal:
                    return
                chain = Chain()
                looks, ups = [], []
                for _ in range(_STEPS_UP):
                    last = chain.add(SYS_OPENAT, last, b"..", _UP)
                    look = statx_buffer()
                    chain.add(SYS_STATX, last, b"", AT_EMPTY_PATH, STATX_MASK, look)
                    ups.append(last)
                    looks.append(look)
                await self.run(directory.mount, chain, *ups)
                if held is not None:
                    self.abandon(held)
                    held = None
                if chain.failed is not None:
                    self.abandon(*ups)
                    break
                self.abandon(*ups[:-1])
                held = ups[-1]
                last = held.result
                for look in looks:
                    above = _place(look)
                    if above == goal:
                        return
                    if above == here:
                        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # the top of the tree
                    here = above
        finally:
            if held is not None:
                self.abandon(held)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    # -- listing -------------------------------------------------------------------------------------------------
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
        position = offset_of(cookie) if cookie else 0
        status = await self.look(directory)
        rooted = self.is_root(directory)
        listing.begin(directory, status, self.codec, self.proc_fd, rooted=rooted)
        ctime, shows_changes = raw_ctime(status), self._shows_changes(directory, status)
        stream = self.streams.take(credential, directory, cookie, ctime)
        epoch = directory.inode.epoch
        if stream is None:
            listing.go_on(-1, cookie, position if cookie else None)
        else:
            listing.go_on(stream.fd, cookie, position if stream.ahead is None else None, stream.ahead or b"")
        lane = directory.mount.lane
        try:
            end = await self._list(credential, directory, listing, complete, grow, gone)
        except BaseException:
            if listing.fd >= 0:
                self.close_later(listing.fd, lane)
            raise
        if end or not listing.taken:
            self.close_later(listing.fd, lane)
        else:
            key = (directory.key, credential)
            ahead = listing.ahead() if shows_changes else None
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
        short, begun = mount.inline, False
        while True:
            if short:
                # Most directories are small: those in memory are done before a worker would have begun.
                chain = listing.turn(credential, _SHORT_TURN)
                self.executor.run_inline(chain)
                short = False
            else:
                async with self.turns.turn(mount.lane, credential.host, at_once, begun=begun):
                    if gone():  # a large directory takes many turns, which others wait for
                        raise OSError(errno.ETIMEDOUT, "the caller has gone")
                    chain = listing.turn(credential, _TURN)
                    await self.run_in_lane(mount.lane, chain)
                begun = True
            chain.check()
            outcome = listing.settle(self.nodes)
            for handle, name in listing.found():
                self.found_at(directory.mount, handle, directory, name)
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
                    self.nodes.evict(1 + len(self.nodes) // 8)
                raise OSError(listing.error, os.strerror(listing.error))

    async def _pending(self, credential: Credential, directory: Node, listing: Listing) -> DirectoryEntry:
        """The entry that native code leaves to us; at a mount point what is mounted there, if clients may see it."""
        entry = listing.pending(self.nodes)
        if not listing.across:
            return entry
        try:
            node, attributes = await self.lookup(credential, directory, entry.name)
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

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""
        self.streams.clear()
        super().sweep()

    async def close(self) -> None:
        """Finish running jobs, close every descriptor."""
        self.streams.clear()
        await super().close()
