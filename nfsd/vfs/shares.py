"""For whom files are open: places for descriptors, bounded in all, by the client's host, and by the export they are of.

Owns :class:`Shares`. A descriptor that is kept for peers (in the cache, with unstable writes, with an open or a lock of
NFSv4's or NLM's) has a place from before it is opened until it is closed. What takes one just for a moment has none.

Bounds
    All places together are part of what the process may have open (:mod:`nfsd.vfs.resources`). One host may have a
    share of them; and one export of several, whose disk may have stalled, three quarters of all, and of a host's. The
    last eighth is for hosts that have next to nothing, so that a small call of one gets in while others have all the
    rest. Callers of one user share open files whatever their hosts: who takes one that nobody holds has its place from
    then on.

Waiting
    Who finds a bound met has something in the cache closed, of his own as far as that helps, and waits for a place;
    that may take an fsync. Hosts take turns, and so do the exports of a host. A place that is given back goes to one
    waiter. Who has waited for long is told to come again (EMFILE): a client's slot or connection is worth more than its
    place in the queue.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import errno
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger

if TYPE_CHECKING:
    from nfsd.vfs.records import OpenFile

_log = limited_logger(__name__)

_RESERVE: Final = 8
"""One part in so many is for hosts that have little."""
_EXPORT: Final = 4
"""One part in so many is for the other exports."""
_LITTLE: Final = 4
"""What little is; or a sixteenth of what is left, if that is more."""
_AHEAD: Final = 16
"""One part in so many of a bound is kept free, as far as there is something to close."""
_LOOKS: Final = 16
"""Hosts that a place is offered to in vain."""
_AGAIN: Final = 0.05
"""Seconds after which those who wait have more closed: what was in use before may be idle now."""
PATIENCE: Final = 10.0
"""Seconds to wait for a place."""


class Bound(enum.Enum):
    """Which bound is met."""

    HOST_IN_EXPORT = "host_in_export"
    HOST = "host"
    EXPORT = "export"
    ALL = "all"


class Cache(Protocol):
    """Where open files are that nobody needs at the moment."""

    def let_go(self, share: Share, bound: Bound) -> bool:
        """Close one that has a place within this bound, if there is one; whether there is."""


class Share:
    """What one host has open of one export."""

    __slots__ = ("cached", "host", "in_use", "lane", "leaving", "shares", "waiters", "whole_lane")

    def __init__(self, shares: Shares, host: Host, lane: int, whole_lane: Lane) -> None:
        self.shares, self.host, self.lane, self.whole_lane = shares, host, lane, whole_lane
        self.in_use = 0
        self.leaving = 0
        """Those that are about to close: because others want their places, or once they are synchronised."""
        self.cached: OrderedDict[OpenFile, None] = OrderedDict()
        """Those in the cache; the ones used lately are not first."""
        self.waiters: collections.deque[asyncio.Future[None]] = collections.deque()

    def give_back(self) -> None:
        """A descriptor is closed, or was not opened after all: somebody else may have the place."""
        shares = self.shares
        self.in_use -= 1
        self.host.in_use -= 1
        self.whole_lane.in_use -= 1
        shares.in_use -= 1
        if shares.waiting:
            shares.serve(self.host)
        if not self.in_use:
            shares.drop(self)

    def leaves(self, opened: OpenFile) -> None:
        """One is about to close."""
        if not opened.leaving:
            opened.leaving = True
            self.leaving += 1
            self.shares.leaving += 1

    def left(self) -> None:
        """That one is closed."""
        self.leaving -= 1
        self.shares.leaving -= 1
        self.give_back()


class Host:
    """One client."""

    __slots__ = ("in_use", "key", "lanes", "queue")

    def __init__(self, key: str) -> None:
        self.key = key
        self.in_use = 0
        self.lanes: dict[int, Share] = {}
        self.queue: collections.deque[Share] = collections.deque()
        """Those with waiters."""


class Lane:
    """What all hosts have open of one export."""

    __slots__ = ("in_use",)

    def __init__(self) -> None:
        self.in_use = 0


def _but(whole: int, part: int) -> int:
    """All of it but one part in ``part``, and something in any case."""
    return max(1, whole - whole // part)


def oldest_idle(table: OrderedDict[OpenFile, None], lane: int | None) -> OpenFile | None:
    """The first of a table that nobody holds, of this export (None: any), and that need not be synchronised; otherwise
    the first that nobody holds. None if there is none among the first few."""
    best: OpenFile | None = None
    for _ in range(min(len(table), _LOOKS)):
        opened = next(iter(table))
        if not opened.count and (lane is None or opened.node.mount.lane == lane):
            if not opened.unstable:
                return opened
            best = best or opened
        table.move_to_end(opened)
    return best


class Shares:
    """All places."""

    def __init__(self, limit: int, host_limit: int, cache: Cache) -> None:
        self.exports = 1
        """How many there are; one alone may have everything."""
        self.bound(limit, host_limit)
        self.in_use = self.leaving = 0
        self.events: collections.Counter[str] = collections.Counter()
        """Opens that waited, that were told to come again, and the bounds that they met."""
        self.waiting = 0
        self._cache = cache
        self._hosts: dict[str, Host] = {}
        self._lanes: dict[int, Lane] = {}
        self._ring: collections.deque[Host] = collections.deque()
        """Hosts with waiters."""
        self._timer: asyncio.TimerHandle | None = None

    def bound(self, limit: int, host_limit: int) -> None:
        """Let there be so many places, and so many for one host."""
        self.limit, self.host_limit = limit, host_limit
        self._plenty = min(_but(_but(host_limit, _AHEAD), _EXPORT), _but(_but(limit, _RESERVE), _EXPORT)) - 1

    # -- taking and giving back ----------------------------------------------------------------------------------
    def has_room(self, host: str, lane: int) -> bool:
        """Whether there is a place now."""
        if self.in_use < self._plenty:
            return True
        share = self.at_once(host, lane)
        if share is None:
            return False
        share.give_back()
        return True

    def at_once(self, host: str, lane: int) -> Share | None:
        """A place, if there is one now; nothing waits here, and nobody is overtaken."""
        share = self._share(host, lane)
        if self.in_use < self._plenty:  # as nearly always: nobody can have met a bound
            return self._charge(share)
        bound = self._met(share)
        if bound is not None and self._cache.let_go(share, bound):  # in memory it closes at once
            bound = self._met(share)
        if bound is not None or share.waiters:
            self.drop(share)
            return None
        self._charge(share)
        self._keep_some_free(share)
        return share

    def take(self, opened: OpenFile, host: str) -> bool:
        """Take a count of an open file in the cache; if nobody else has one, its place is charged to ``host``. False:
        there is no such place now, and nothing is taken."""
        opened.retain()  # first, or it may be what closes to make room
        before = opened.share
        if opened.count == 1 and before.host.key != host:
            share = self.at_once(host, before.lane)
            if share is None:
                opened.release()
                return False
            opened.charge_to(share)
            before.cached.pop(opened, None)
            share.cached[opened] = None
            before.give_back()
        return True

    def is_held(self, key: str) -> bool:
        """Whether a host has used up its share with what its clients hold open: to wait for a place is of no use."""
        host = self._hosts.get(key)
        if host is None or host.in_use < (_but(self.host_limit, _EXPORT) if self.exports > 1 else self.host_limit):
            return False
        return all(not share.leaving and oldest_idle(share.cached, None) is None for share in host.lanes.values())

    def at_any_rate(self, host: str, lane: int) -> Share:
        """A place, whatever the bounds: for what has to be synchronised now that it has been changed. There are no more
        of these than calls."""
        share = self._share(host, lane)
        self._charge(share)
        if self.in_use >= self._plenty:
            self._keep_some_free(share)
        return share

    async def wait(self, host: str, lane: int) -> Share:
        """A place, as soon as there is one, for who got none at once. Raises OSError (EMFILE) when there is none for
        long."""
        share = self._share(host, lane)
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self.events["waited"] += 1
        self._enqueue(share, place)
        patience = loop.call_later(PATIENCE, contain, None, self._give_up, share, place)
        try:
            await place
        except BaseException:  # the coroutine may be closed as well, and its place refused
            if place in share.waiters:
                self._dequeue(share, place)
            elif not place.cancelled() and place.exception() is None:
                share.give_back()
            raise
        finally:
            patience.cancel()
        return share

    def _give_up(self, share: Share, place: asyncio.Future[None]) -> None:
        if place.done():
            return
        bound = self._met(share)
        what = f"{share.host.in_use} files open for {share.host.key or 'this host'}, {self.in_use} in all"
        self.events["refused_" + (Bound.ALL if bound is None else bound).value] += 1
        _log.warning("no descriptor for an open within %.0f s: %s", PATIENCE, what)
        self._dequeue(share, place)
        place.set_exception(OSError(errno.EMFILE, what))

    # -- bounds --------------------------------------------------------------------------------------------------
    def _met(self, share: Share, *, ahead: bool = False) -> Bound | None:
        """The bound that is met, or (``ahead``) as good as met, if there is one."""
        host = share.host
        own, all_ = self.host_limit, self.limit
        if ahead:
            own, all_ = _but(own, _AHEAD), _but(all_, _AHEAD)
        if host.in_use >= own:
            return Bound.HOST
        if self.exports > 1 and share.in_use >= _but(own, _EXPORT):
            return Bound.HOST_IN_EXPORT
        if host.in_use >= max(_LITTLE, (self.limit - self.in_use) // _AHEAD):
            all_ -= self.limit // _RESERVE
            if self.exports > 1 and share.whole_lane.in_use >= _but(all_, _EXPORT):
                return Bound.EXPORT
        return Bound.ALL if self.in_use >= all_ else None

    def _keep_some_free(self, share: Share) -> None:
        bound = self._met(share, ahead=True)
        if bound is not None:
            self._cache.let_go(share, bound)

    def _charge(self, share: Share) -> Share:
        share.in_use += 1
        share.host.in_use += 1
        share.whole_lane.in_use += 1
        self.in_use += 1
        return share

    def _share(self, key: str, lane: int) -> Share:
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = Host(key)
        share = host.lanes.get(lane)
        if share is None:
            whole_lane = self._lanes.get(lane)
            if whole_lane is None:
                whole_lane = self._lanes[lane] = Lane()
            share = host.lanes[lane] = Share(self, host, lane, whole_lane)
        return share

    def drop(self, share: Share) -> None:
        """Forget who has nothing and wants nothing."""
        host = share.host
        if not share.in_use and not share.waiters and host.lanes.get(share.lane) is share:
            del host.lanes[share.lane]
            if not host.lanes and self._hosts.get(host.key) is host:
                del self._hosts[host.key]

    # -- waiting -------------------------------------------------------------------------------------------------
    def _enqueue(self, share: Share, place: asyncio.Future[None]) -> None:
        host = share.host
        if not share.waiters:
            if not host.queue:
                self._ring.append(host)
            host.queue.append(share)
        share.waiters.append(place)
        self.waiting += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_AGAIN, contain, None, self._look_again)

    def _dequeue(self, share: Share, place: asyncio.Future[None]) -> None:
        share.waiters.remove(place)
        self.waiting -= 1
        self._forget_queue(share)
        self.drop(share)

    def _forget_queue(self, share: Share) -> None:
        """A share without waiters stands in no queue."""
        host = share.host
        if not share.waiters:
            host.queue.remove(share)
            if not host.queue:
                self._ring.remove(host)

    def serve(self, host: Host) -> None:
        """Give a place that one of this host's has been to somebody who waits."""
        if not self._serve_some():
            # All whose turn it is have met another bound: the one that has just got wider may be this host's own.
            self._serve(host)

    def _serve_some(self) -> bool:
        """Give places to those whose turn it is, as far as their bounds let them have any; whether one had."""
        served, looks = False, 0
        while looks < min(len(self._ring), _LOOKS):  # once around at most, so that turns stay what they are
            host = self._ring[0]
            self._ring.rotate(-1)
            if self._serve(host):
                served, looks = True, 0
            else:
                looks += 1
        return served

    def _serve(self, host: Host) -> bool:
        """Give a place to the first waiter of the host that may have one; whether there is one."""
        for share in list(host.queue):
            host.queue.rotate(-1)
            while share.waiters and share.waiters[0].cancelled():  # its task has yet to hear of it
                self._dequeue(share, share.waiters[0])
            if share.waiters and self._met(share) is None:
                place = share.waiters.popleft()
                self.waiting -= 1
                self._forget_queue(share)
                self._charge(share)
                place.set_result(None)
                return True
        return False

    def _look_again(self) -> None:
        """Have something closed for those who wait, and see whether there are places that nobody was told of."""
        self._timer = None
        for host in [self._ring[at] for at in range(min(len(self._ring), _LOOKS))]:
            for share in list(host.queue):
                for _ in range(min(len(share.waiters), _LOOKS)):
                    bound = self._met(share)
                    if bound is None or self._leaving(share, bound) >= len(share.waiters):
                        break
                    if not self._cache.let_go(share, bound):
                        break
        self._serve_some()
        if self.waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_AGAIN, contain, None, self._look_again)

    def _leaving(self, share: Share, bound: Bound) -> int:
        """How many are about to close that a bound is met by."""
        if bound is Bound.HOST_IN_EXPORT:
            return share.leaving
        return sum(one.leaving for one in share.host.lanes.values()) if bound is Bound.HOST else self.leaving

    def close(self) -> None:
        """Nobody need be looked after any more; who waits still is told to come again."""
        if self._timer is not None:
            self._timer.cancel()
        for host in list(self._ring):
            for share in list(host.queue):
                for place in list(share.waiters):
                    self._dequeue(share, place)
                    if not place.done():
                        place.set_exception(OSError(errno.EMFILE, "the server stops"))

    def statistics(self) -> Mapping[str, int]:
        """How many files are open, and who waits."""
        return {
            "limit": self.limit,
            "host_limit": self.host_limit,
            "in_use": self.in_use,
            "most_of_a_host": max((host.in_use for host in list(self._hosts.values())), default=0),
            "waiting": self.waiting,
        }
