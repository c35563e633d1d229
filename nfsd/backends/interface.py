"""The contract of a backend: what a store does for the file service.

Declarations only; imports the vocabulary and the records of :mod:`nfsd.vfs`.

What is common is not a backend's: handles and their MACs, the table of nodes, turns on a file, the change attribute,
fsyncs that many calls share, squash, read-only exports, and the accounts of what clients keep open. The file service
does these around each call of a backend. So a backend may rely on this:

* Changes of one file (:class:`Made`) come one at a time. READs and looks may come meanwhile.
* What is not allowed on the export (a change on a read-only one, a file opened for reading that is to be written) does
  not come at all. What the caller may do with the file is for the backend to check, as ``credential``; None is the
  server itself.
* Sizes and offsets have been checked against the kernel's (``OFFSET_MAX``), and names of attributes are not empty.
* What a file system has not (:class:`Features`) is not asked for.

And every backend keeps to this:

* All methods are called on the event loop's thread, and must not block it. A caller may be cancelled; buffers that were
  handed in are not used any more when a method has ended, and what was opened on the way is closed.
* Errors are OSError with an errno, the one that local processes would get.
* A look is the octets of a ``struct statx`` (statx(2)), since native code reads it. A store that counts each file's
  changes itself, whoever makes them, over restarts, puts that count where the mask says COUNTED (at COUNT_AT, 8
  octets): it is the change attribute then. Otherwise that is made from ctime.

A :class:`Backend` is of file systems of the kernel. Their files have descriptors, and :mod:`nfsd.vfs` opens, reads,
writes and names these itself, most of it natively. A :class:`Store` is a backend of anything else. It has names, data
and keys as well. Its files have no descriptors, which is the flag that native code sees. A *key* is what a store calls
a file: at most KEY_MAX octets, the same as long as the file exists, whatever its name is. It goes into file handles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from nfsd.vfs.mounts import Mount
from nfsd.vfs.posix_acl import Acls
from nfsd.vfs.records import Credential, Node, OpenFile
from nfsd.vfs.stored_files import StoredDirectories
from nfsd.vfs.types import Features as Features
from nfsd.vfs.types import FileSystemStatus, FileType, LocalLock, OwnerQuota, PathLimits, SetAttributes

KEY_MAX: Final = 40
"""Octets of a key: those that a handle has for the kernel's (:mod:`nfsd.vfs.handles`)."""
COUNTED: Final = 0x40000000
"""In the mask of a look (stx_mask): it tells the store's own count of changes. The kernel keeps this bit to itself."""
COUNT_AT: Final = 248
"""Where in a look that is, in the spare octets at its end."""


class Made(NamedTuple):
    """A change of a file that has been made, and looks at the file around it, with nothing of ours in between."""

    before: bytearray
    after: bytearray
    octets: int = 0
    """How many were copied, where that is what was done."""


class Extents(NamedTuple):
    """Where data and holes begin in a file, as seen at one moment."""

    size: int
    """Of the file."""
    data: int | None
    """Where the next data is; None: there is none up to the end."""
    hole: int | None
    """Where the next hole is; None: there is none, nor the one that is behind every file."""


class FileStore(Protocol):
    """Files: attributes, permissions, links."""

    async def look(self, node: Node) -> bytearray:
        """A look at a file now. Of a file that was removed, its link count is 0."""

    async def permissions(self, credential: Credential | None, node: Node, asked: int) -> int:
        """Which of R_OK, W_OK and X_OK (access(2)) a caller has, of those ``asked`` for."""

    async def readlink(self, credential: Credential, node: Node) -> bytes:
        """A symbolic link's text."""

    async def in_snapshot(self, node: Node) -> bool:
        """Whether a file that has just been opened is a snapshot's, so that nobody can change it."""

    def in_snapshot_at_once(self, node: Node) -> bool | None:
        """The same; None: that would have to be waited for."""


class FileSystemStore(Protocol):
    """File systems."""

    async def features(self, mount: Mount) -> Features:
        """What files there can have. Asked once."""

    async def status(self, node: Node) -> FileSystemStatus:
        """Space of the file system a file is on."""

    async def limits(self, node: Node, look: bytearray) -> PathLimits:
        """What names and times can be there; ``look``: at the file. What is one of the features is left out."""


class XattrStore(Protocol):
    """Extended attributes of regular files and directories, without the prefix that the kernel has for them."""

    async def get_xattr(self, credential: Credential, node: Node, name: bytes) -> bytes:
        """An attribute's value. ENODATA when there is none of that name, ENAMETOOLONG when there can be none."""

    async def list_xattrs(self, credential: Credential, node: Node) -> list[bytes]:
        """The names of all, in no order. EACCES for who may not read the file."""

    async def set_xattr(self, credential: Credential, node: Node, name: bytes, value: bytes, flags: int) -> Made:
        """Set one. EEXIST if it is there and ``flags`` has XATTR_CREATE; ENODATA if it is not, with XATTR_REPLACE.
        E2BIG, ENOSPC for values that are not taken."""

    async def remove_xattr(self, credential: Credential, node: Node, name: bytes) -> Made:
        """Remove one. ENODATA when there is none of that name."""


