"""Names: LOOKUP, and the way up.

Owns nothing. Symbolic links are never followed and no name leads above the directory it is looked up in: every
component is opened with openat2's RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS. ``..`` is the one way up: its result is
taken only if the way from there to the top passes the export's root.
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.attributes import raw_device, raw_fileid, raw_mount, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.known_files import KnownFiles, add_look
from nfsd.vfs.looking import Looking
from nfsd.vfs.mount_table import MountTable
from nfsd.vfs.records import Node
from nfsd.vfs.roots import Roots
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.stored_names import StoredNames
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
from nfsd.vfs.types import Attributes, Credential, CrossingRefused, FileType

_HOW = open_how(O_PATH)
_HOW_CACHED = open_how(O_PATH, 0, RESOLVE_COMPONENT | RESOLVE_CACHED)
_HOW_STAY = open_how(O_PATH, 0, RESOLVE_COMPONENT | RESOLVE_NO_XDEV)
_HOW_STAY_CACHED = open_how(O_PATH, 0, RESOLVE_COMPONENT | RESOLVE_NO_XDEV | RESOLVE_CACHED)
_UP = O_PATH | os.O_DIRECTORY
_STEPS_UP = 5
_DEEPEST = 4096
"""Directories above one another the way up is followed through: more than PATH_MAX can name."""


def check_name(name: bytes) -> None:
    """Refuse what cannot be one component of a path: EINVAL."""
    if not name or b"/" in name or b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _place(status: bytearray) -> tuple[int, tuple[int, int], int]:
    """What tells one directory from another on the way up: inode, device and mount."""
    return raw_fileid(status), raw_device(status), raw_mount(status)


class Lookups:
    """Looking up."""

    def __init__(
        self,
        chains: Chains,
        looking: Looking,
        known: KnownFiles,
        mount_table: MountTable,
        roots: Roots,
        stored: StoredNames,
    ) -> None:
        self._chains = chains
        self._looking = looking
        self._known = known
        self._mount_table = mount_table
        self._roots = roots
        self._stored = stored

    async def lookup(self, credential: Credential, directory: Node, name: bytes) -> tuple[Node, Attributes]:
        """One name. ``.`` and ``..`` are taken; ``..`` of an export's root is the root itself. Slashes, NUL and
        empty names raise OSError(EINVAL); mount points follow the export's policy (CrossingRefused)."""
        check_name(name)
        if directory.type is not FileType.DIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if store_of(directory) is not None:
            return await self._lookup_stored(credential, directory, name)
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
            self._chains.executor.run_inline(chain)
        if opened is None or opened.error == errno.EAGAIN:
            chain, opened = self._lookup_chain(credential, directory, name, _HOW_STAY if stay else _HOW, status, kernel)
            await self._chains.run(mount, chain, opened)
        if opened.error == errno.EXDEV:
            raise CrossingRefused
        if opened.error == errno.ENOENT:
            await self._looking.look(directory)  # ESTALE when it is the directory that is gone
        if opened.result >= 0 and raw_mount(status) != mount.mnt_id:
            return await self._cross(directory, name, opened, status, chain, kernel)
        self._chains.check(chain, opened)
        node = self._known.adopt(mount, opened.result, status, kernel, directory, name)
        return node, self._looking.seen(node, status)

    async def _lookup_stored(self, credential: Credential, directory: Node, name: bytes) -> tuple[Node, Attributes]:
        try:
            node, look = await self._stored.lookup(credential, directory, name)
        except FileNotFoundError:
            await self._looking.look(directory)  # ESTALE when it is the directory that is gone
            raise
        return node, self._looking.seen(node, look)

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
        add_look(chain, opened, status, kernel, directory.mount.naming)
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
            mount = await self._mount_table.across(directory.mount, opened, status, kernel, failed=chain.failed)
        except BaseException:
            self._chains.abandon(opened)
            raise
        node = self._known.adopt(mount, opened.result, status, kernel, directory, name)
        return node, self._looking.seen(node, status)

    async def parent(self, credential: Credential, directory: Node) -> Node | None:
        """The parent directory; None at the export's root (LOOKUPP, which then continues in the pseudo file system)."""
        if directory.type is not FileType.DIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if self._roots.is_root(directory):
            return None
        if store_of(directory) is not None:
            return (await self._lookup_stored(credential, directory, b".."))[0]
        return (await self._lookup_parent(credential, directory))[0]

    async def _lookup_parent(self, credential: Credential, directory: Node) -> tuple[Node, Attributes]:
        status, kernel = statx_buffer(), handle_buffer()
        chain = Chain(credential)
        if self._roots.is_root(directory):
            # Search permission is needed as for any other name.
            opened = chain.add(SYS_OPENAT, directory.fd, b".", _UP)
        else:
            opened = chain.add(SYS_OPENAT, directory.fd, b"..", _UP)
        add_look(chain, opened, status, kernel, directory.mount.naming)
        await self._chains.run(directory.mount, chain, opened)
        if opened.error == errno.ENOENT:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if opened.result < 0 or raw_mount(status) == directory.mount.mnt_id:
            self._chains.check(chain, opened)
        try:
            await self._check_inside(directory, opened.result, status)
            mount = await self._mount_table.across(directory.mount, opened, status, kernel, failed=chain.failed)
        except BaseException:
            self._chains.abandon(opened)
            raise
        node = self._known.adopt(mount, opened.result, status, kernel)
        return node, self._looking.seen(node, status)

    async def _check_inside(self, directory: Node, descriptor: int, status: bytearray) -> None:
        """Follow the way up from a directory to the export's root. Somebody may have moved the directory out of the
        export, or reached it through a bind mount whose source lies outside: then its parents are none of the client's
        business, and its handle is stale."""
        root = await self._roots.root(directory.export)
        goal = _place(await self._looking.look(root))
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
                await self._chains.run(directory.mount, chain, *ups)
                if held is not None:
                    self._chains.abandon(held)
                    held = None
                if chain.failed is not None:
                    self._chains.abandon(*ups)
                    break
                self._chains.abandon(*ups[:-1])
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
                self._chains.abandon(held)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
