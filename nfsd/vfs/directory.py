"""Names and directories, for reading: LOOKUP, READDIR, the way up.

Owns the open directory streams. Symbolic links are never followed and no name leads above the directory it is looked up
in: every component is opened with openat2's RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS. ``..`` is the one way up: its
result is taken only if the way from there to the top passes the export's root.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import OrderedDict

from nfsd.exports import ExportTable
from nfsd.vfs.attributes import (
    attributes_of,
    raw_ctime,
    raw_device,
    raw_fileid,
    raw_mount,
    statx_buffer,
)
from nfsd.vfs.change import ChangeRecord
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.opens import OpenOperations
from nfsd.vfs.records import Node
from nfsd.vfs.resources import FileLimits
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    O_PATH,
    OPEN_HOW_SIZE,
    RESOLVE_CACHED,
    RESOLVE_COMPONENT,
    RESOLVE_NO_XDEV,
    STATX_MASK,
    SYS_CLOSE,
    SYS_GETDENTS64,
    SYS_LSEEK,
    SYS_NAME_TO_HANDLE_AT,
    SYS_OPENAT,
    SYS_OPENAT2,
    SYS_STATX,
    handle_buffer,
    open_how,
    parse_dirents,
    parse_handle,
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

_COOKIE_SHIFT = 3
_LAST_OFFSET = (1 << 63) - 1
_U64 = 1 << 64
_ENTRIES_PER_CHAIN = 4
_STREAM_LIMIT = 256
_PAGE_LIMIT = 4096
_DIRENT_GUESS = 40
_DIRENTS_MIN = 4096
_DIRENTS_MAX = 262144
_VERIFIER = bytes(8)
"""Cookies hold as long as the directory exists, so one verifier fits all (RFC 1813 section 3.3.16)."""


def check_name(name: bytes) -> None:
    """Refuse what cannot be one component of a path: EINVAL."""
    if not name or b"/" in name or b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def cookie_of(offset: int) -> int:
    """The cookie of a kernel offset: the same but for a shift that keeps clear of 0, 1 and 2, which NFSv3 clients and
    RFC 8881 section 18.23.3 give meanings of their own. (The largest offset, an end marker, stays positive.)"""
    return _LAST_OFFSET if offset == _LAST_OFFSET else (offset + _COOKIE_SHIFT) % _U64


def offset_of(cookie: int) -> int:
    """The kernel offset of a cookie, signed as lseek takes it. Raises EINVAL."""
    if cookie == _LAST_OFFSET:
        return cookie
    if not _COOKIE_SHIFT <= cookie < _U64:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return cookie - _COOKIE_SHIFT


def _place(status: bytearray) -> tuple[int, tuple[int, int], int]:
    """What tells one directory from another on the way up: inode, device and mount."""
    return raw_fileid(status), raw_device(status), raw_mount(status)


class Stream:
    """A directory open for reading, and where in it the next read goes on."""

    __slots__ = ("cookie", "epoch", "fd", "key", "lane")

    def __init__(self, key: tuple[bytes, Credential], fd: int, epoch: int, lane: int) -> None:
        self.key = key
        self.fd = fd
        self.cookie = 0
        self.lane = lane
        self.epoch = epoch
        """The inode's when it was opened: later ones may have other permissions."""


