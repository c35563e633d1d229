import asyncio
import collections
import enum
from collections import OrderedDict
from typing import Any

from nfsd.vfs.records import OpenFile
from rpcrdma.parts import Part

class Bound(enum.Enum):
    """Which bound is met."""

    HOST_IN_EXPORT = "host_in_export"
    HOST = "host"
    EXPORT = "export"
    ALL = "all"

class Share:
    """What one host has open of one export."""

    def __init__(self, shares: Places, host: Host, lane: int, whole_lane: Lane) -> None: ...
    @property
    def shares(self) -> Any: ...
    @property
    def host(self) -> Host: ...
    @property
    def lane(self) -> int: ...
    @property
    def whole_lane(self) -> Lane: ...
    @property
    def in_use(self) -> int: ...
    @property
    def guests(self) -> int:
        """Descriptors that it keeps open too, in places of others."""

    @property
    def leaving(self) -> int:
        """Those that are about to close: because others want their places, or once they are synchronised."""

    @property
    def cached(self) -> OrderedDict[OpenFile, None]:
        """Those in the cache that no client keeps open; the ones used lately are not first."""

    @property
    def waiters(self) -> collections.deque[asyncio.Future[None]]: ...
    def give_back(self) -> None:
        """A descriptor is closed, or was not opened after all: somebody else may have the place."""

    def remember(self, opened: OpenFile) -> None:
        """One is in the cache, and may close when somebody wants its place."""

    def forget(self, opened: OpenFile) -> None:
        """It is in use by clients, or in the cache no more. Idempotent."""

    def leaves(self, opened: OpenFile) -> None:
        """One is about to close."""

    def left(self) -> None:
        """That one is closed."""

class Network(Part[Network]):
    """What hosts have open that are in one network."""

    def __init__(self, key: str, parent: Network | None, floor: int = 1) -> None: ...
    @property
    def queue(self) -> OrderedDict[Any, None]:
        """Networks and hosts in it, or shares of a host, with waiters."""

class Host(Network):
    """One client. Those that have had something in the cache are found by how much they have."""

    def __init__(self, key: str, parent: Network) -> None: ...
    @property
    def guests(self) -> int: ...
    @property
    def lanes(self) -> dict[int, Share]: ...
    @property
    def in_use(self) -> int:
        """Places that it has."""

    @property
    def is_bare(self) -> bool:
        """Whether it has nothing in the cache."""

class Lane:
    """What all hosts have open of one export."""

    @property
    def in_use(self) -> int: ...

class Places:
    """All places, as far as they are free or change hands: base of :class:`~nfsd.vfs.shares.Shares`, which says what happens
    at bounds (``at_a_bound``, ``is_full``), and to those who wait (``serve``)."""

    exports: int
    """How many there are; one alone may have everything."""
    leaving: int
    waiting: int
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Without arguments."""

    def set_bounds(self, limit: int, host_limit: int, plenty: int) -> None:
        """Let there be so many places, and so many for one host. As long as fewer than ``plenty`` are taken, nobody can have
        met a bound."""

    @property
    def _hosts(self) -> dict[str, Host]: ...
    @property
    def _lanes(self) -> dict[int, Lane]: ...
    @property
    def _plenty(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def host_limit(self) -> int: ...
    @property
    def everybody(self) -> Network: ...
    @property
    def in_use(self) -> int:
        """All places that are taken."""

    def has_room(self, host: str, lane: int) -> bool:
        """Whether there is a place now."""

    def at_once(self, host: str, lane: int) -> Share | None:
        """A place, if there is one now; nothing waits here, and nobody is overtaken."""

    def take(self, opened: OpenFile, host: str) -> bool:
        """Take a count of an open file in the cache; if nobody else has one, its place is charged to ``host``. False:
        there is no such place now, or the host has as many as it may, and nothing is taken."""

    def hold(self, opened: OpenFile, host: str) -> None:
        """A client of this host keeps it open from now on, whoever else does: to be ended by ``let``."""

    def let(self, opened: OpenFile, host: str) -> None:
        """It does so no more. If it had the place, another host does that keeps it open."""

    def drop(self, share: Share) -> None:
        """Forget who has nothing and wants nothing."""

    def _share(self, key: str, lane: int) -> Share: ...
    def _charge(self, share: Share) -> Share: ...

def held_by(opened: OpenFile, host: str) -> OpenFile:
    """The open file, with one count more, for a client of this host, which keeps it open for as long as it likes."""

def let_by(opened: OpenFile, host: str) -> None:
    """Drop one count of a client's of this host."""

def oldest_idle(table: OrderedDict[OpenFile, None], lane: int | None) -> OpenFile | None:
    """The first of a table that nobody holds, of this export (None: any), and that need not be synchronised; otherwise
    the first that nobody holds. None if there is none among the first few."""

def idle_within(share: Share, bound: Bound, everything: OrderedDict[OpenFile, None]) -> OpenFile | None:
    """One that nobody holds and whose place is within a bound that ``share`` has met: at a host's own bounds one of its
    own, of this export first, otherwise of those who have most, or at last any of ``everything``."""
