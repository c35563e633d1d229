"""The root directories of exports.

Owns them, by export id, and which exports are absent.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Callable, Iterable

from nfsd.backends.interface import Store
from nfsd.exported import Export, Exports
from nfsd.reach import silent
from nfsd.vfs.absent import Absent, check_mounted
from nfsd.vfs.attributes import raw_mount, statx_buffer
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.mount_table import MountTable
from nfsd.vfs.mounts import mount_entry
from nfsd.vfs.records import Node
from nfsd.vfs.store_mounts import StoreMount, store_of
from nfsd.vfs.stored_names import StoredNames
from nfsd.vfs.syscalls import AT_EMPTY_PATH, AT_FDCWD, O_PATH, STATX_MASK, SYS_OPENAT, SYS_STATX, handle_buffer
from nfsd.vfs.types import CrossingRefused


class Roots:
    """Export roots."""

    def __init__(
        self,
        exports: Exports,
        chains: Chains,
        known: KnownFiles,
        mount_table: MountTable,
        stored: StoredNames,
        make_store: Callable[[Export], Store],
    ) -> None:
        self._exports = exports
        self._chains = chains
        self._known = known
        self._mount_table = mount_table
        self._stored = stored
        self._make_store = make_store
        self.absent: dict[int, Absent] = {}
        """Exports that cannot be served as things are, by id."""
        self.drained: dict[int, Export] = {}
        """Exports that are served again when the configuration is read again, by id."""
        self._by_export: dict[int, Node] = {}
        self._lanes = itertools.count(1)

    def __len__(self) -> int:
        return len(self._by_export)

    async def start(self) -> None:
        """Open the export roots; those that cannot be opened are ``absent`` from the exports."""
        wanted = (*self._exports.exports, *self._exports.referrals)
        self._by_export, self.absent = await self.open_roots(self._exports.exports)
        if self.absent:
            self._exports.replace(export for export in wanted if export.id not in self.absent)

    def close(self) -> list[StoreMount]:
        """Let go of all. Returns the stores, to be shut when nothing of theirs is open any more."""
        stores = [node.mount for node in self._by_export.values() if isinstance(node.mount, StoreMount)]
        self._by_export.clear()
        return stores

    def get(self, export_id: int) -> Node | None:
        """The root directory of the export with this id; None: there is no such export now."""
        return self._by_export.get(export_id)

    def serve(self, roots: dict[int, Node], absent: dict[int, Absent]) -> set[int]:
        """These are the roots from now on, and what is absent. Returns the ids of exports that are no more."""
        gone = self._by_export.keys() - roots.keys()
        self._by_export, self.absent = roots, absent
        for id_ in self.drained.keys() & roots.keys():
            del self.drained[id_]
        return gone

    async def open_roots(self, exports: Iterable[Export]) -> tuple[dict[int, Node], dict[int, Absent]]:
        """The root directories of the exports, by export id; of those that have one already too, whose directory may
        be another now. And those that cannot be opened. What hangs is not opened, and holds up no other: what is
        served from there stays as it is, and anything else is absent."""
        roots, absent = {}, {}
        wanted = tuple(exports)
        hanging = await asyncio.to_thread(silent, [export.path for export in wanted if export.backend is None])
        for export in wanted:
            before, missed = self._by_export.get(export.id), self.absent.get(export.id)
            lane = before.mount.lane if before else missed.lane if missed else next(self._lanes)
            if before is None:
                self._chains.executor.set_lane(lane, export.workers)
            if export.backend is None and export.path in hanging:
                if before is not None:
                    roots[export.id] = before
                else:
                    absent[export.id] = Absent(export, OSError(errno.ETIMEDOUT, "does not answer"), lane)
                continue
            try:
                roots[export.id] = await (
                    self._open_root(export, lane)
                    if export.backend is None
                    else self._stored.open_root(export, lane, before, self._make_store)
                )
            except OSError as error:
                absent[export.id] = Absent(export, error, lane)
        return roots, absent

    def weigh(self, export_id: int, host: str, weight: int) -> None:
        """Have so many jobs of a host (:func:`rpcrdma.addresses.host_of`) done in each of its turns on an export."""
        root = self._by_export.get(export_id)
        if root is not None:
            self._chains.executor.set_weight(root.mount.lane, host, weight)

    async def can_come_back(self) -> bool:
        """Whether an export that is absent could be served by now."""
        roots, still = await self.open_roots([one.export for one in self.absent.values()])
        self.absent.update((id_, one) for id_, one in still.items() if id_ in self.absent)
        return bool(roots)

    async def _open_root(self, export: Export, lane: int) -> Node:
        chain = Chain()
        status = statx_buffer()
        kernel = handle_buffer()
        opened = chain.add(SYS_OPENAT, AT_FDCWD, os.fsencode(export.path), O_PATH & ~os.O_NOFOLLOW | os.O_DIRECTORY)
        chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
        await self._chains.run_in_lane(lane, chain, opened)
        self._chains.check(chain, opened)
        try:
            mount = self._mount_table.known(export.id, raw_mount(status))
            if mount is None:
                mount = await self._mount_table.register(export, lane, opened.result, status, is_root=True)
            if export.mountpoint:
                entry = mount_entry(raw_mount(status))
                await asyncio.to_thread(check_mounted, export, opened.result, entry.path if entry else "")
            await self._mount_table.name(mount, opened.result, kernel)
        except CrossingRefused:
            self._chains.abandon(opened)
            raise OSError(errno.EOPNOTSUPP, "what is mounted there is made up by the kernel") from None
        except BaseException:
            self._chains.abandon(opened)
            raise
        return self._known.adopt(mount, opened.result, status, kernel)

    async def root(self, export: Export) -> Node:
        """The export's root directory."""
        node = self._by_export.get(export.id)
        if node is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    @staticmethod
    def directory_of(root: Node) -> bytes:
        """Where an export's root is, as the kernel names it: without symbolic links. Empty for a store's."""
        if store_of(root) is not None:
            return b""
        return os.readlink(b"/proc/self/fd/%d" % root.fd)

    def is_root(self, node: Node) -> bool:
        """Whether the node is its export's root."""
        return node is self._by_export.get(node.export.id)
