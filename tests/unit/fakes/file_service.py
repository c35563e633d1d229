"""A file service in memory, for tests of the procedures above it: real enough to serve, and easy to make fail.

It knows names, attributes and clock ticks; permissions, the kernel's part, it does not check. ``failures`` makes
the next call of a method raise.
"""

from __future__ import annotations

import errno
import os

from nfsd.exports import Export, ExportTable
from nfsd.vfs.types import (
    Attributes,
    BadHandle,
    Credential,
    FileSystemStatus,
    FileType,
    PathLimits,
    Time,
)


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class FakeNode:
    def __init__(self, service: FakeFileService, export: Export, kind: FileType, parent: FakeNode | None) -> None:
        self.service = service
        self.export = export
        self.type = kind
        self.fileid = service.next_fileid()
        self.key = self.fileid.to_bytes(8, "big")
        self.handle = b"fake" + export.id.to_bytes(4, "big") + self.key + bytes(16)
        self.parent = parent or self
        self.children: dict[bytes, FakeNode] = {}
        self.data = bytearray()
        self.target = b""
        self.mode = 0o755 if kind == FileType.DIR else 0o644
        self.uid = self.gid = 0
        self.nlink = 2 if kind == FileType.DIR else 1
        self.rdev = (0, 0)
        self.gone = False
        self.fsid = (export.id, 1)
        self.change = 0
        self.atime = self.mtime = self.ctime = Time(0, 0)
        self.touch()

    def touch(self) -> None:
        self.change += 1
        self.mtime = self.ctime = self.service.tick()

    def attributes(self) -> Attributes:
        if self.gone:
            raise error(errno.ESTALE)
        size = len(self.data) or len(self.target)
        return Attributes(
            self.type, self.mode, self.nlink, self.uid, self.gid, size, (size + 511) // 512 * 512, self.rdev, self.fsid,
            self.fileid, self.fileid, self.atime, self.mtime, self.ctime, None, self.change,
        )  # fmt: skip


class FakeFileService:
    def __init__(self, exports: ExportTable) -> None:
        self.exports = exports
        self.failures: dict[str, list[BaseException]] = {}
        self.credentials: list[Credential] = []
        self.link_max = 32000
        self._seconds = 1_700_000_000
        self._fileid = 1
        self._nodes: dict[bytes, FakeNode] = {}
        self.roots = {export.id: self._new(export, FileType.DIR, None) for export in exports.exports}

    def unserved(self) -> dict[Export, str]:
        return {}

    def next_fileid(self) -> int:
        self._fileid += 1
        return self._fileid

    def tick(self) -> Time:
        self._seconds += 1
        return Time(self._seconds, 5)

    def _new(self, export: Export, kind: FileType, parent: FakeNode | None) -> FakeNode:
        node = FakeNode(self, export, kind, parent)
        self._nodes[node.handle] = node
        return node

    def _enter(self, method: str, credential: Credential | None = None) -> None:
        if credential is not None:
            self.credentials.append(credential)
        waiting = self.failures.get(method)
        if waiting:
            raise waiting.pop(0)

    async def resolve(self, handle: bytes) -> FakeNode:
        self._enter("resolve")
        if not handle.startswith(b"fake"):
            raise BadHandle
        node = self._nodes.get(handle)
        if node is None or node.gone:
            raise error(errno.ESTALE)
        return node

    async def root(self, export: Export) -> FakeNode:
        return self.roots[export.id]

    @staticmethod
    def _directory(node: FakeNode) -> None:
        if node.type != FileType.DIR:
            raise error(errno.ENOTDIR)

    def _child(self, directory: FakeNode, name: bytes) -> FakeNode:
        self._directory(directory)
        if len(name) > 255:
            raise error(errno.ENAMETOOLONG)
        if name == b".":
            return directory
        if name == b"..":
            return directory.parent
        try:
            return directory.children[name]
        except KeyError:
            raise error(errno.ENOENT) from None

    async def lookup(self, credential: Credential, directory: FakeNode, name: bytes) -> tuple[FakeNode, Attributes]:
        self._enter("lookup", credential)
        node = self._child(directory, name)
        return node, node.attributes()

    async def attributes(self, node: FakeNode) -> Attributes:
        self._enter("attributes")
        return node.attributes()

    @staticmethod
    def directory_of(root: FakeNode) -> bytes:
        return b"/real" + root.export.path.encode()

    async def readlink(self, credential: Credential, node: FakeNode) -> bytes:
        self._enter("readlink", credential)
        if node.type != FileType.LNK:
            raise error(errno.EINVAL)
        return node.target

    async def status(self, node: FakeNode) -> FileSystemStatus:
        self._enter("status")
        return FileSystemStatus(10 << 30, 5 << 30, 4 << 30, 1000, 500, 400)

    async def limits(self, node: FakeNode) -> PathLimits:
        self._enter("limits")
        return PathLimits(255, self.link_max, True, True, False, True, (1 << 44) - 4096, Time(0, 1))

    @staticmethod
    def _bind(directory: FakeNode, name: bytes, node: FakeNode) -> None:
        directory.children[name] = node
        directory.touch()
