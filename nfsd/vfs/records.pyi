"""The hot records of the file service. Implemented in ``records.pyx``; the tables of them are Python."""

from collections.abc import Callable, Iterable
from typing import Self

from nfsd.exported import Export
from nfsd.vfs.change import ChangeRecord
from nfsd.vfs.leases import Lease
from nfsd.vfs.locks import HeldLocks
from nfsd.vfs.mounts import Mount
from nfsd.vfs.open_accounts import Share
from nfsd.vfs.open_files import OpenKey
from nfsd.vfs.serial import Serial
from nfsd.vfs.syncing import GroupSync
from nfsd.vfs.types import FileType
from nfsd.vfs.write_back import WriteBack

NO_DESCRIPTOR: int
"""In the place of the descriptor of a node, or of an open file, of a store that has none."""

class Credential:
    """Whom an operation runs as, after the export's squash rules. The kernel does the checking. Immutable, hashable."""

    host: str
    """The client's host, whose share what is kept open counts against. No part of who the caller is: credentials of
    the same user and groups are equal, wherever they come from."""

    umask: int
    """Bits that modes lose when the caller makes files, unless the directory has a default ACL; likewise no part of who
    the caller is."""

    uid: int
    gid: int
    gids: tuple[int, ...]
    def __init__(self, uid: int, gid: int, gids: Iterable[int] = (), host: str = "", umask: int = 0) -> None:
        """Raises OverflowError for what is no 32-bit number."""

class Inode:
    """One file, whatever the export and the name."""

    key: bytes
    serial: Serial
    change: ChangeRecord
    epoch: int
    """Grows when the file's permissions may have changed; an open file of an earlier epoch is not reused."""
    ctime: int
    """The ctime (ns) at which ``epoch`` was right."""
    opens: dict[OpenKey, OpenFile]
    unstable: list[OpenFile]
    """Those through which data was written that no fsync has covered yet (:mod:`nfsd.vfs.unstable`)."""
    used_count: int
    """Open files somebody holds: a removed file that is still open stays accessible."""
    sync: GroupSync
    accesses: dict[Credential, tuple[int, int]]
    """What each caller may do: (epoch, ACCESS3_* bits)."""
    changing: int
    """How many removals of names of it, or changes of names in it, are under way: it is not to be delegated meanwhile."""
    delegated: int
    """1 while an NFSv4 client has a read delegation of it, 2 with a write delegation, else 0: before anything is written,
    or under 2 read, outside the state of NFSv4 these must be recalled."""
    holder: object
    """The client that has it delegated, if that is only one: its own changes of names in a directory recall nothing."""
    lease: Lease | None
    """Taken for a delegation: opens of the server's own must not break it."""
    lock_serial: Serial
    locks: HeldLocks | None
    def __init__(self, key: bytes) -> None: ...
    def saw_ctime(self, ctime: int) -> None:
        """A look at the file: a ctime we did not cause means that its permissions may be other ones."""
    def wrote(self, before: int, after: int) -> None:
        """Our own change of data moved ctime from ``before`` to ``after``; permissions are what they were before."""
    def permissions_changed(self) -> None:
        """The server itself has changed owner, mode or access lists: every open file is asked for anew."""

class Node:
    """One file of one export. Its descriptor names it; it is not open for anything."""

    fd: int
    handle: bytes
    """The NFS file handle: at most 64 octets, authenticated, the same over restarts and renames."""
    mount: Mount
    export: Export
    inode: Inode
    key: bytes
    """Identity of the file for state tables: the same for all names and exports of it; hashable, comparable."""
    type: FileType
    used: int
    """The sweep during which it was last used."""
    write_back: WriteBack
    """The write verifier of the store that it is in."""
    def __init__(
        self,
        handle: bytes,
        inode: Inode,
        mount: Mount,
        fd: int,
        type_: FileType,
        close: Callable[[int, int], None],
    ) -> None:
        """``close(descriptor, lane)`` ends the descriptor."""
    def shut(self) -> None:
        """Close the descriptor: the node is of no more use."""

class OpenFile:
    """A descriptor open under one credential for one access; shared, counted."""

    fd: int
    node: Node
    share: Share
    """Where its place is, which is given back once the descriptor is closed."""
    readable: bool
    writable: bool
    credential: Credential | None
    stored: object
    """What the file's store has given when it was opened; None where there is no store."""
    count: int
    epoch: int
    """The inode's epoch at which the kernel allowed it; -1: never reused."""
    used: int
    cached: OpenKey | None
    """Under which key it stands in the cache, if it does."""
    unstable: bool
    """Whether it is among its inode's ``unstable``."""
    leaving: bool
    """Whether it is about to close: because others want its place, or once it has been synchronised."""
    holders: dict[str, int] | None
    """How many clients' opens, delegations or locks of each host keep it open (:meth:`nfsd.vfs.shares.Shares.hold`)."""
    def __init__(
        self,
        node: Node,
        fd: int,
        access: int,
        credential: Credential | None,
        close: Callable[[int, int, Callable[[], None]], None],
        share: Share,
        stored: object = None,
    ) -> None: ...
    def retain(self) -> Self:
        """Add one count; returns itself."""
    def release(self) -> None:
        """Drop one count."""
    def shut(self) -> None:
        """Close the descriptor: the open file is of no more use."""

def closed_at_once(fd: int) -> bool:
    """Close a descriptor of a file in memory, unless that may take long (then nothing is done): the last close of a
    removed file frees its space."""
