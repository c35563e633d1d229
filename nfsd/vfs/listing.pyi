"""Listing directories on native threads. Implemented in ``listing.pyx``."""

from nfsd.vfs.executor import Chain
from nfsd.vfs.handles import HandleCodec
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.recent_listing import RecentListing
from nfsd.vfs.records import Node
from nfsd.vfs.types import Credential, DirectoryEntry

OUTCOMES: dict[str, int]
"""How a turn may end, by name: ``more`` to be done; the ``end`` of the directory; the reply is ``full``, or the listing's
memory and has to ``grow``; an entry ``needs`` to be completed; ``failed`` with a status of the protocol's, or with an
``error`` number of the system's."""

def cookie_of(offset: int) -> int:
    """The cookie of a kernel offset: the same but for a shift that keeps clear of 0, 1 and 2, which NFSv3 clients and
    RFC 8881 section 18.23.3 give meanings of their own. (The largest offset, an end marker, stays positive.)"""

def offset_of(cookie: int) -> int:
    """The kernel offset of a cookie, signed as lseek takes it. Raises OSError(EINVAL)."""

class Listing:
    """One listing. Classes derived from it say what is asked for, and encode the entries."""

    def begin(self, directory: Node, status: bytearray, codec: HandleCodec, proc_fd: int, *, rooted: bool) -> None:
        """What is listed; ``status`` is its ``struct statx``. ``rooted``: it is its export's root. On a mount whose
        files are found by their places, they are :meth:`found`."""
    def go_on(self, fd: int, cookie: int, position: int | None, ahead: bytes = b"") -> None:
        """Entries behind ``cookie``, from an open directory (-1: it is opened in the first turn, as the caller);
        ``position``: where it must be put before; ``ahead``: what has been read of it already."""
    def recall(self, recent: RecentListing, nodes: NodeTable) -> None:
        """List what is remembered of the directory, as far as that goes. What is not remembered is added to it."""
    recalls: bool
    """Whether the next turn lists what is remembered, if it does not have to look at files."""
    strayed: bool
    """Whether the last turn was of that kind. The open directory is not where the listing goes on then."""
    def ahead(self) -> bytes | None:
        """What has been read of the directory that is not listed; None: more than is worth keeping."""
    def offer(
        self, name: bytes, cookie: int, fileid: int, kind: int, key: bytes, status: bytearray | None, error: int = 0
    ) -> int:
        """An entry that a store has brought, with the ``struct statx`` of its file, or the errno for which there is none.
        Returns how that has ended (:data:`OUTCOMES`); ``more``: it is in the listing, or to be left out. After 256 entries
        at most the listing is settled."""
    def fill(self, kind: int, key: bytes, status: bytearray) -> None:
        """Attributes and handle of the entry that is offered."""
    def turn(self, credential: Credential, budget: int, *, may_look: bool = True) -> Chain:
        """What makes the next turn, of ``budget`` entries or fewer, when it is run. ``may_look``: it may look at files
        that it does not remember, which can take a disk; else it ends before them."""
    def settle(self, nodes: NodeTable) -> int:
        """Finish a turn on the loop. Returns how it has ended."""
    def found(self) -> list[tuple[bytes, bytes]]:
        """The handles and names listed in the last turn."""
    def pending(self, nodes: NodeTable) -> DirectoryEntry:
        """The entry that is to be completed."""
    def add(self, octets: bytes, *, name_octets: int = 0) -> bool:
        """The completed entry's XDR, a multiple of four octets; whether there was room. ``name_octets`` are counted
        against the bound on names. Raises BufferError when memory is short (see :attr:`fits`)."""
    def skip(self) -> None:
        """The entry that is to be completed is left out."""
    def move(self, memory: memoryview) -> None:
        """Put all entries there instead, those so far as well."""
    def octets(self) -> bytes:
        """The entries' XDR."""
    used: int
    """Octets of it."""
    fits: int
    """Octets there is memory for behind them."""
    taken: int
    """Entries."""
    cookie: int
    """Of the last entry, whether it was taken or left out."""
    fd: int
    """The open directory, which belongs to the caller; -1: none."""
    across: bool
    """Whether the entry that is to be completed is on another mount."""
    error: int
    """The number of the failure or error."""

class Entries(Listing):
    """A listing for Python, of ``limit`` entries at most; ``plus``: with handles and attributes."""

    def __init__(self, limit: int, *, plus: bool) -> None: ...
    entries: list[DirectoryEntry]
    def take(self, entry: DirectoryEntry) -> None:
        """The completed entry."""
