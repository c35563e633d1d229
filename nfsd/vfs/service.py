"""The file service: every operation on local files, asynchronous, under the caller's credential.

Owns open descriptors and their caches. Imports the executor and :mod:`nfsd.vfs.types`; knows nothing of NFS versions.
Methods raise OSError (the errno is the kernel's) unless they say more. ``credential`` is the caller after squash.
"""

from __future__ import annotations

from typing import Protocol

from nfsd.exports import Export, ExportTable
from nfsd.vfs.types import (
    Attributes,
    Change,
    Credential,
    DirectoryPage,
    FileSystemStatus,
    FileType,
    LocalLock,
    PathLimits,
    SetAttributes,
    Stability,
)


class Node(Protocol):
    """One file, found by handle or name. Nodes of one file are the same object while anyone holds it."""

    handle: bytes
    """The NFS file handle: at most 64 octets, authenticated, the same over restarts and renames."""
    export: Export
    type: FileType
    key: bytes
    """Identity of the file for state tables: the same for all names and exports of it; hashable, comparable."""


class OpenFile(Protocol):
    """A descriptor open under one credential for one access; shared, counted."""

    node: Node
    readable: bool
    writable: bool

    def retain(self) -> OpenFile:
        """Add one count; returns itself."""

    def release(self) -> None:
        """Drop one count."""


class FileService:
    """Operations on the files of all exports."""

    write_verifier: bytes
    """8 octets, new at each start of the server (RFC 1813 section 3.3.7)."""

    def __init__(self, exports: ExportTable, state_dir: str) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Open the export roots and the handle key in ``state_dir``. Raises OSError naming the path."""

    async def close(self) -> None:
        """Finish running jobs, close every descriptor."""

    # -- finding files -------------------------------------------------------------------------------------------
    async def resolve(self, handle: bytes) -> Node:
        """The file of a handle. Raises BadHandle; OSError(ESTALE) when the file or its export is gone."""

    async def root(self, export: Export) -> Node:
        """The export's root directory."""

    async def lookup(self, credential: Credential, directory: Node, name: bytes) -> tuple[Node, Attributes]:
        """One name. ``.`` and ``..`` are taken; ``..`` of an export's root is the root itself. Slashes, NUL and
        empty names raise OSError(EINVAL); mount points follow the export's policy (CrossingRefused)."""

    async def readdir(
        self, credential: Credential, directory: Node, cookie: int, *, limit: int, plus: bool
    ) -> DirectoryPage:
        """Entries after ``cookie`` (0 = from the start), at most ``limit``, with ``.`` and ``..`` left in (names
        ``b"."``, ``b".."``); ``plus`` adds handles and attributes. Raises OSError(EINVAL) for a cookie not ours."""

    async def parent(self, credential: Credential, directory: Node) -> Node | None:
        """The parent directory; None at the export's root (LOOKUPP, which then continues in the pseudo file system)."""

    # -- attributes ----------------------------------------------------------------------------------------------
    async def attributes(self, node: Node) -> Attributes:
        """Attributes now. ESTALE when the file is gone."""

    async def set_attributes(
        self,
        credential: Credential,
        node: Node,
        changes: SetAttributes,
        *,
        guard_ctime: tuple[int, int] | None = None,
        opened: OpenFile | None = None,
    ) -> Change:
        """Set attributes, size first, durably. With ``guard_ctime`` unequal to the file's: OSError(EAGAIN) and nothing
        done. A size set through ``opened`` (or by the owner) needs no write permission in the mode."""

    async def access(self, credential: Credential, node: Node) -> int:
        """What the kernel would let this caller do: bits of ACCESS3_* (the same as ACCESS4_*), all six computed."""

    async def readlink(self, credential: Credential, node: Node) -> bytes:
        """The link's text. EINVAL when it is no link."""

    async def status(self, node: Node) -> FileSystemStatus:
        """Space of the file system the node is on."""

    async def limits(self, node: Node) -> PathLimits:
        """What names and times can be on the file system the node is on."""

    # -- data ----------------------------------------------------------------------------------------------------
    async def open(self, credential: Credential, node: Node, *, read: bool, write: bool) -> OpenFile:
        """A descriptor from the cache or a new one (count taken; release it). NFS's own rules hold: the owner may read
        and write despite the mode, execute permission suffices to read (RFC 1813 section 4.4). EROFS on a read-only
        export, EISDIR for directories, EINVAL for other non-regular files (symbolic links: ELOOP)."""

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> tuple[int, bool]:
        """Fill ``sink`` from ``offset``. Returns octets read and whether the end of file was reached."""

    async def write(
        self, opened: OpenFile, offset: int, source: memoryview, stability: Stability
    ) -> tuple[int, Stability, Change]:
        """Write. Returns octets written (all, or fewer when the disk filled up after some), the stability reached,
        and attributes around it. EFBIG past the file system's largest size."""

    async def commit(self, node: Node, offset: int, count: int) -> Change:
        """Put the file's data and attributes on stable storage; waiting calls share one fsync. EIO, ENOSPC, EDQUOT of
        earlier write-back are reported here, once per opener, and change the write verifier."""

    # -- the name space; each durable before it returns, unless the export says async ----------------------------
    async def create(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        attributes: SetAttributes,
        *,
        exclusive: bool = False,
        verifier: bytes | None = None,
    ) -> tuple[Node, Attributes, Change, bool]:
        """Create a regular file. Returns (file, its attributes, the directory's change, whether it is new).

        Without ``exclusive`` an existing regular file is returned, size set if asked (UNCHECKED). With it an
        existing one raises EEXIST (GUARDED), unless ``verifier`` (8 octets) is that of its creation (EXCLUSIVE: kept
        durably with the file until its first SETATTR, as knfsd does in atime and mtime)."""

    async def mkdir(
        self, credential: Credential, directory: Node, name: bytes, attributes: SetAttributes
    ) -> tuple[Node, Attributes, Change]:
        """Create a directory."""

    async def symlink(
        self, credential: Credential, directory: Node, name: bytes, target: bytes, attributes: SetAttributes
    ) -> tuple[Node, Attributes, Change]:
        """Create a symbolic link."""

    async def mknod(
        self,
        credential: Credential,
        directory: Node,
        name: bytes,
        type_: int,
        rdev: tuple[int, int],
        attributes: SetAttributes,
    ) -> tuple[Node, Attributes, Change]:
        """Create a device, socket or FIFO (``type_``: a FileType)."""

    async def remove(
        self, credential: Credential, directory: Node, name: bytes, *, directory_wanted: bool | None
    ) -> Change:
        """Remove a name: True only a directory (ENOTDIR, ENOTEMPTY), False never one (EISDIR), None either."""

    async def rename(
        self, credential: Credential, source: Node, name: bytes, target: Node, new_name: bytes
    ) -> tuple[Change, Change]:
        """Rename; both directories' changes. EXDEV across exports or file systems."""

    async def link(self, credential: Credential, node: Node, directory: Node, name: bytes) -> tuple[Attributes, Change]:
        """A further name. Returns the file's attributes and the directory's change."""

    # -- byte-range locks against local processes (OFD locks; all NFS owners together count as one local owner) ----
    async def set_local_lock(self, node: Node, start: int, length: int, *, exclusive: bool) -> None:
        """Hold this range towards local processes (replacing what was held there). EAGAIN: one of them holds it."""

    async def clear_local_lock(self, node: Node, start: int, length: int) -> None:
        """Give the range up towards local processes."""

    async def test_local_lock(self, node: Node, start: int, length: int, *, exclusive: bool) -> LocalLock | None:
        """The local process's lock that would stand in the way, or None."""