class AclStore(Protocol):
    """Access control lists and security labels, for reading: they are set with the other attributes."""

    async def acls(self, node: Node) -> Acls:
        """A file's ACLs; what stands in the mode alone is an ACL too. Needs no permission."""

    async def label(self, node: Node) -> bytes:
        """A file's security label, empty if it has none."""


class SpaceStore(Protocol):
    """Space and holes."""

    async def allocate(self, opened: OpenFile, offset: int, length: int) -> Made:
        """Reserve space for a range; the file grows to its end. EINVAL for an empty range, EOPNOTSUPP, ENOSPC."""

    async def deallocate(self, opened: OpenFile, offset: int, length: int) -> Made:
        """Make a range read as zeros, and free its space; the size stays. EINVAL for an empty range, EOPNOTSUPP."""

    async def extents(self, opened: OpenFile, offset: int) -> Extents:
        """Where data and holes begin, from ``offset`` on."""

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> int:
        """Read into ``sink``. Returns how many octets, 0 at the end of the file."""

    async def advise(self, opened: OpenFile, offset: int, length: int, *, needed: bool) -> None:
        """A range (``length`` 0: to the end of the file) will be needed soon, or will not. It may begin to come to
        memory, but that is not waited for."""


class CopyStore(Protocol):
    """Copies and clones of ranges between open files."""

    async def copy(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """Copy ``count`` octets or fewer, as ``target``'s caller. EXDEV, EINVAL, EOPNOTSUPP or ENOSYS where the store
        cannot: then ``copy_through`` is called."""

    async def copy_through(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """The same, the octets going through this process; ``count`` is small enough to be held in memory."""

    async def clone(self, source: OpenFile, at: int, target: OpenFile, to: int, count: int) -> Made:
        """Make a range of the target share the source's blocks, at once; ``count`` 0 reaches to the source's end.
        EOPNOTSUPP where the file system cannot, EXDEV between two, EINVAL for what is not on its blocks."""


class LockStore(Protocol):
    """Byte-range locks towards processes other than the server, held by an open file. They go when it is closed."""

    async def lock(self, opened: OpenFile, start: int, length: int, *, exclusive: bool) -> None:
        """Hold a range (``length`` 0: to the end of the file, however it grows), in place of what was held there.
        EAGAIN or EACCES when somebody else holds it. Does not wait for it."""

    async def unlock(self, opened: OpenFile, start: int, length: int) -> None:
        """Give a range up."""

    async def test_lock(self, opened: OpenFile, start: int, length: int, *, exclusive: bool) -> LocalLock | None:
        """The lock that would stand in the way, or None."""


class QuotaStore(Protocol):
    """Quotas, for reading. Keeping them is the store's: whoever is beyond gets EDQUOT."""

    async def quotas(
        self, mount: Mount, uid: int, gid: int, kinds: tuple[int, ...]
    ) -> list[tuple[int, OwnerQuota | None]]:
        """For each kind (0: the user's, 1: the group's) an errno, ESRCH when this one has none, or 0 and the quota."""


class Backend(Protocol):
    """A store."""

    @property
    def files(self) -> FileStore:
        """Files."""

    @property
    def file_systems(self) -> FileSystemStore:
        """File systems."""

    @property
    def xattrs(self) -> XattrStore:
        """Extended attributes."""

    @property
    def acls(self) -> AclStore:
        """ACLs and labels."""

    @property
    def space(self) -> SpaceStore:
        """Space and holes."""

    @property
    def copies(self) -> CopyStore:
        """Copies and clones."""

    @property
    def locks(self) -> LockStore:
        """Byte-range locks."""

    @property
    def quota(self) -> QuotaStore:
        """Quotas."""


# -- stores without descriptors ------------------------------------------------------------------------------------
class Found(NamedTuple):
    """A file, and a look at it."""

    key: bytes
    look: bytearray


class New(NamedTuple):
    """What a new file is to be; the caller's umask has been taken from ``mode``."""

    type: FileType
    mode: int
    text: bytes = b""
    """Of a symbolic link."""
    rdev: tuple[int, int] = (0, 0)


class Named(NamedTuple):
    """A name that has been made or removed: looks at the directory around that, and the file after it."""

    before: bytearray
    after: bytearray
    file: Found


class Renamed(NamedTuple):
    """A rename that has been made."""

    source: Made
    target: Made
    replaced: Found | None
    """What the new name was of before, as it is now."""
    happened: bool
    """False: both names were of one file, and nothing was to be done (RFC 8881 section 18.26.3)."""


class Entry(NamedTuple):
    """A directory's entry."""

    name: bytes
    cookie: int
    """Where to go on behind it: 3 to 2**63 - 1, the same as long as the entry exists."""
    fileid: int
    key: bytes
    look: bytearray | None
    """None: there is none, for ``error``."""
    error: int = 0


class Write(NamedTuple):
    """What is to be written to a file."""

    opened: OpenFile
    offset: int
    data: memoryview


class NameStore(Protocol):
    """Names. Those that are looked up or made are single components. Changes of one directory come one at a time; a
    rename has its turn in both."""

    async def root(self) -> Found:
        """The root directory."""

    async def find(self, key: bytes) -> bytearray:
        """A look at the file with this key. ESTALE when there is none."""

    async def lookup(self, credential: Credential | None, directory: Node, name: bytes) -> Found:
        """What a name leads to; it is not ``.`` or ``..``."""

    async def parent(self, credential: Credential | None, directory: Node) -> Found:
        """The directory above; of the root, the root."""

    async def make(self, credential: Credential, directory: Node, name: bytes, new: New) -> Named:
        """Make a file. EEXIST when the name is taken."""

    async def remove(self, credential: Credential, directory: Node, name: bytes, *, a_directory: bool) -> Named:
        """Remove a name, which must be a directory's (ENOTDIR, ENOTEMPTY) or not (EISDIR)."""

    async def rename(self, credential: Credential, source: Node, name: bytes, target: Node, new_name: bytes) -> Renamed:
        """Rename; the new name may be taken (EISDIR, ENOTDIR, ENOTEMPTY)."""

    async def link(self, credential: Credential, node: Node, directory: Node, name: bytes) -> Named:
        """A further name for a file that is no directory. EEXIST; EMLINK, EOPNOTSUPP."""

    async def entries(
        self, credential: Credential, directory: Node, cookie: int, most: int, *, looks: bool
    ) -> list[Entry]:
        """Up to ``most`` entries behind a cookie (0: from the start), without ``.`` and ``..``; none: that was all.
        Without ``looks`` none are needed."""


class WorkedNameStore(NameStore, Protocol):
    """What is ``names`` of few stores."""

    @property
    def native(self) -> StoredDirectories:
        """Where workers look names up, make regular files and remove names themselves, as :meth:`lookup`, :meth:`make`
        and :meth:`remove` would. The store is ``shared``, so that nothing is delegated. A sync of a directory has the
        files on disk, too, that were made in it so."""


class DataStore(Protocol):
    """What is in files, and their attributes."""

    async def open(self, credential: Credential | None, node: Node, access: int) -> object:
        """A caller is about to read (1), write (2) or both (3). EACCES. Until :meth:`closed` has been told as often,
        the file can be used, even without a name. Returns what the store likes: it is ``opened.stored`` meanwhile. What
        is a :class:`nfsd.vfs.stored_files.StoredFile` workers read and write for clients, and never :meth:`read` and
        :meth:`write`, which are for copies then."""

    def closed(self, node: Node, stored: object) -> None:
        """One that was opened, for which this was returned, is closed."""

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> tuple[int, bytearray]:
        """Read into ``sink``. Returns how many octets (fewer than asked for at the end of the file only), and a look at
        the file afterwards."""

    async def write(self, opened: OpenFile, offset: int, data: memoryview) -> Made:
        """Write, as ``opened.credential``. Returns the octets written."""

    async def sync(self, node: Node) -> None:
        """What has been done to the file so far, or to the directory's names, outlasts a crash."""

    async def set_attributes(self, credential: Credential | None, node: Node, changes: SetAttributes) -> Made:
        """Set attributes, all or none. Whether this caller may set the size has been checked. None: the server
        itself."""


class TrainStore(DataStore, Protocol):
    """Of files that are no :class:`nfsd.vfs.stored_files.StoredFile`."""

    async def write_all(self, writes: Sequence[Write]) -> list[Made | Exception]:
        """Write to one file, one behind the other, whatever becomes of each."""


class Store(Backend, Protocol):
    """A backend of files without descriptors."""

    @property
    def identity(self) -> bytes:
        """What the store is called, as long as its keys are of the same files, over restarts of the server."""

    @property
    def shared(self) -> bool:
        """Whether others, further servers among them, change the same files and the store does not tell of it. Nothing
        is delegated to clients then, whatever the configuration says: nobody could recall it in time."""

    @property
    def names(self) -> NameStore:
        """Names."""

    @property
    def data(self) -> DataStore:
        """Data and attributes."""

    def close(self) -> None:
        """It is not used any more. Does not wait."""
