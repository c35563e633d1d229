"""Changes of files that are told of in their directory (inotify(7)).

Owns the inotify instance. News is fetched when somebody asks, before anything is believed that it could belie: the
kernel has put it into the queue before the call that made the change has returned.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_INOTIFY_ADD_WATCH, SYS_INOTIFY_INIT1, SYS_INOTIFY_RM_WATCH

_IN_MODIFY, _IN_ATTRIB, _IN_ONLYDIR = 0x2, 0x4, 0x01000000
_IN_Q_OVERFLOW = 0x4000
_FOLLOWED: Final = _IN_MODIFY | _IN_ATTRIB | _IN_ONLYDIR
"""What changes a file that keeps its name. Names that come and go change the directory itself, which shows."""
_EVENT: Final = struct.Struct("=iIII")
"""struct inotify_event, as far as the name."""
_BUFFER: Final = 16 << 10


class ChildEvents:
    """Directories whose files are followed, by the number of the watch."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._fd = -1

    def close(self) -> None:
        """Follow nothing any more."""
        if self._fd >= 0:
            self._chains.close_later(self._fd)  # which waits for the kernel's readers
            self._fd = -1

    def add(self, directory: int) -> int:
        """Follow the files of a directory, by its descriptor. The watch's number; negative: it cannot be had."""
        if self._fd < 0:
            self._fd = self._call(SYS_INOTIFY_INIT1, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                return -1
        return self._call(SYS_INOTIFY_ADD_WATCH, self._fd, b"/proc/self/fd/%d" % directory, _FOLLOWED)

    def remove(self, watch: int) -> None:
        """Follow them no more."""
        if self._fd >= 0:
            self._call(SYS_INOTIFY_RM_WATCH, self._fd, watch)

    def heard(self) -> list[tuple[int, bytes]] | None:
        """The watches and names of files that have been changed. None: more than are worth hearing; :meth:`close`
        forgets them."""
        if self._fd < 0:
            return []
        try:
            data = os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            watch, mask, _, size = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            if mask & _IN_Q_OVERFLOW:
                return None
            found.append((watch, data[at : at + size].rstrip(b"\0")))
            at += size
        return None if len(data) > _BUFFER // 2 else found

    def _call(self, number: int, *arguments: int | bytes) -> int:
        """The call's result; -1 for an error."""
        chain = Chain()
        made = chain.add(number, *arguments)
        self._chains.executor.run_inline(chain)
        return made.result if made.error == 0 else -1
