"""Changing what is exported while clients are served.

Owns :meth:`Exporting.take_exports`. Exports are told apart by their ids, as in handles: one that keeps its id
keeps its files, its handles and its lane of workers, whatever else of it changes. Of one that is served no more nothing
is kept in case it is needed again. :meth:`Exporting.are_closed` tells when no descriptor of it is left, and
its file system can be unmounted: what is open refers to its mount, so that is when the mount's record has gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from nfsd.exported import Export, Exports
from nfsd.vfs.chains import Chains
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.listings import Listings
from nfsd.vfs.mount_table import MountTable
from nfsd.vfs.mounts import Mount
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.resources import threads_for
from nfsd.vfs.roots import Roots

Mounts = list[tuple[weakref.ref[Mount], int]]
"""Mounts with the lanes that their descriptors are closed in."""


class Exporting:
    """The change, all at once."""

    def __init__(
        self,
        exports: Exports,
        chains: Chains,
        known: KnownFiles,
        mount_table: MountTable,
        roots: Roots,
        open_files: OpenFiles,
        listings: Listings,
    ) -> None:
        self._exports = exports
        self._chains = chains
        self._known = known
        self._mount_table = mount_table
        self._roots = roots
        self._open_files = open_files
        self._listings = listings

    async def take_exports(self, exports: Iterable[Export]) -> set[int]:
        """Serve these exports from now on, and no others; those whose directory cannot be opened are ``absent``.
        Returns the ids of those that are served no more: their handles are stale."""
        wanted = tuple(exports)
        served = {export.id: export for export in wanted if not export.referral}
        roots, absent = await self._roots.open_roots(served.values())
        wanted = tuple(export for export in wanted if export.id not in absent)
        served = {id_: export for id_, export in served.items() if id_ in roots}

        def export_of(mount: Mount) -> Export | None:
            export = served.get(mount.export.id)
            reached = export is not None and (export.cross_mounts or mount is roots[export.id].mount)
            return export if reached else None

        # From here on nothing waits: no call sees one half of the change.
        self._exports.replace(wanted)
        gone = self._roots.serve(roots, absent)
        self._chains.executor.allow_threads(threads_for(served.values()))
        for id_, root in roots.items():
            self._chains.executor.set_lane(root.mount.lane, served[id_].workers)
        self._known.serve(export_of)
        self._mount_table.serve(export_of)
        self._open_files.forget_gone(served)
        self._listings.forget()
        return gone

    def mounts_of(self, export: Export) -> Mounts:
        """What of an export keeps descriptors open; to be asked while it is served."""
        return [(weakref.ref(mount), mount.lane) for mount in self._mount_table.of_export(export)]

    def are_closed(self, mounts: Mounts) -> bool:
        """Whether nothing of them is open any more."""
        return not any(mount() is not None or self._chains.closes(lane) for mount, lane in mounts)
