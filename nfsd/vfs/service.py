"""The file service: every operation on local files, asynchronous, under the caller's credential.

Puts the parts together, and lets callers have their operations. A part is given the parts it needs. All
run on the event loop's thread. Nothing here knows of NFS versions or transports. Operations raise OSError (the errno is
the kernel's) unless they say more; ``credential`` is the caller after squash.
"""

from __future__ import annotations

import asyncio
import os

from nfsd.backends.choosing import ChosenBackend
from nfsd.backends.interface import Backend
from nfsd.backends.local import LocalBackend
from nfsd.backends.plugins import make_store
from nfsd.exported import Export, Exports
from nfsd.vfs.absent import Absent
from nfsd.vfs.chains import Chains
from nfsd.vfs.copying import Copying
from nfsd.vfs.creation import Creation
from nfsd.vfs.data_changes import DataChanges
from nfsd.vfs.directory_changes import DirectoryChanges
from nfsd.vfs.executor import Executor
from nfsd.vfs.exporting import Exporting
from nfsd.vfs.file_systems import FileSystems
from nfsd.vfs.finding import Finding
from nfsd.vfs.inspect import Inspection
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.leasing import Leasing
from nfsd.vfs.listings import Listings
from nfsd.vfs.locks import FileLocks
from nfsd.vfs.looking import Looking
from nfsd.vfs.lookups import Lookups
from nfsd.vfs.mount_table import MountTable
from nfsd.vfs.namespace import Namespace
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.opens import Opening
from nfsd.vfs.quotas import Quotas
from nfsd.vfs.recent_listings import RecentListings
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.resources import FileLimits, raise_descriptor_limit, threads_for
from nfsd.vfs.roots import Roots
from nfsd.vfs.setting import Setting
from nfsd.vfs.shares import Shares
from nfsd.vfs.sparse import Space
from nfsd.vfs.stable import StableStorage
from nfsd.vfs.stored_names import StoredNames
from nfsd.vfs.tables import Tables
from nfsd.vfs.unstable import UnstableWrites
from nfsd.vfs.write_back import WriteBacks
from nfsd.vfs.xattrs import Xattrs
from rpcrdma.firewall import Ticker

__all__ = ["FileService", "Node", "OpenFile"]

SWEEP_SECONDS = 4.0


