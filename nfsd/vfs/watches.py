"""Watches (fanotify(7)): what a lease does not tell of, other processes' chmod, chown, link, rename and unlink; and
what they do to the names in a directory, of which the kernel gives no leases at all.

Owns the fanotify group. The news comes after the fact, but says which process did it: what the server did itself is
passed over. Where the kernel gives no such group (before 5.13 without privilege: :mod:`nfsd.vfs.permissions` says so),
or the file system has no identity for it, there is nothing to hear.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import Final

from nfsd.vfs.executor import Chain, Executor
from nfsd.vfs.syscalls import SYS_FANOTIFY_INIT, SYS_FANOTIFY_MARK
from rpcrdma.firewall import contain

_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_REPORT_FID = 0x1, 0x2, 0x200
_FAN_MARK_ADD, _FAN_MARK_REMOVE = 0x1, 0x2
_FAN_ATTRIB, _FAN_DELETE_SELF, _FAN_MOVE_SELF, _FAN_Q_OVERFLOW = 0x4, 0x400, 0x800, 0x4000
_WATCHED: Final = _FAN_ATTRIB | _FAN_DELETE_SELF | _FAN_MOVE_SELF
_FAN_MODIFY, _FAN_CLOSE_WRITE = 0x2, 0x8
_WRITTEN: Final = _FAN_MODIFY | _FAN_CLOSE_WRITE
_FAN_MOVED_FROM, _FAN_MOVED_TO, _FAN_CREATE, _FAN_DELETE, _FAN_ONDIR = 0x40, 0x80, 0x100, 0x200, 0x40000000
_NAMED: Final = _WATCHED | _FAN_MOVED_FROM | _FAN_MOVED_TO | _FAN_CREATE | _FAN_DELETE | _FAN_ONDIR
"""What is told of a directory: itself, and names in it, those of directories included."""
_INFO_TYPE_FID: Final = 1
_EVENT: Final = struct.Struct("=IBBHQii")
"""struct fanotify_event_metadata."""
_INFO: Final = struct.Struct("=BBH8xIi")
"""struct fanotify_event_info_fid as far as the file handle's octets."""
_BUFFER: Final = 64 << 10

FileId = tuple[int, bytes]
"""Type and octets of the kernel's file handle. Two file systems may have the same: then both files are meant."""


class Watches:
    """The files watched, and what to call for each."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._executor: Executor
        self._fd = -1
        self._heard: dict[FileId, set[Callable[[], None]]] = {}

    def start(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        """Begin to hear, if the kernel lets us."""
        self._loop, self._executor = loop, executor
        chain = Chain()
        made = chain.add(
            SYS_FANOTIFY_INIT, _FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_REPORT_FID, os.O_RDONLY | os.O_LARGEFILE
        )
        executor.run_inline(chain)
        if made.error:
            return
        self._fd = made.result
        loop.add_reader(self._fd, contain, None, self._read)

    def close(self) -> None:
        """Hear no more."""
        self._heard.clear()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def add(self, directory: int, name: bytes, file: FileId, heard: Callable[[], None]) -> None:
        """Call ``heard`` when another process has changed the file that ``name`` in ``directory`` leads to."""
        if self._fd >= 0 and self._mark(_FAN_MARK_ADD, _WATCHED, directory, name):
            self._heard.setdefault(file, set()).add(heard)

    def add_directory(self, directory: int, name: bytes, file: FileId, heard: Callable[[], None]) -> bool:
        """As :meth:`add`, for a directory: of its names, too. Whether that can be had."""
        if self._fd < 0 or not self._mark(_FAN_MARK_ADD, _NAMED, directory, name):
            return False
        self._heard.setdefault(file, set()).add(heard)
        return True

    def add_writes(self, directory: int, name: bytes, file: FileId) -> bool:
        """Tell of what another process writes too; whether that can be had. Until the last ``remove``."""
        return file in self._heard and self._mark(_FAN_MARK_ADD, _WRITTEN, directory, name)

    def remove(
        self, directory: int, name: bytes, file: FileId, heard: Callable[[], None], *, names: bool = False
    ) -> None:
        """The counterpart of :meth:`add`, or, with ``names``, of :meth:`add_directory`."""
        known = self._heard.get(file)
        if known is None or heard not in known:
            return
        known.discard(heard)
        if not known:
            del self._heard[file]
            self._mark(_FAN_MARK_REMOVE, _NAMED if names else _WATCHED | _WRITTEN, directory, name)

    def _mark(self, flags: int, mask: int, directory: int, name: bytes) -> bool:
        chain = Chain()
        done = chain.add(SYS_FANOTIFY_MARK, self._fd, flags, mask, directory, name)
        self._executor.run_inline(chain)
        return done.error == 0

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return
        own, at = os.getpid(), 0
        while at + _EVENT.size <= len(data):
            length, _, _, head, mask, _, pid = _EVENT.unpack_from(data, at)
            if mask & _FAN_Q_OVERFLOW:
                for known in list(self._heard.values()):
                    self._tell(known)
            elif pid != own:
                self._tell(self._heard.get(_file_of(data[at + head : at + length]), ()))
            at += max(length, _EVENT.size)

    @staticmethod
    def _tell(known: set[Callable[[], None]] | tuple[()]) -> None:
        for heard in list(known):
            contain(None, heard)


def _file_of(info: bytes) -> FileId:
    """The file an event's information record names."""
    if len(info) < _INFO.size:
        return 0, b""
    kind, _, _, size, handle_type = _INFO.unpack_from(info)
    if kind != _INFO_TYPE_FID:
        return 0, b""
    return handle_type, info[_INFO.size : _INFO.size + size]
