"""Changes of a file's data other than WRITE, in the file's turn.

Owns nothing. They take turns with its WRITEs (:mod:`nfsd.vfs.serial`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nfsd.backends.interface import Made
from nfsd.vfs.changes import change_of
from nfsd.vfs.records import OpenFile
from nfsd.vfs.stable import StableStorage
from nfsd.vfs.types import Change
from nfsd.vfs.unstable import UnstableWrites


class DataChanges:
    """Making them."""

    def __init__(self, unstable: UnstableWrites, stable: StableStorage) -> None:
        self._unstable = unstable
        self._stable = stable

    async def make(self, opened: OpenFile, make: Callable[[], Awaitable[Made]]) -> tuple[Change, int]:
        """Have a change of data made in the file's turn. Returns the attributes around it, and the octets copied."""
        node = opened.node
        if not opened.unstable:
            await self._unstable.make_room(node.inode)
        serial = node.inode.serial
        await serial.acquire()
        try:
            try:
                made = await make()
            finally:
                self._unstable.add(opened)
            return change_of(node, made.before, made.after), made.octets
        finally:
            serial.release()

    async def make_durably(self, opened: OpenFile, make: Callable[[], Awaitable[Made]]) -> Change:
        """The same, and it is on stable storage when this returns, unless the export says ``async: true``."""
        failures = opened.node.inode.sync.failures
        change, _ = await self.make(opened, make)
        if not opened.node.export.late_data:
            await self._stable.sync_open(opened.node, opened, failures)
        return change