class FileService:
    """Operations on the files of all exports."""

    def __init__(
        self, exports: Exports, state_dir: str, limits: FileLimits | None = None, *, rings: bool = True,
        recent: bool = True,
    ) -> None:  # fmt: skip
        """``rings``: READs of disks may be made many at a time (:mod:`nfsd.vfs.uring`). ``recent``: what was just
        listed may be remembered (:mod:`nfsd.vfs.recent_listings`); no other server has the files then."""
        self.exports = exports
        self._umask = 0
        self._sweeper: Ticker | None = None
        self._put_together(state_dir, limits or FileLimits.of(raise_descriptor_limit()), rings, recent)
        self._offer_files()
        self._offer_names()

    def _put_together(self, state_dir: str, limits: FileLimits, rings: bool, recent: bool) -> None:
        """Make the parts: tables and workers first, then what finds, opens and synchronises files, then operations."""
        self.nodes = NodeTable(limits.nodes, limits.inodes)
        self.nodes.files = limits.files
        self.write_backs = WriteBacks()
        self.chains = Chains(self.nodes, self.write_backs, rings=rings)
        self.known = KnownFiles(self.nodes, self.chains, state_dir)
        self.backend: Backend = ChosenBackend(LocalBackend(self.chains))
        backend = self.backend
        self.unstable = UnstableWrites(self._settle)
        self.open_files = OpenFiles(self.nodes, self.chains, self.unstable)
        self._stored = StoredNames(self.known, self.open_files, self.write_backs)
        self._mount_table = MountTable(self.chains, self.known, self.write_backs)
        self.roots = Roots(self.exports, self.chains, self.known, self._mount_table, self._stored, make_store)
        self.finding = Finding(self.chains, self.known, self._mount_table, self.roots, self._stored)

        self.shares = Shares(limits.open_files, limits.host_open_files, self.open_files)
        self.nodes.places = self.shares
        self.tables = Tables(
            self.nodes, self.open_files, self.exports.edition, self.unstable, self.shares, self.known,
            self.chains.close_later,
        )  # fmt: skip
        self._looking = Looking(backend.files, self.open_files)
        self.opening = Opening(self.chains, self._looking, self.open_files, self.shares)
        self.stable = StableStorage(self.chains, self.unstable, self.opening)
        self.leasing = Leasing(self.chains, self.known, self.open_files, self.unstable)

        self._inspection = Inspection(backend.files, self._looking, self.open_files)
        self._setting = Setting(self.chains, self._looking, self.opening, self.stable)
        self._data_changes = DataChanges(self.unstable, self.stable)
        self._file_systems = FileSystems(backend.file_systems, self._looking)
        self.locks = FileLocks(backend.locks, self.opening, self.shares)
        self.lookups = Lookups(self.chains, self._looking, self.known, self._mount_table, self.roots, self._stored)
        self.listings = Listings(
            self.chains, self._looking, self.known, self.roots, self.lookups,
            RecentListings(self.chains, self.nodes, wanted=recent),
        )  # fmt: skip
        self._directory_changes = DirectoryChanges(self.chains, self._looking)
        self._exporting = Exporting(
            self.exports, self.chains, self.known, self._mount_table, self.roots, self.open_files, self.listings
        )

    async def _settle(self, opened: OpenFile) -> None:
        # Stable storage stands on open files, and these on unstable writes, which close only once they are stable.
        await self.stable.settle(opened)

    def _offer_files(self) -> None:
        """What is done with files, and with the exports they are in."""
        backend, roots, exporting = self.backend, self.roots, self._exporting
        self.root, self.is_root, self.directory_of = roots.root, roots.is_root, roots.directory_of
        self.weigh = roots.weigh
        self.can_come_back, self.take_exports = roots.can_come_back, exporting.take_exports
        self.mounts_of, self.are_closed = exporting.mounts_of, exporting.are_closed
        self.resolve = self.finding.resolve

        self.look, self.attributes = self._looking.look, self._looking.attributes
        self.set_attributes, self.touch = self._setting.set_attributes, self._setting.touch
        inspection = self._inspection
        self.access, self.may_commit, self.readlink = inspection.access, inspection.may_commit, inspection.readlink
        self.open = self.opening.open
        self.take_lease, self.wait_for_lease = self.leasing.take_lease, self.leasing.wait_for_lease
        self.watch_directory = self.leasing.watch_directory

        space = Space(backend.space, self._looking, self._data_changes)
        self.seek, self.read_extents = space.seek, space.read_extents
        self.allocate, self.deallocate = space.allocate, space.deallocate
        self.prefetch, self.drop = space.prefetch, space.drop
        copying = Copying(backend.copies, self._data_changes)
        self.begin_copy, self.copy_for_a_while = copying.begin_copy, copying.copy_for_a_while
        self.clone_range = copying.clone_range

        file_systems = self._file_systems
        self.status, self.limits = file_systems.status, file_systems.limits
        self.supports_xattrs, self.supports_acls = file_systems.supports_xattrs, file_systems.supports_acls
        self.supports_labels, self.supports_quotas = file_systems.supports_labels, file_systems.supports_quotas
        xattrs = Xattrs(backend.xattrs, file_systems, self._looking, self.stable)
        self.may_write_xattrs = xattrs.may_write_xattrs
        self.get_xattr, self.list_xattrs = xattrs.get_xattr, xattrs.list_xattrs
        self.set_xattr, self.remove_xattr = xattrs.set_xattr, xattrs.remove_xattr
        self.acls, self.label = backend.acls.acls, backend.acls.label
        quotas = Quotas(backend.quota, file_systems)
        self.quota, self.owner_quota = quotas.quota, quotas.owner_quota
        self.in_snapshot, self.in_snapshot_at_once = backend.files.in_snapshot, backend.files.in_snapshot_at_once

        locks = self.locks
        self.set_local_lock, self.clear_local_lock = locks.set_local_lock, locks.clear_local_lock
        self.test_local_lock, self.check_room_for_locks = locks.test_local_lock, locks.check_room_for_locks
        self.hold_locks, self.let_locks = locks.hold_locks, locks.let_locks

    def _offer_names(self) -> None:
        """What is done with names."""
        self.lookup, self.parent = self.lookups.lookup, self.lookups.parent
        self.list_directory, self.readdir = self.listings.list_directory, self.listings.readdir
        creation = Creation(
            self.chains, self.known, self._looking, self.lookups, self.open_files, self.shares, self._setting,
            self.stable, self._directory_changes, self._stored,
        )  # fmt: skip
        self.create, self.mkdir = creation.create, creation.mkdir
        self.symlink, self.mknod = creation.symlink, creation.mknod
        namespace = Namespace(
            self.chains, self.known, self._looking, self.open_files, self.stable, self._directory_changes, self._stored,
        )  # fmt: skip
        self.remove, self.rename, self.link = namespace.remove, namespace.rename, namespace.link
        self.stored_node, self.bury_stored = self._stored.node, self._stored.bury

    @property
    def executor(self) -> Executor:
        """The workers, once the service has started."""
        return self.chains.executor

    @property
    def absent(self) -> dict[int, Absent]:
        """Exports that cannot be served as things are, by id."""
        return self.roots.absent

    def unserved(self) -> dict[Export, str]:
        """Exports of the configuration that are not served now, with the reason in words."""
        absent, drained = self.roots.absent.values(), self.roots.drained.values()
        found = {one.export: f"not served: {one.why}; {one.remedy}" for one in absent}
        found |= dict.fromkeys(drained, "drained; `rdma-nfsd reload` serves it again")
        return {export: f"it is exported ({export.place or 'exports'}) and {why}" for export, why in found.items()}

    # -- starting and stopping -----------------------------------------------------------------------------------
    async def start(self) -> None:
        """Open what is in the state directory, begin to work, and open the export roots; those that cannot be opened
        are ``absent``. Raises OSError naming the path, of what is in the state directory."""
        # Creating with the client's mode, whatever the daemon's umask: default ACLs take effect as in local creation.
        self._umask = os.umask(0)
        self.known.start()
        self.chains.start(threads_for(self.exports.exports))
        self.tables.started(self.chains.executor, self.chains.proc_fd)
        self._sweeper = Ticker(asyncio.get_running_loop(), SWEEP_SECONDS, self.sweep)
        await self.roots.start()
        self.shares.exports = len(self.roots)
        self.leasing.start()

    async def close(self) -> None:
        """Finish running jobs, close every descriptor, even if somebody still holds it."""
        self.listings.forget()
        self.leasing.close()
        self.shares.close()
        self.open_files.close()
        await self.unstable.close()
        self.locks.close()
        stores = self.roots.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
            await self.known.close()
            self.chains.close()
            self.known.shut()
            self._mount_table.shut()
            os.umask(self._umask)
        self.open_files.shut()
        for store in stores:
            store.shut()

    def sweep(self) -> None:
        """Let go of what has not been used for some seconds."""
        self.listings.streams.clear()
        self.open_files.sweep()
        self.shares.exports = len(self.roots)
        self.unstable.sweep()
        self.nodes.sweep()
        self._mount_table.sweep()
