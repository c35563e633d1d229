"""Watches (fanotify(7)): what a lease does not tell of. Implemented in ``watches.pyx``."""

from asyncio import AbstractEventLoop
from collections.abc import Callable

from nfsd.vfs.executor import Executor

FileId = tuple[int, bytes]
"""Type and octets of the kernel's file handle. Two file systems may have the same: then both files are meant."""

class Watches:
    """The files watched, and what to call for each."""

    _heard: dict[FileId, set[Callable[[], None]]]
    def start(self, loop: AbstractEventLoop, executor: Executor) -> None:
        """Begin to hear, if the kernel lets us."""

    def close(self) -> None:
        """Hear no more."""

    def add(self, directory: int, name: bytes, file: FileId, heard: Callable[[], None]) -> None:
        """Call ``heard`` when another process has changed the file that ``name`` in ``directory`` leads to."""

    def add_directory(self, directory: int, name: bytes, file: FileId, heard: Callable[[], None]) -> bool:
        """As :meth:`add`, for a directory: of its names, too. Whether that can be had."""

    def add_writes(self, directory: int, name: bytes, file: FileId) -> bool:
        """Tell of what another process writes too; whether that can be had. Until the last ``remove``."""

    def remove(self, directory: int, name: bytes, file: FileId, heard: Callable[[], None], names: bool = False) -> None:
        """The counterpart of :meth:`add`, or, with ``names``, of :meth:`add_directory`."""
