"""For whom files are open: places for descriptors, bounded in all, by the client's host, and by the export they are of.

Owns :class:`Shares`; the records, and what each open does to them, are in :mod:`nfsd.vfs.open_accounts`.
A descriptor that is kept for peers (in the
cache, with unstable writes, with an open or a lock of NFSv4's or NLM's) has a place from before it is opened until it
is closed. What takes one just for a moment has none.

Bounds
    All places together are part of what the process may have open (:mod:`nfsd.vfs.resources`). One host may have a
    share of them; and one export of several, whose disk may have stalled, three quarters of all, and of a host's. The
    last eighth is for hosts that have next to nothing: most of it for any of them, a part for those in a small network
    (:mod:`rpcrdma.networks`) that has little as well, and so on up to the largest networks. So a small call
    gets in while a host, or a network full of hosts, has all the rest, and nobody gives way.

Who pays
    Callers of one user share open files whatever their hosts. The place of one that clients keep open, for as long as
    they like, is one of theirs: with the first who does, and from when he lets go with another who still does. It
    counts as one that a host has for each of them (:meth:`Shares.hold`). A host that takes one which nobody keeps has
    its place from then on.

Waiting
    A caller that finds a bound met has something in the cache closed, and waits for a place; that may take an fsync. At
    bounds of its own it is something of its own, otherwise something of those that have most. Networks take turns, and
    so do the hosts of one, and the exports of a host. A place that is given back goes to one waiter. A caller that has
    waited for long is told to come again (EMFILE): a client's slot or connection is worth more than its place in the
    queue.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import itertools
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from nfsd.vfs.open_accounts import Bound, Host, Network, Places, Share, oldest_idle
from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)

_RESERVE: Final = 8
"""One part in so many is for hosts that have little."""
_EXPORT: Final = 4
"""One part in so many is for the other exports."""
_LITTLE: Final = 4
"""What little is; or of what is left, if that is more, a sixteenth for a host and a quarter for a network."""
_LITTLE_OF_A_HOST, _LITTLE_OF_A_NETWORK = 16, 4
_AHEAD: Final = 16
"""One part in so many of a bound is kept free, as far as there is something to close."""
_LOOKS: Final = 16
"""Hosts that a place is offered to in vain, or that are asked for one."""
_AGAIN: Final = 0.05
"""Seconds after which those who wait have more closed: what was in use before may be idle now."""
PATIENCE: Final = 10.0
"""Seconds to wait for a place."""


def _but(whole: int, part: int) -> int:
    """All of it but one part in ``part``, and something in any case."""
    return max(1, whole - whole // part)


class Cache(Protocol):
    """Where open files are that nobody needs at the moment."""

    def let_go(self, share: Share, bound: Bound) -> bool:
        """Close one that has a place within this bound, if there is one; whether there is."""


class Shares(Places):
    """All places."""

    def __init__(self, limit: int, host_limit: int, cache: Cache) -> None:
        super().__init__()
        self.bound(limit, host_limit)
        self.events: collections.Counter[str] = collections.Counter()
        """Opens that waited, that were told to come again, and the bounds that they met."""
        self._cache = cache
        self._timer: asyncio.TimerHandle | None = None

    def bound(self, limit: int, host_limit: int) -> None:
        """Let there be so many places, and so many for one host."""
        plenty = min(_but(_but(host_limit, _AHEAD), _EXPORT), _but(_but(limit, _RESERVE), _EXPORT)) - 1
        self.set_bounds(limit, host_limit, plenty)

    # -- taking and giving back ----------------------------------------------------------------------------------
    def at_a_bound(self, share: Share) -> Share | None:
        """A place at once (:meth:`at_once`), where a bound may be met."""
        bound = self._met(share)
        if bound is not None and self._cache.let_go(share, bound):  # in memory it closes at once
            bound = self._met(share)
        if bound is not None or share.waiters:
            self.drop(share)
            return None
        self._charge(share)
        self._keep_some_free(share)
        return share

    def is_full(self, host: str, lane: int) -> bool:
        """Whether a host keeps as much open as it may, so that it cannot share another's descriptor either."""
        share = self._share(host, lane)
        bound = self._own_bound(share, self.host_limit)
        if bound is not None and self._cache.let_go(share, bound):
            bound = self._own_bound(share, self.host_limit)
        self.drop(share)
        return bound is not None

    def is_held(self, key: str) -> bool:
        """Whether a host has used up its share with what its clients hold open: to wait for a place is of no use."""
        host = self._hosts.get(key)
        most = _but(self.host_limit, _EXPORT) if self.exports > 1 else self.host_limit
        if host is None or host.has + host.guests < most:
            return False
        return all(not share.leaving and oldest_idle(share.cached, None) is None for share in host.lanes.values())

    def at_any_rate(self, host: str, lane: int) -> Share:
        """A place, whatever the bounds: for what has to be synchronised now that it has been changed. There are no more
        of these than calls."""
        share = self._share(host, lane)
        self._charge(share)
        if self.everybody.has >= self._plenty:
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
        own, all_ = self.host_limit, self.limit
        if ahead:
            own, all_ = _but(own, _AHEAD), _but(all_, _AHEAD)
        bound = self._own_bound(share, own)
        if bound is not None:
            return bound
        kept = self._kept_from(share.host)
        if kept:
            all_ -= kept
            if self.exports > 1 and share.whole_lane.in_use >= _but(all_, _EXPORT):
                return Bound.EXPORT
        return Bound.ALL if self.everybody.has >= all_ else None

    def _own_bound(self, share: Share, own: int) -> Bound | None:
        """The bound on a host's own that is met."""
        host = share.host
        if host.has + host.guests >= own:
            return Bound.HOST
        if self.exports > 1 and share.in_use + share.guests >= _but(own, _EXPORT):
            return Bound.HOST_IN_EXPORT
        return None

    def _kept_from(self, host: Host) -> int:
        """Places that are for others: for hosts that have less, or are in networks that have less."""
        left, kept = self.limit - self.everybody.has, self.limit // _RESERVE
        if host.has + host.guests >= max(_LITTLE, left // _LITTLE_OF_A_HOST):
            return kept
        networks, little = host.chain()[-2:0:-1], max(_LITTLE, left // _LITTLE_OF_A_NETWORK)
        for number, network in enumerate(networks):
            if network.has >= little:
                return kept // 2 * (len(networks) - number) // (len(networks) + 1)
        return 0

    def _keep_some_free(self, share: Share) -> None:
        bound = self._met(share, ahead=True)
        if bound is not None:
            self._cache.let_go(share, bound)

    def crowd(self) -> Host | None:
        """The host that has most, of the network that has most, of those that have something in the cache. None: nobody
        has; or as many as are looked at had something before, and are not found any more."""
        for _ in range(_LOOKS):
            found = self.everybody.crowd()
            while found.most:
                found = found.fullest()
            if not isinstance(found, Host):
                return None
            if not found.is_bare:
                return found
            found.hide()
        return None

    # -- waiting -------------------------------------------------------------------------------------------------
    def _enqueue(self, share: Share, place: asyncio.Future[None]) -> None:
        part: Share | Network = share
        group: Network | None = share.host
        while group is not None and part not in group.queue:
            group.queue[part] = None
            part, group = group, group.parent
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
        if share.waiters:
            return
        part: Share | Network = share
        group: Network | None = share.host
        while group is not None:
            group.queue.pop(part, None)
            if group.queue:
                return
            part, group = group, group.parent

    def _in_turn(self, group: Network) -> Iterator[Host]:
        """Hosts with waiters: one of each network, the next of each network, and so on."""
        if isinstance(group, Host):
            yield group
            return
        parts = collections.deque(map(self._in_turn, itertools.islice(group.queue, _LOOKS)))
        while parts:
            hosts = parts.popleft()
            host = next(hosts, None)
            if host is not None:
                yield host
                parts.append(hosts)

    @staticmethod
    def _had_its_turn(host: Host) -> None:
        """It is behind the others of its network, and that behind the other networks."""
        part: Network = host
        group = host.parent
        while group is not None:
            if part in group.queue:
                group.queue.move_to_end(part)
            part, group = group, group.parent

    def serve(self, host: Host) -> None:
        """Give a place that one of this host's has been to somebody who waits."""
        if not self._serve_some():
            # All whose turn it is have met another bound: the one that has just got wider may be this host's own.
            self._serve(host)

    def _serve_some(self) -> bool:
        """Give places to those whose turn it is, as far as their bounds let them have any; whether one had."""
        served = False
        while self._serve_first():
            served = True
        return served

    def _serve_first(self) -> bool:
        """Give a place to the first of some that may have one; whether there is one."""
        hosts = list(itertools.islice(self._in_turn(self.everybody), _LOOKS))
        for host in hosts:
            if self._serve(host):
                self._had_its_turn(host)
                return True
        if len(hosts) == _LOOKS:  # the next time others are looked at
            for host in hosts:
                self._had_its_turn(host)
        return False

    def _serve(self, host: Host) -> bool:
        """Give a place to the first waiter of the host that may have one; whether there is one."""
        for share in list(host.queue):
            host.queue.move_to_end(share)
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
        for host in list(itertools.islice(self._in_turn(self.everybody), _LOOKS)):
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
        for host in list(self._hosts.values()):
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
