"""Finding files by their handles.

Owns nothing. The kernel opens a handle wherever it can and we may have it do that; elsewhere the table of places
(:mod:`nfsd.vfs.places`) leads to the file.
"""

from __future__ import annotations

import errno
import os

from nfsd.vfs.attributes import raw_nlink, raw_type, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.mount_table import MountTable
from nfsd.vfs.mounts import Mount
from nfsd.vfs.records import Node
from nfsd.vfs.roots import Roots
from nfsd.vfs.store_mounts import store_of
from nfsd.vfs.stored_names import StoredNames
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    O_PATH,
    OPEN_HOW_SIZE,
    RESOLVE_COMPONENT,
    RESOLVE_NO_XDEV,
    STATX_MASK,
    SYS_OPEN_BY_HANDLE_AT,
    SYS_OPENAT2,
    SYS_STATX,
    handle_buffer,
    open_how,
    pack_handle,
)
from nfsd.vfs.types import BadHandle, CrossingRefused

_PATH_MAX = 4096
_DEEPEST = 4096
_PATHS = 8
"""Opened by one chain: a way of many long names has more of them than a chain may have steps."""


class Finding:
    """The files of handles."""

    def __init__(
        self, chains: Chains, known: KnownFiles, mount_table: MountTable, roots: Roots, stored: StoredNames
    ) -> None:
        self._chains = chains
        self._known = known
        self._mount_table = mount_table
        self._roots = roots
        self._stored = stored

    async def resolve(self, handle: bytes) -> Node:
        """The file of a handle. Raises BadHandle; OSError(ESTALE) when the file or its export is gone."""
        node = self._known.nodes.find(handle)
        if node is not None:
            return node
        export_id, fs_id, kind, octets = self._known.codec.decode(handle)
        root = self._roots.get(export_id)
        if root is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if store_of(root) is not None:
            return await self._stored.resolve(root, fs_id, kind, octets)
        mount = self._mount_table.claimed((export_id, fs_id)) or await self._mount_table.find(root, fs_id)
        if mount.by_place:
            return await self._resolve_by_place(root, bytes(handle))
        chain = Chain()
        status = statx_buffer()
        opened = chain.add(SYS_OPEN_BY_HANDLE_AT, mount.fd, pack_handle(kind, octets), O_PATH)
        chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
        await self._chains.run(mount, chain, opened)
        try:
            self._chains.check(chain, opened)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL, errno.ESTALE):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None
            raise
        if raw_nlink(status) == 0:
            self._chains.abandon(opened)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self._known.adopt_handle(mount, bytes(handle), kind, octets, opened.result, raw_type(status))

    def in_memory(self, handle: bytes) -> tuple[Mount, int, bytes] | None:
        """What to open the file of a handle by, if it is on a file system in memory: its mount, the kernel handle's
        type and octets. None: something else has to be done about the handle."""
        mount = self._mount_table.claimed(self._known.codec.claimed(handle))
        if mount is None or not mount.inline or mount.by_place or self._roots.get(mount.export.id) is None:
            return None
        try:
            _, _, kind, octets = self._known.codec.decode(handle)
        except BadHandle:
            return None
        return mount, kind, octets

    async def _resolve_by_place(self, root: Node, handle: bytes) -> Node:
        """Walk to where the file was last seen; it must still be the same one."""
        base, way = await self._way(root, handle)
        status, kernel = statx_buffer(), handle_buffer()
        opened = await self._walk(root, base.fd, _join(way), status)
        try:
            mount = await self._mount_table.mount_of(base.mount, opened.result, status)
            await self._mount_table.name(mount, opened.result, kernel)
        except CrossingRefused:
            self._chains.abandon(opened)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None
        except BaseException:
            self._chains.abandon(opened)
            raise
        node = self._known.adopt(mount, opened.result, status, kernel)
        if node.handle != handle:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    async def _walk(self, root: Node, start: int, paths: list[bytes], status: bytearray) -> Step:
        """Open what relative paths, one behind the other, lead to, and look at it. Raises OSError (ESTALE)."""
        resolve = RESOLVE_COMPONENT if root.export.cross_mounts else RESOLVE_COMPONENT | RESOLVE_NO_XDEV
        before: list[Step] = []
        while True:
            now, paths = paths[:_PATHS], paths[_PATHS:]
            chain = Chain()
            last: Step | int = before[-1].result if before else start
            opened = []
            for path in now:
                last = chain.add(SYS_OPENAT2, last, path, open_how(O_PATH, 0, resolve), OPEN_HOW_SIZE)
                opened.append(last)
            chain.add(SYS_STATX, last, b"", AT_EMPTY_PATH, STATX_MASK, status)
            try:
                await self._chains.run_in_lane(root.mount.lane, chain, *opened)
            finally:
                self._chains.abandon(*before)
            self._chains.abandon(*opened[:-1])
            before = opened[-1:]
            if chain.failed is not None:
                self._chains.abandon(*before)
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            if not paths:
                return before[0]

    async def _way(self, root: Node, handle: bytes) -> tuple[Node, list[bytes]]:
        """A directory that can be found without the table, and the names from there down to a file, as last seen.
        Raises OSError (ESTALE) when they are not known."""
        names: list[bytes] = []
        while handle != root.handle and len(names) < _DEEPEST and self._known.places is not None:
            mount = self._mount_table.claimed(self._known.codec.claimed(handle))
            if names and mount is not None and not mount.by_place:
                names.reverse()
                return await self.resolve(handle), names
            place = await self._known.places.of(handle)
            if place is None:
                break
            handle, name = place
            names.append(name)
        if handle != root.handle:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        names.reverse()
        return root, names


def _join(way: list[bytes]) -> list[bytes]:
    """Names as relative paths, each short enough for the kernel. The file system's root itself is ``.``."""
    paths = [b"."]
    for name in way:
        if len(paths[-1]) + 1 + len(name) >= _PATH_MAX:
            paths.append(name)
        else:
            paths[-1] += b"/" + name
    return paths
