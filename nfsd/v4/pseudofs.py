"""The pseudo file system: the directories that lead from the NFSv4 root to the exports (RFC 8881 section 7.3).

Owns the tree made of the exports' ``pseudo`` names and the handles of its directories; imports exports and the VFS's
types. A node with an export *is* that export's root; below an export's root, names of further exports shadow real ones.
A node with a referral is the root of an absent file system: clients learn where it is, and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from nfsd.exports import Export, ExportTable
from nfsd.versions import V4
from nfsd.vfs.types import Attributes, FileType, Time

PSEUDO_FSID = (0, 0)
"""No real file system has it: those of exports have a non-zero major number."""
_ABSENT = 1 << 63
"""In the minor number of an fsid; those of real file systems have a zero there, or a small device number."""
_HANDLE_VERSION = b"\xf5"
"""First octet of a pseudo handle; handles of the file service start otherwise."""


class PseudoNode:
    """One directory of the pseudo file system, or the place of an export in it."""

    __slots__ = ("children", "export", "fileid", "handle", "name", "parent", "path", "referral")

    def __init__(self, name: bytes, parent: PseudoNode | None, path: str) -> None:
        self.name = name
        self.parent = parent
        self.path = path
        self.export: Export | None = None
        self.referral: Export | None = None
        """What is absent here and present elsewhere (RFC 8881 section 11.3)."""
        self.children: dict[bytes, PseudoNode] = {}
        digest = hashlib.blake2s(path.encode(errors="surrogateescape"), digest_size=16).digest()
        # From the path alone, so that handles and file ids are the same after a restart.
        self.handle = _HANDLE_VERSION + digest
        self.fileid = int.from_bytes(digest[:7], "big") | 1

    def exports(self) -> list[Export]:
        """What is exported here and below."""
        own = [export for export in (self.export, self.referral) if export is not None]
        return own + [export for child in self.children.values() for export in child.exports()]


class PseudoFileSystem:
    """The tree. ``root`` is the NFSv4 root, which may itself be an export (``pseudo: /``)."""

    def __init__(self, exports: ExportTable, since: Time) -> None:
        self._exports = exports
        self._since = since
        self.root = PseudoNode(b"", None, "/")
        self._by_handle = {self.root.handle: self.root}
        self._by_export: dict[int, PseudoNode] = {}
        for export in exports.exports:
            node = self._place(export.pseudo)
            node.export = export
            self._by_export[export.id] = node
        for export in exports.referrals:
            self._place(export.pseudo).referral = export

    def _place(self, path: str) -> PseudoNode:
        node, so_far = self.root, ""
        for part in filter(None, path.split("/")):
            so_far += "/" + part
            name = part.encode(errors="surrogateescape")
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = PseudoNode(name, node, so_far)
                self._by_handle[child.handle] = child
            node = child
        return node

    @staticmethod
    def owns(handle: bytes) -> bool:
        """Whether this is a handle of the pseudo file system."""
        return handle[:1] == _HANDLE_VERSION

    def resolve(self, handle: bytes) -> PseudoNode | None:
        """The node of a handle; None when the exports no longer lead there."""
        return self._by_handle.get(handle)

    def of_export(self, export: Export) -> PseudoNode:
        """The place of an export."""
        return self._by_export[export.id]

    def visible(self, node: PseudoNode, peer: str, version: int = V4) -> bool:
        """Whether this client may know of the node: some export at or below it is offered to the client by this
        version."""
        for export in (node.export, node.referral):
            if export is not None and self._exports.visible(export, peer, version):
                return True
        return any(self.visible(child, peer, version) for child in node.children.values())

    def children(self, node: PseudoNode, peer: str, version: int = V4) -> Iterator[PseudoNode]:
        """The children this client may know of, in a stable order."""
        return (child for _, child in sorted(node.children.items()) if self.visible(child, peer, version))

    def attributes(self, node: PseudoNode) -> Attributes:
        """A directory anyone may read and nobody may change."""
        return Attributes(
            type=FileType.DIR,
            mode=0o555,
            nlink=2 + len(node.children),
            uid=0,
            gid=0,
            size=4096,
            used=0,
            rdev=(0, 0),
            # An absent file system has an fsid that no other has (RFC 8881 section 11.4.1).
            fsid=PSEUDO_FSID if node.referral is None else (node.referral.id << 32, _ABSENT),
            fileid=node.fileid,
            mounted_on_fileid=node.fileid,
            atime=self._since,
            mtime=self._since,
            ctime=self._since,
            birthtime=None,
            # The tree changes only with the configuration, which a start or a reload reads.
            change=self._since.seconds << 20 | self._since.nanoseconds >> 10,
        )
