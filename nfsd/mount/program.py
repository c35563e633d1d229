"""MOUNT version 3 (RFC 1813 section 5, Appendix I), served over TCP (RFC 8267 leaves it off RDMA).

Owns the six procedures and their table of errors; imports the declarations, the file service and the exports.

MNT walks to directories below an export as the server itself, like Linux's mountd: the right to mount is the client
machine's, while what its users may do there is decided call by call (:mod:`nfsd.mount.walk`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Final

from nfsd.exports import NOT_A_CLIENT, NOT_AMONG_CLIENTS, Export, ExportTable
from nfsd.mount.mountlist import MountList
from nfsd.mount.paths import components, matches
from nfsd.mount.walk import LeadsOut, walk
from nfsd.protocol.mount3 import (
    MNTNAMLEN,
    MOUNT_PROGRAM,
    MOUNT_V3,
    MOUNTPROC3_DUMP,
    MOUNTPROC3_EXPORT,
    MOUNTPROC3_MNT,
    MOUNTPROC3_NULL,
    MOUNTPROC3_UMNT,
    MOUNTPROC3_UMNTALL,
    dirpath,
    exportnode,
    groupnode,
    mountbody,
    mountres3,
    mountres3_ok,
    mountstat3,
)
from nfsd.protocol.mount3 import exports as exports_list
from nfsd.protocol.mount3 import mountlist as mount_list
from nfsd.versions import V3
from nfsd.vfs.service import FileService
from nfsd.vfs.types import CrossingRefused
from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS, Call, Procedure, Program

STATUS: Final[Mapping[int, mountstat3]] = {
    errno.EPERM: mountstat3.MNT3ERR_PERM,
    errno.ENOENT: mountstat3.MNT3ERR_NOENT,
    errno.ESTALE: mountstat3.MNT3ERR_NOENT,
    errno.EIO: mountstat3.MNT3ERR_IO,
    errno.EACCES: mountstat3.MNT3ERR_ACCES,
    errno.ENOTDIR: mountstat3.MNT3ERR_NOTDIR,
    errno.ELOOP: mountstat3.MNT3ERR_NOTDIR,
    errno.EINVAL: mountstat3.MNT3ERR_INVAL,
    errno.ENAMETOOLONG: mountstat3.MNT3ERR_NAMETOOLONG,
    errno.EOPNOTSUPP: mountstat3.MNT3ERR_NOTSUPP,
}
"""Errors of the way to the directory; all others are MNT3ERR_SERVERFAULT."""


_FLAVORS: Final = {"krb5p": 390005, "krb5i": 390004, "krb5": 390003, "sys": AUTH_SYS}
"""Pseudo flavors, which stand for a mechanism with a service (RFC 2623)."""
_WORDS: Final = {
    mountstat3.MNT3ERR_NOTDIR: "it is not a directory",
    mountstat3.MNT3ERR_NAMETOOLONG: "its name is too long",
    mountstat3.MNT3ERR_IO: "the disk failed",
}


class MountService:
    """The procedures, with the mount list they share."""

    def __init__(self, service: FileService, exports: ExportTable, mounts: MountList) -> None:
        self._service = service
        self._exports = exports
        self._mounts = mounts

    async def null(self, call: Call, arguments: None) -> None:
        """Answer, and do no work at all (section 5.2.0)."""

    async def mnt(self, call: Call, path: bytes) -> mountres3:
        """The handle of a directory and the flavors it may be used with; notes the mount (section 5.2.1)."""
        peer = call.transport.peer_address
        learning = self._exports.admit(peer)
        if learning is not None:
            await learning
        names = components(path)
        # A stranger's mount command is told so, and nothing of what there is.
        if names is None or not self._exports.may_mount(peer):
            why = "there is no such path" if names is None else self._unserved(names) or NOT_A_CLIENT
            # The log, which the client does not see, says what would admit it to the export it asks for.
            wanted = matches(self._exports.exports, names) if names is not None and why == NOT_A_CLIENT else ()
            self._refused(call, path, [export for export, _ in wanted], why)
            return mountres3(mountstat3.MNT3ERR_ACCES)
        status, closed = mountstat3.MNT3ERR_NOENT, []
        for export, below in matches(self._exports.exports, names):
            if not export.versions & V3:
                status = mountstat3.MNT3ERR_ACCES
                self._exports.refuse(export, call.transport, "NFSv3")
                continue
            if not self._exports.mountable(export, peer):
                status = mountstat3.MNT3ERR_ACCES
                closed.append(export)
                continue
            # Clients' mount(8) has no TLS for MOUNT, which tells a handle only; what is done with it must be secured.
            if not self._exports.takes(export, call.transport, secured=False):
                status = mountstat3.MNT3ERR_ACCES  # as rpc.mountd has it
                continue
            try:
                node = await walk(self._service, export, below)
            except OSError as error:
                status = STATUS.get(error.errno or 0, mountstat3.MNT3ERR_SERVERFAULT)
            except CrossingRefused:
                status = mountstat3.MNT3ERR_ACCES
            except LeadsOut as error:
                status = mountstat3.MNT3ERR_ACCES
                self._refused(call, path, [], str(error))
            else:
                self._mounts.add(peer, path)
                self._exports.observer.mounted(export, call.transport, os.fsdecode(path))
                flavors = _flavors(self._exports.mount_ways(export, peer))
                return mountres3(mountstat3.MNT3_OK, mountinfo=mountres3_ok(node.handle, flavors))
        if closed:
            self._refused(call, path, closed, NOT_AMONG_CLIENTS)
        elif status != mountstat3.MNT3ERR_ACCES:  # of its port the exports have told
            self._refused(call, path, [], self._unserved(names) or _WORDS.get(status, "there is no such directory"))
        return mountres3(status)

    def _unserved(self, names: list[bytes]) -> str:
        """Why the export that a path belongs to is not served; empty: there is none."""
        unserved = self._service.unserved()
        return next((unserved[export] for export, _ in matches(unserved, names)), "")

    def _refused(self, call: Call, path: bytes, exports: Sequence[Export], why: str) -> None:
        self._exports.observer.refused(call.transport, os.fsdecode(path), "NFSv3", exports, why)

    async def dump(self, call: Call, arguments: None) -> list[mountbody]:
        """The mount list (section 5.2.2)."""
        return [mountbody(_name(client), directory) for client, directory in self._mounts]

    async def umnt(self, call: Call, path: bytes) -> None:
        """Forget one mount of the caller's (section 5.2.3)."""
        self._mounts.remove(call.transport.peer_address, path)
        self._exports.observer.unmounted(call.transport.peer_address, os.fsdecode(path))

    async def umntall(self, call: Call, arguments: None) -> None:
        """Forget all mounts of the caller's (section 5.2.4)."""
        self._mounts.remove_all(call.transport.peer_address)
        self._exports.observer.unmounted(call.transport.peer_address, "")

    async def export(self, call: Call, arguments: None) -> list[exportnode]:
        """Every export of NFSv3 with the clients it is for (section 5.2.5), to every host that any of them is for."""
        return [
            exportnode(os.fsencode(export.pseudo), [groupnode(_name(client)) for client in export.clients])
            for export in self._exports.exports
            if export.versions & V3
        ]


def _flavors(ways: tuple[str, ...]) -> list[int]:
    """As clients are told, the strongest first. AUTH_NONE is told only where there is no other: to Linux's client it
    means that any flavor will do."""
    return [_FLAVORS[way] for way in ways if way != "none"] or [AUTH_NONE]


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")[:MNTNAMLEN]


def mount3_program(service: FileService, exports: ExportTable, mounts: MountList | None = None) -> Program:
    """The MOUNT program for the dispatcher."""
    mount = MountService(service, exports, MountList() if mounts is None else mounts)
    return Program(
        MOUNT_PROGRAM,
        "mount",
        {
            MOUNT_V3: {
                MOUNTPROC3_NULL: Procedure("NULL", mount.null),
                MOUNTPROC3_MNT: Procedure("MNT", mount.mnt, dirpath, mountres3, open=True),
                MOUNTPROC3_DUMP: Procedure("DUMP", mount.dump, None, mount_list),
                MOUNTPROC3_UMNT: Procedure("UMNT", mount.umnt, dirpath),
                MOUNTPROC3_UMNTALL: Procedure("UMNTALL", mount.umntall),
                MOUNTPROC3_EXPORT: Procedure("EXPORT", mount.export, None, exports_list),
            }
        },
    )
