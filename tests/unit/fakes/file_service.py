"""A file service in memory, for tests of the procedures above it: real enough to serve, and easy to make fail.

It knows names, data, attributes and clock ticks; permissions, the kernel's part, it does not check. ``failures`` makes
the next call of a method raise.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from nfsd.exports import Export, ExportTable
from nfsd.vfs.absent import Absent
from nfsd.vfs.types import (
    Attributes,
    BadHandle,
    Change,
    Credential,
    FileSystemStatus,
    FileType,
    PathLimits,
    SetAttributes,
    Stability,
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
        self.cookies: dict[bytes, int] = {}
        self.data = bytearray()
        self.target = b""
        self.mode = 0o755 if kind == FileType.DIR else 0o644
        self.uid = self.gid = 0
        self.nlink = 2 if kind == FileType.DIR else 1
        self.rdev = (0, 0)
        self.gone = False
        self.verifier: bytes | None = None
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


class FakeOpenFile:
    def __init__(self, node: FakeNode, readable: bool, writable: bool) -> None:
        self.node = node
        self.readable = readable
        self.writable = writable

    def release(self) -> None:
        self.node.service.open_count -= 1


class FakeFileService:
    def __init__(self, exports: ExportTable) -> None:
        self.absent: dict[int, Absent] = {}
        self.exports = exports
        self.write_verifier = b"verifier"
        self.open_count = 0
        self.failures: dict[str, list[BaseException]] = {}
        self.credentials: list[Credential] = []
        self.commits: list[tuple[int, int]] = []
        self.short_write: int | None = None
        self.link_max = 32000
        self._seconds = 1_700_000_000
        self._fileid = 1
        self._nodes: dict[bytes, FakeNode] = {}
        self.roots = {export.id: self._new(export, FileType.DIR, None) for export in exports.exports}

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

    async def set_attributes(
        self,
        credential: Credential,
        node: FakeNode,
        changes: SetAttributes,
        *,
        guard_ctime: Any = None,
        opened: Any = None,
    ) -> Change:
        self._enter("set_attributes", credential)
        before = node.attributes()
        if guard_ctime is not None and guard_ctime != node.ctime:
            raise error(errno.EAGAIN)
        self._apply(node, changes)
        return Change(before, node.attributes())

    @staticmethod
    def _apply(node: FakeNode, changes: SetAttributes) -> None:
        node.touch()
        for name in ("mode", "uid", "gid"):
            if getattr(changes, name) is not None:
                setattr(node, name, getattr(changes, name))
        for name in ("atime", "mtime"):
            wanted = getattr(changes, name)
            if isinstance(wanted, Time):
                setattr(node, name, wanted)
        if changes.size is not None:
            node.data = node.data[: changes.size].ljust(changes.size, b"\0")

    async def access(self, credential: Credential, node: FakeNode) -> int:
        self._enter("access", credential)
        return 0x1F if node.type == FileType.DIR else 0x2D

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

    async def open(
        self, credential: Credential, node: FakeNode, *, read: bool, write: bool, owner_override: bool = True
    ) -> FakeOpenFile:
        self._enter("open", credential)
        if node.type == FileType.DIR:
            raise error(errno.EISDIR)
        if node.type == FileType.LNK:
            raise error(errno.ELOOP)
        if node.type != FileType.REG:
            raise error(errno.EINVAL)
        self.open_count += 1
        return FakeOpenFile(node, read, write)

    async def read(self, opened: FakeOpenFile, offset: int, sink: memoryview) -> tuple[int, bool]:
        self._enter("read")
        data = opened.node.data[offset : offset + len(sink)]
        sink[: len(data)] = data
        return len(data), offset + len(data) >= len(opened.node.data)

    async def write(
        self, opened: FakeOpenFile, offset: int, source: memoryview, stability: Stability
    ) -> tuple[int, Stability, Change]:
        self._enter("write")
        node = opened.node
        before = node.attributes()
        data = bytes(source[: self.short_write])
        node.data[len(node.data) : offset] = bytes(max(0, offset - len(node.data)))
        node.data[offset : offset + len(data)] = data
        node.touch()
        return len(data), stability, Change(before, node.attributes())

    async def commit(self, credential: Credential, node: FakeNode, offset: int, count: int) -> Change:
        self._enter("commit")
        self.commits.append((offset, count))
        return Change(node.attributes(), node.attributes())

    async def create(
        self, credential: Credential, directory: FakeNode, name: bytes, attributes: SetAttributes, *,
        exclusive: bool = False, verifier: bytes | None = None,
    ) -> tuple[FakeNode, Attributes, Change, bool]:  # fmt: skip
        self._enter("create", credential)
        self._directory(directory)
        existing = directory.children.get(name)
        if existing is not None:
            if existing.type != FileType.REG or (exclusive and (verifier is None or existing.verifier != verifier)):
                raise error(errno.EEXIST)
            before = directory.attributes()
            if not exclusive and attributes.size is not None:
                self._apply(existing, SetAttributes(size=attributes.size))
            return existing, existing.attributes(), Change(before, before), False
        node, made, change = self._make(directory, name, FileType.REG, attributes)
        node.verifier = verifier
        return node, made, change, True

    def _make(
        self, directory: FakeNode, name: bytes, kind: FileType, attributes: SetAttributes
    ) -> tuple[FakeNode, Attributes, Change]:
        self._directory(directory)
        if len(name) > 255:
            raise error(errno.ENAMETOOLONG)
        if name in directory.children:
            raise error(errno.EEXIST)
        before = directory.attributes()
        node = self._new(directory.export, kind, directory)
        self._apply(node, attributes)
        self._bind(directory, name, node)
        return node, node.attributes(), Change(before, directory.attributes())

    @staticmethod
    def _bind(directory: FakeNode, name: bytes, node: FakeNode) -> None:
        directory.children[name] = node
        directory.cookies[name] = 100 + node.service.next_fileid()
        directory.touch()

    async def mkdir(
        self, credential: Credential, directory: FakeNode, name: bytes, attributes: SetAttributes
    ) -> tuple[FakeNode, Attributes, Change]:
        self._enter("mkdir", credential)
        return self._make(directory, name, FileType.DIR, attributes)

    async def symlink(
        self, credential: Credential, directory: FakeNode, name: bytes, target: bytes, attributes: SetAttributes
    ) -> tuple[FakeNode, Attributes, Change]:
        self._enter("symlink", credential)
        node, _, change = self._make(directory, name, FileType.LNK, attributes)
        node.target = target
        return node, node.attributes(), change

    async def mknod(
        self, credential: Credential, directory: FakeNode, name: bytes, type_: int, rdev: tuple[int, int],
        attributes: SetAttributes,
    ) -> tuple[FakeNode, Attributes, Change]:  # fmt: skip
        self._enter("mknod", credential)
        node, _, change = self._make(directory, name, FileType(type_), attributes)
        node.rdev = rdev
        return node, node.attributes(), change

    async def remove(
        self, credential: Credential, directory: FakeNode, name: bytes, *, directory_wanted: bool | None
    ) -> Change:
        self._enter("remove", credential)
        node = self._child(directory, name)
        if directory_wanted is True and node.type != FileType.DIR:
            raise error(errno.ENOTDIR)
        if directory_wanted is False and node.type == FileType.DIR:
            raise error(errno.EISDIR)
        if node.children:
            raise error(errno.ENOTEMPTY)
        before = directory.attributes()
        del directory.children[name]
        node.nlink -= 1
        node.gone = node.type == FileType.DIR or node.nlink == 0
        directory.touch()
        return Change(before, directory.attributes())

    async def rename(
        self, credential: Credential, source: FakeNode, name: bytes, target: FakeNode, new_name: bytes
    ) -> tuple[Change, Change]:
        self._enter("rename", credential)
        node = self._child(source, name)
        existing = target.children.get(new_name)
        if existing is not None and existing.children:
            raise error(errno.ENOTEMPTY)
        before = source.attributes(), target.attributes()
        del source.children[name]
        source.touch()
        self._bind(target, new_name, node)
        return Change(before[0], source.attributes()), Change(before[1], target.attributes())

    async def link(
        self, credential: Credential, node: FakeNode, directory: FakeNode, name: bytes
    ) -> tuple[Attributes, Change]:
        self._enter("link", credential)
        self._directory(directory)
        if name in directory.children:
            raise error(errno.EEXIST)
        before = directory.attributes()
        self._bind(directory, name, node)
        node.nlink += 1
        node.touch()
        return node.attributes(), Change(before, directory.attributes())
