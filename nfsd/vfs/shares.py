"""For whom files are open: places for descriptors, bounded in all, by the client's host, and by the export they are of.

Owns :class:`Shares`; the records are in :mod:`nfsd.vfs.open_accounts`. A descriptor that is kept for peers (in the
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
    counts as one that a host has for each of them (:meth:`Shares.hold`). Who takes one that nobody keeps has its place
    from then on.

Waiting
    Who finds a bound met has something in the cache closed, and waits for a place; that may take an fsync. At bounds of
    his own it is something of his own, otherwise something of those who have most. Networks take turns, and so do the
    hosts of one, and the exports of a host. A place that is given back goes to one waiter. Who has waited for long is
    told to come again (EMFILE): a client's slot or connection is worth more than its place in the queue.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from nfsd.vfs.open_accounts import Bound, Cache, Host, Lane, Network, Share, oldest_idle
from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.networks import Tree

if TYPE_CHECKING:
    from nfsd.vfs.records import OpenFile

_log = limited_logger(__name__)

_RESERVE: Final = 8
"""One part in so many is for hosts that have little."""
_EXPORT: Final = 4
"""One part in so many is for the other exports."""
_LITTLE: Final = 4
"""What little is; or of what is left, if that is more, a sixteenth for a host and a quarter for a network."""
_LITTLE_OF_A_HOST, _LITTLE_OF_A_NETWORK = 16, 4
_MODEST: Final = 8
"""Fewer places than this do not decide which holder has most."""
_AHEAD: Final = 16
"""One part in so many of a bound is kept free, as far as there is something to close."""
_LOOKS: Final = 16
"""Hosts that a place is offered to in vain."""
_AGAIN: Final = 0.05
"""Seconds after which those who wait have more closed: what was in use before may be idle now."""
PATIENCE: Final = 10.0
"""Seconds to wait for a place."""


def _but(whole: int, part: int) -> int:
    """All of it but one part in ``part``, and something in any case."""
    return max(1, whole - whole // part)


class Shares:
    """All places."""

    def __init__(self, limit: int, host_limit: int, cache: Cache) -> None:
        self.exports = 1
        """How many there are; one alone may have everything."""
        self.bound(limit, host_limit)
        self.leaving = 0
        self.events: collections.Counter[str] = collections.Counter()
        """Opens that waited, that were told to come again, and the bounds that they met."""
        self.waiting = 0
        self._cache = cache
        self._hosts: dict[str, Host] = {}
        self._networks: Tree[Network] = Tree(Network, _MODEST, _MODEST, _MODEST)
        self.everybody = self._networks.everybody
        self._lanes: dict[int, Lane] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        """All places that are taken."""
        return self.everybody.has

    def bound(self, limit: int, host_limit: int) -> None:
        """Let there be so many places, and so many for one host."""
        self.limit, self.host_limit = limit, host_limit
        self._plenty = min(_but(_but(host_limit, _AHEAD), _EXPORT), _but(_but(limit, _RESERVE), _EXPORT)) - 1

    # -- taking and giving back ----------------------------------------------------------------------------------
    def has_room(self, host: str, lane: int) -> bool:
        """Whether there is a place now."""
        if self.everybody.has < self._plenty:
            return True
        share = self.at_once(host, lane)
        if share is None:
            return False
        share.give_back()
        return True

    def at_once(self, host: str, lane: int) -> Share | None:
        """A place, if there is one now; nothing waits here, and nobody is overtaken."""
        share = self._share(host, lane)
        if self.everybody.has < self._plenty:  # as nearly always: nobody can have met a bound
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
        there is no such place now, or the host has as many as it may, and nothing is taken."""
        opened.retain()  # first, or it may be what closes to make room
        before = opened.share
        if before.host.key != host:
            if opened.count == 1:
                share = self.at_once(host, before.lane)
                if share is not None:
                    self._move(opened, share)
                    return True
            elif not self.is_full(host, before.lane):
                return True
            opened.release()
            return False
        return True

    # -- what clients keep open ----------------------------------------------------------------------------------
    def hold(self, opened: OpenFile, host: str) -> None:
        """A client of this host keeps it open from now on, whoever else does: to be ended by ``let``."""
        holders, share = opened.holders, opened.share
        if holders is None:
            opened.holders = {host: 1}
            share.forget(opened)
            if share.host.key != host:
                self._move(opened, self._charge(self._share(host, share.lane)))
        elif host in holders:
            holders[host] += 1
        else:
            holders[host] = 1
            self._count_guest(self._share(host, share.lane), 1)

    def let(self, opened: OpenFile, host: str) -> None:
        """It does so no more. If it had the place, another host does that keeps it open."""
        holders, share = opened.holders or {}, opened.share
        holders[host] -= 1
        if holders[host]:
            return
        del holders[host]
        if share.host.key != host:
            self._count_guest(self._hosts[host].lanes[share.lane], -1)
        elif holders:
            other = self._hosts[next(iter(holders))].lanes[share.lane]
            other.guests -= 1
            other.host.guests -= 1
            if opened.fd >= 0:  # else the server stops, and its place is given back already
                self._move(opened, self._charge(other))
        else:
            opened.holders = None
            if opened.cached is not None:
                share.remember(opened)

    def is_full(self, host: str, lane: int) -> bool:
        """Whether a host keeps as much open as it may, so that it cannot share another's descriptor either."""
        share = self._share(host, lane)
        bound = self._own_bound(share, self.host_limit)
        if bound is not None and self._cache.let_go(share, bound):
            bound = self._own_bound(share, self.host_limit)
        self.drop(share)
        return bound is not None

    def _count_guest(self, share: Share, change: int) -> None:
        share.guests += change
        share.host.guests += change
        if change < 0:
            if self.waiting:
                self._serve(share.host)
            self.drop(share)

    def _move(self, opened: OpenFile, share: Share) -> None:
        """It has this place now instead of its own."""
        before = opened.share
        opened.charge_to(share)
        if opened.leaving:
            before.leaving -= 1
            share.leaving += 1
        if opened in before.cached:
            before.forget(opened)
            share.remember(opened)
        before.give_back()

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

    def _charge(self, share: Share) -> Share:
        share.in_use += 1
        share.whole_lane.in_use += 1
        share.host.grow()
        return share

    def crowd(self) -> Host | None:
        """The host that has most, of the network that has most, of those that have something in the cache."""
        found = self.everybody.crowd()
        while found.most:
            found = found.fullest()
        return found if isinstance(found, Host) else None

    def _share(self, key: str, lane: int) -> Share:
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = Host(key, self._networks.of(key))
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
        if not (share.in_use or share.guests or share.waiters) and host.lanes.get(share.lane) is share:
            del host.lanes[share.lane]
            if not host.lanes and self._hosts.get(host.key) is host:
                del self._hosts[host.key]

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