class DirectoryOperations(OpenOperations):
    """Looking up and listing."""

    def __init__(self, exports: ExportTable, state_dir: str, limits: FileLimits | None = None) -> None:
        super().__init__(exports, state_dir, limits)
        self._streams: OrderedDict[Stream, None] = OrderedDict()
        self._streams_of: dict[tuple[bytes, Credential], list[Stream]] = {}

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
        self.add_look(chain, opened, status, kernel)
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
            mount = await self.mount_of(directory.mount, opened.result, status)
        except BaseException:
            self.abandon(opened)
            raise
        self.check(chain, opened)
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
        self.add_look(chain, opened, status, kernel)
        await self.run(directory.mount, chain, opened)
        if opened.error == errno.ENOENT:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        self.check(chain, opened)
        try:
            await self._check_inside(directory, opened.result, status)
            mount = await self.mount_of(directory.mount, opened.result, status)
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
    async def readdir(
        self, credential: Credential, directory: Node, cookie: int, *, limit: int, plus: bool
    ) -> DirectoryPage:
        """Entries after ``cookie`` (0 = from the start), at most ``limit``, with ``.`` and ``..`` left in (names
        ``b"."``, ``b".."``); ``plus`` adds handles and attributes. Raises OSError(EINVAL) for a cookie not ours."""
        if directory.type is not FileType.DIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        position = offset_of(cookie) if cookie else 0
        limit = min(max(1, limit), _PAGE_LIMIT)
        status = await self.look(directory)
        stream = await self._stream(credential, directory, cookie)
        entries: list[tuple[bytes, int, int]] = []
        eof = False
        try:
            seek = stream.cookie != cookie
            while len(entries) < limit:
                chain = Chain()
                if seek:
                    chain.add(SYS_LSEEK, stream.fd, position, os.SEEK_SET)
                    seek = False
                size = min(max((limit - len(entries)) * _DIRENT_GUESS, _DIRENTS_MIN), _DIRENTS_MAX)
                buffer = bytearray(size)
                got = chain.add(SYS_GETDENTS64, stream.fd, buffer, size)
                await self.run(directory.mount, chain)
                chain.check()
                if got.result == 0:
                    eof = True
                    break
                entries += parse_dirents(memoryview(buffer), got.result)
        except BaseException:
            self.close_later(stream.fd, stream.lane)
            raise
        if len(entries) > limit:
            # More came than was asked for: whoever goes on after this page has to seek.
            del entries[limit:]
            eof = False
            stream.cookie = -1
        else:
            stream.cookie = cookie_of(entries[-1][2]) if entries else cookie
        self._keep_stream(stream)
        rooted = self.is_root(directory)
        page = [
            DirectoryEntry(name, raw_fileid(status) if rooted and name == b".." else ino, cookie_of(offset), None, None)
            for name, ino, offset in entries
        ]
        if plus:
            page = await self._with_attributes(credential, directory, page)
        return DirectoryPage(page, eof, _VERIFIER)

    async def _stream(self, credential: Credential, directory: Node, cookie: int) -> Stream:
        """An open stream of the directory, best one that stands at ``cookie``; taken out of the pool."""
        key = (directory.key, credential)
        best: Stream | None = None
        for stream in self._streams_of.get(key, ()):
            if best is None or stream.cookie == cookie:
                best = stream
        epoch = directory.inode.epoch
        if best is not None:
            self._drop_stream(best)
            if best.epoch == epoch:
                return best
            self.close_later(best.fd, best.lane)
        chain = Chain(credential)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        opened = chain.add(SYS_OPENAT, self.proc_fd, b"%d" % directory.fd, flags)
        await self.run(directory.mount, chain, opened)
        self.check(chain, opened)
        return Stream(key, opened.result, epoch, directory.mount.lane)

    def _drop_stream(self, stream: Stream) -> None:
        del self._streams[stream]
        pool = self._streams_of[stream.key]
        pool.remove(stream)
        if not pool:
            del self._streams_of[stream.key]

    def _keep_stream(self, stream: Stream) -> None:
        self._streams[stream] = None
        self._streams_of.setdefault(stream.key, []).append(stream)
        if len(self._streams) > _STREAM_LIMIT:
            oldest = next(iter(self._streams))
            self._drop_stream(oldest)
            self.close_later(oldest.fd, oldest.lane)

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""
        for stream in list(self._streams):
            self._drop_stream(stream)
            self.close_later(stream.fd, stream.lane)
        super().sweep()

    async def close(self) -> None:
        """Finish running jobs, close every descriptor."""
        for stream in list(self._streams):
            self._drop_stream(stream)
            self.close_later(stream.fd, stream.lane)
        await super().close()

    # -- READDIRPLUS ---------------------------------------------------------------------------------------------
    async def _with_attributes(
        self, credential: Credential, directory: Node, entries: list[DirectoryEntry]
    ) -> list[DirectoryEntry]:
        groups = [entries[at : at + _ENTRIES_PER_CHAIN] for at in range(0, len(entries), _ENTRIES_PER_CHAIN)]
        if directory.mount.inline:
            done = [await self._group_with_attributes(credential, directory, group) for group in groups]
        else:
            done = await asyncio.gather(
                *(self._group_with_attributes(credential, directory, group) for group in groups)
            )
        return [entry for group in done for entry in group]

    async def _group_with_attributes(
        self, credential: Credential, directory: Node, group: list[DirectoryEntry]
    ) -> list[DirectoryEntry]:
        """As many entries as fit in one chain: each is opened, so that handle and attributes are of the same file."""
        mount = directory.mount
        rooted = self.is_root(directory)
        chain = Chain(credential)
        looks: list[tuple[DirectoryEntry, Step, Step, bytearray, bytearray]] = []
        for entry in group:
            # The parent has a handle only where it is known to be inside the export, which takes a walk to the top.
            name = b"." if rooted and entry.name == b".." else entry.name
            status, kernel = statx_buffer(), handle_buffer()
            opened = chain.add(SYS_OPENAT2, directory.fd, name, _HOW, OPEN_HOW_SIZE, keep_going=True)
            chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status, keep_going=True)
            named = chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", kernel, bytearray(8), AT_EMPTY_PATH, keep_going=True)
            chain.add(SYS_CLOSE, opened, keep_going=True)
            looks.append((entry, opened, named, status, kernel))
        await self.run(mount, chain)
        done = []
        for entry, opened, named, status, kernel in looks:
            if opened.result < 0:
                done.append(entry._replace(error=opened.error))
            elif raw_mount(status) != mount.mnt_id:
                done.append(await self._entry_across(credential, directory, entry))
            elif named.error:
                done.append(entry)
            else:
                done.append(self._entry_with(directory, entry, status, kernel))
        return done

    def _entry_with(
        self, directory: Node, entry: DirectoryEntry, status: bytearray, kernel: bytearray
    ) -> DirectoryEntry:
        mount = directory.mount
        kind, octets = parse_handle(kernel)
        try:
            handle = self.codec.encode(mount.export.id, mount.fs_id, kind, octets)
        except OSError:
            return entry
        self.found_at(handle, directory, entry.name)
        key = self.key_of(mount, kind, octets)
        inode = self.nodes.known_inode(key)
        if inode is None and not mount.fine:
            inode = self.nodes.inode(key)
        # Where ctime alone is the change attribute there is nothing to remember of a file only listed.
        record = ChangeRecord() if inode is None else inode.change
        return entry._replace(handle=handle, attributes=attributes_of(status, mount, record))

    async def _entry_across(self, credential: Credential, directory: Node, entry: DirectoryEntry) -> DirectoryEntry:
        """An entry that is a mount point: what is mounted there, if clients may see it."""
        try:
            node, attributes = await self.lookup(credential, directory, entry.name)
        except (OSError, CrossingRefused):
            return entry
        return entry._replace(handle=node.handle, attributes=attributes)
