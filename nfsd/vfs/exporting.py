"""Changing what is exported while clients are served.

Owns :meth:`ExportingOperations.take_exports`. Exports are told apart by their ids, as in handles: one that keeps its id
keeps its files, its handles and its lane of workers, whatever else of it changes. Of one that is served no more nothing
is kept in case it is needed again. :meth:`ExportingOperations.are_closed` tells when no descriptor of it is left, and
its file system can be unmounted: what is open refers to its mount, so that is when the mount's record has gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from nfsd.exported import Export
from nfsd.vfs.directory import DirectoryOperations
from nfsd.vfs.mounts import Mount
from nfsd.vfs.resources import threads_for

Mounts = list[tuple[weakref.ref[Mount], int]]
"""Mounts with the lanes that their descriptors are closed in."""


class ExportingOperations(DirectoryOperations):
    """The change, all at once."""

    async def take_exports(self, exports: Iterable[Export]) -> set[int]:
        """Serve these exports from now on, and no others; those whose directory cannot be opened are ``absent``.
        Returns the ids of those that are served no more: their handles are stale."""
        wanted = tuple(exports)
        served = {export.id: export for export in wanted if not export.referral}
        roots, absent = await self.open_roots(served.values())
        wanted = tuple(export for export in wanted if export.id not in absent)
        served = {id_: export for id_, export in served.items() if id_ in roots}
        # From here on nothing waits: no call sees one half of the change.
        gone = self._roots.keys() - roots.keys()
        self.exports.replace(wanted)
        self._roots, self.absent = roots, absent
        self.executor.allow_threads(threads_for(served.values()))
        for id_, root in roots.items():
            self.executor.set_lane(root.mount.lane, served[id_].workers)
        for key, mount in list(self._mounts.items()):
            export = served.get(mount.export.id)
            if export is not None and (export.cross_mounts or mount is roots[export.id].mount):
                mount.export = export
            else:
                del self._mounts[key]
                self._mounts_by_fs.pop((mount.export.id, mount.fs_id), None)
        for node in self.nodes.all():
            export = served.get(node.export.id)
            if export is not None and (export.cross_mounts or node.mount is roots[export.id].mount):
                node.export = export
            else:
                self.nodes.disown(node)
        for opened in list(self._opens):
            if opened.node.export.id not in served:
                self.forget_open(opened)
        self.streams.clear()
        return gone

    def mounts_of(self, export: Export) -> Mounts:
        """What of an export keeps descriptors open; to be asked while it is served."""
        return [(weakref.ref(mount), mount.lane) for mount in self._mounts.values() if mount.export.id == export.id]

    def are_closed(self, mounts: Mounts) -> bool:
        """Whether nothing of them is open any more."""
        return not any(mount() is not None or self.closes(lane) for mount, lane in mounts)
