"""Exports that cannot be served as things are: which, why, and what to do.

Owns :class:`Absent`. As with Linux's server, whose ``mountpoint`` is the model, such an export is not there for
clients: MOUNT and LOOKUP say NOENT, its handles are stale. The others are served.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final

from nfsd.exported import Export

_REMEDIES: Final = {
    errno.ENOENT: "create it (mkdir -p) or correct the path",
    errno.ENOTDIR: "only directories can be exported",
    errno.EACCES: "let the server's user in; a FUSE file system needs the option allow_other",
    errno.EPERM: "let the server's user in; a FUSE file system needs the option allow_other",
    errno.ELOOP: "its symbolic links lead nowhere; correct the path",
    errno.EOPNOTSUPP: "export directories that hold files",
    errno.ESTALE: "its server, or device, has gone; mount it again",
    errno.ETIMEDOUT: "its server, or the process of that FUSE file system, hangs; end that, or unmount it",
    errno.ENOTCONN: "the process of that FUSE file system has ended; mount it again",
}
_OTHERWISE: Final = "see whether its device is there, and what the kernel's log says"


class NothingMounted(OSError):
    """The export is for a file system that is not mounted."""

    def __init__(self, place: str) -> None:
        super().__init__(errno.ENODEV, f"nothing is mounted at {place}")


@dataclass(frozen=True, slots=True)
class Absent:
    """An export without its directory."""

    export: Export
    error: OSError
    lane: int
    """The workers it has once it is served."""

    @property
    def why(self) -> str:
        """What is wrong."""
        what = self.error.strerror or str(self.error)
        if isinstance(self.error, NothingMounted) or self.export.backend is not None:
            return what
        if self.error.errno == errno.ETIMEDOUT:
            return f"{self.export.path} does not answer"
        if self.error.errno == errno.ENOENT:
            return f"{self.export.path} does not exist"
        if self.error.errno == errno.ENOTDIR:
            return f"{self.export.path} is not a directory"
        return f"{self.export.path}: {what[:1].lower()}{what[1:]}"

    @property
    def remedy(self) -> str:
        """What to do."""
        if isinstance(self.error, NothingMounted):
            return "mount it, or leave out mountpoint"
        if self.export.backend is not None:
            return "correct backend, module or options, or install the plug-in"
        return _REMEDIES.get(self.error.errno or 0, _OTHERWISE)


def check_mounted(export: Export, opened: int, mount_path: str) -> None:
    """See that there is mounted what has to be (``mountpoint``): where its directory is ``opened``, on what is mounted
    at ``mount_path``. May wait for disks. Raises NothingMounted."""
    if export.mountpoint is True:
        if os.readlink(f"/proc/self/fd/{opened}") != mount_path:
            raise NothingMounted(export.path)
    elif export.mountpoint and not os.path.ismount(os.path.realpath(export.mountpoint)):
        raise NothingMounted(export.mountpoint)
