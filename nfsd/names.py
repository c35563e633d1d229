"""Answers of the system's name services (hosts, netgroups, groups), asked off the loop and remembered for a while.

Owns :class:`HostNames` and :class:`GroupLists`; imports netgroups, the log's limits, and whose an address is. Both are
used from one event loop.

Threads of their own look up the addresses of the configuration's names and the names of peers. A peer whose names come
slowly, by accident or because it runs their name server, holds up no others. The networks of peers take turns, and so
do the largest networks, so that a network gains nothing from being divided. An answer past its time to live is still
used while a fresh one is on its way. So a slow name service delays only the first question about a client or user.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import pwd
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

from nfsd.netgroups import in_netgroup
from rpcrdma.addresses import host_of, networks_of
from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)
NO_ID = 0xFFFFFFFF
"""(uid_t)-1 and (gid_t)-1: no one's id. Python shows it as -1."""
_User = tuple[int, int | None]
"""Whose groups are asked for: the user, and the group to be added; None: its own here."""
_LIMIT = 4096
"""Peers, and users, remembered at most; beyond it the one asked about longest ago is forgotten."""
_FORWARD_THREADS = 4
_REVERSE_THREADS = 8
_SITE_THREADS = 4
"""Of those, for the names of one of the largest networks' peers."""
_NETWORK_THREADS = 2
"""Likewise of one network's."""
_NETWORK_WAITING = 256
"""Peers of one network whose names are asked for; and users, whose groups are."""
_SITE_WAITING = 256
"""Networks of one of the largest whose peers' are."""


def look_up_addresses(name: str) -> frozenset[str]:
    """All addresses of a host name (blocking); empty when there are none or the name service fails."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(entry[4][0]).partition("%")[0] for entry in found)


def look_up_names(address: str) -> frozenset[str]:
    """The names of an address (blocking): only those that lead back to it, since whoever owns the address also writes
    its reverse entry."""
    try:
        name, aliases, _ = socket.gethostbyaddr(address)
    except (OSError, UnicodeError):
        return frozenset()
    candidates = [name, *aliases][:16]
    return frozenset(n.lower().rstrip(".") for n in candidates if address in look_up_addresses(n))


def look_up_groups(uid: int, gid: int | None) -> tuple[int, ...]:
    """All groups of a user as this system knows them (blocking), and ``gid``, or without one the user's own here; empty
    when it does not know the user. Numbers that are no group's id are left out."""
    try:
        user = pwd.getpwuid(uid)
        found = os.getgrouplist(user.pw_name, user.pw_gid if gid is None else gid)
        return tuple(group for group in found if 0 <= group < NO_ID)
    except (KeyError, OSError, OverflowError):
        return ()


Part = tuple[str, str]
"""One of the largest networks, and one within it."""


def part_of(address: str) -> Part:
    """Whose name service it may be: of the IPv4 /16 and /24, or of the IPv6 /32 and /48."""
    try:
        site, network, *_ = networks_of(host_of(address))
    except ValueError:
        return address, address
    return site, network


Answer = TypeVar("Answer")
Arguments = TypeVarTuple("Arguments")


class Crowded(Exception):
    """Too many of one network wait."""


class Turns:
    """Blocking calls on threads, so many at a time, and so many for one site and one network of it; sites take turns,
    and so do the networks of one."""

    def __init__(self, name: str, threads: int, of_site: int, of_network: int, waiting: int) -> None:
        self._name, self._threads, self._of_site, self._of_network, self._most = (
            name, threads, of_site, of_network, waiting,
        )  # fmt: skip
        self._pool: ThreadPoolExecutor | None = None
        self._busy = 0
        self._running: collections.Counter[Part | str] = collections.Counter()
        """Of each site, and of each of its networks."""
        self._waiting: dict[str, dict[Part, collections.deque[asyncio.Future[None]]]] = {}
        """By site and by network, whose turn it is first."""

    async def run(self, part: Part, call: Callable[[*Arguments], Answer], *arguments: *Arguments) -> Answer:
        """Raises Crowded, and what the call raises."""
        await self._begin(part)
        try:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, self._name)
            return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)
        finally:
            self._busy -= 1
            for counted in (part, part[0]):
                self._running[counted] -= 1
                if not self._running[counted]:
                    del self._running[counted]
            self._go_on()

    async def _begin(self, part: Part) -> None:
        networks = self._waiting.get(part[0], {})
        if part not in networks and self._busy < self._threads and self._may(part):
            self._count(part)
            return
        if len(networks.get(part, ())) >= self._most or (part not in networks and len(networks) >= _SITE_WAITING):
            raise Crowded
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(part[0], networks).setdefault(part, collections.deque()).append(turn)
        await turn  # it is cancelled only when all are given up

    def _may(self, part: Part) -> bool:
        return self._running[part[0]] < self._of_site and self._running[part] < self._of_network

    def _count(self, part: Part) -> None:
        self._busy += 1
        self._running[part] += 1
        self._running[part[0]] += 1

    def _go_on(self) -> None:
        for site in list(self._waiting):
            if self._busy >= self._threads:
                return
            networks = self._waiting[site]
            if self._running[site] >= self._of_site:
                continue
            part = next((one for one in networks if self._may(one)), None)
            if part is None:
                continue
            del self._waiting[site]
            queue = networks.pop(part)
            turn = queue.popleft()
            if not turn.done():  # else it has been given up
                self._count(part)
                turn.set_result(None)
            if queue:
                networks[part] = queue  # behind the site's others
            if networks:
                self._waiting[site] = networks  # behind the others

    def close(self) -> None:
        """Begin no more."""
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class HostNames:
    """Which addresses the configured host names have, and which names the peers have."""

    def __init__(
        self,
        *,
        forward: Callable[[str], frozenset[str]] = look_up_addresses,
        reverse: Callable[[str], frozenset[str]] = look_up_names,
        clock: Callable[[], float] = time.monotonic,
        ttl: float = 60.0,
        patience: float = 5.0,
        member: Callable[[str, str, frozenset[str], Callable[[str], frozenset[str]]], bool] = in_netgroup,
    ) -> None:
        self._forward, self._reverse, self._member = forward, reverse, member
        self._clock, self._ttl, self._patience = clock, ttl, patience
        self._hosts: frozenset[str] = frozenset()
        self._wants_reverse = False
        self._netgroups: frozenset[str] = frozenset()
        self._edition = 0
        """Grows when what is asked about peers is another thing."""
        self._addresses: dict[str, frozenset[str]] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._peers: dict[str, None] = {}
        """Whose names have been asked for, the one longest ago first."""
        self._expiry: dict[tuple[bool, str], float] = {}
        self._running: dict[tuple[bool, str], asyncio.Future[None]] = {}
        self._forwards = Turns("names", _FORWARD_THREADS, _FORWARD_THREADS, _FORWARD_THREADS, _LIMIT)
        self._reverses = Turns("peers", _REVERSE_THREADS, _SITE_THREADS, _NETWORK_THREADS, _NETWORK_WAITING)
        self._changed: Callable[[], None] = lambda: None

    def watch(self, hosts: Iterable[str], *, reverse: bool, netgroups: Iterable[str] = ()) -> None:
        """What will be asked for: these host names' addresses and, with ``reverse``, the peers' names; and which of
        these netgroups the peers are in, which is asked again of all of them."""
        self._hosts, self._netgroups = frozenset(hosts), frozenset(netgroups)
        self._wants_reverse = reverse or bool(self._netgroups)
        if self._netgroups:
            self._edition += 1
            for peer in self._peers:
                self._expiry.pop((True, peer), None)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run whenever an answer differs from the one before."""
        self._changed = callback

    def addresses_of(self, host: str) -> frozenset[str]:
        """The addresses of a watched host name, as far as known."""
        return self._addresses.get(host, frozenset())

    def names_of(self, address: str) -> frozenset[str]:
        """The names of a peer, as far as known (lower case)."""
        return frozenset(name for name in self._names.get(address, ()) if not name.startswith("@"))

    def in_netgroup(self, address: str, netgroup: str) -> bool:
        """Whether a peer is in a watched netgroup, as far as known."""
        return f"@{netgroup}" in self._names.get(address, ())

    def learn(self, address: str) -> Awaitable[None] | None:
        """Bring the answers about a peer up to date. None when nothing needs waiting for (fresh, or merely stale)."""
        questions = [(False, host) for host in self._hosts]
        if self._wants_reverse:
            questions.append((True, address))
        now, missing = self._clock(), []
        for question in questions:
            expiry = self._expiry.get(question)
            if expiry is None or expiry <= now:
                future = self._ask(question)
                if expiry is None:
                    missing.append(future)
        return _Answers(self, missing) if missing else None

    async def wait(self, futures: list[asyncio.Future[None]]) -> None:
        """Wait for answers, as long as patience lasts."""
        # A task of its own: the dispatcher's driver has none, and asyncio.wait leaves the look-ups running.
        _, late = await asyncio.ensure_future(asyncio.wait(futures, timeout=self._patience))
        if late:
            _log.warning("the name service takes longer than %.0f s; going on without its answer", self._patience)

    def _ask(self, question: tuple[bool, str]) -> asyncio.Future[None]:
        running = self._running.get(question)
        if running is None:
            running = self._running[question] = asyncio.ensure_future(self._answer(question))
        return running

    async def _answer(self, question: tuple[bool, str]) -> None:
        is_reverse, subject = question
        try:
            if is_reverse:
                edition = -1
                while edition != self._edition:
                    edition = self._edition
                    answer = await self._reverses.run(part_of(subject), self._of_peer, subject)
            else:
                answer = await self._forwards.run(("", ""), self._forward, subject)
        except Crowded:
            _log.warning("the names of %s are not asked for: too many of their network are", part_of(subject)[1])
            return  # nothing is known of it: it is asked for again when it comes again
        finally:
            del self._running[question]
        if is_reverse:
            # The peer not asked about for longest goes. Nobody can have the configuration's own names forgotten.
            self._peers.pop(subject, None)
            self._peers[subject] = None
            if len(self._peers) > _LIMIT:
                oldest = next(iter(self._peers))
                del self._peers[oldest]
                self._expiry.pop((True, oldest), None)
                self._names.pop(oldest, None)
        if not answer and not is_reverse:
            _log.warning("host name %r in clients: has no address now", subject)
        self._expiry[question] = self._clock() + self._ttl
        answers = self._names if is_reverse else self._addresses
        if answers.get(subject, frozenset()) != answer:
            answers[subject] = answer
            self._changed()

    def _of_peer(self, address: str) -> frozenset[str]:
        """A peer's names, and its netgroups, each behind an @ (blocking)."""
        names = frozenset(name for name in self._reverse(address) if not name.startswith("@"))
        found = (one for one in self._netgroups if self._member(one, address, names, self._forward))
        return names.union(f"@{netgroup}" for netgroup in found)

    async def close(self) -> None:
        """Give up look-ups that are running."""
        for turns in (self._forwards, self._reverses):
            turns.close()
        for running in list(self._running.values()):
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


class _Answers:
    """Answers on their way; nothing is lost if nobody waits for them."""

    __slots__ = ("_futures", "_names")

    def __init__(self, names: HostNames, futures: list[asyncio.Future[None]]) -> None:
        self._names, self._futures = names, futures

    def __await__(self) -> Generator[Any, None, None]:
        return self._names.wait(self._futures).__await__()


class GroupLists:
    """The groups of users as this system knows them: of those with more than AUTH_SYS can carry, and of all that use
    exports with ``manage_gids``."""

    def __init__(
        self,
        *,
        look_up: Callable[[int, int | None], tuple[int, ...]] = look_up_groups,
        clock: Callable[[], float] = time.monotonic,
        ttl: float = 300.0,
    ) -> None:
        """``ttl``: seconds an answer is good for; a tenth of that if the user is not known."""
        self._look_up, self._clock, self._ttl = look_up, clock, ttl
        self._known: dict[_User, tuple[float, tuple[int, ...]]] = {}
        self._unknown: dict[_User, tuple[float, tuple[int, ...]]] = {}
        """Users not known here, apart: whoever makes up their numbers has no others forgotten."""
        self._running: dict[tuple[Part, _User], asyncio.Task[tuple[int, ...]]] = {}
        self._turns = Turns("groups", _REVERSE_THREADS, _SITE_THREADS, _NETWORK_THREADS, _NETWORK_WAITING)
        self._changed: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run whenever an answer differs from the one before."""
        self._changed = callback

    def forget(self) -> None:
        """Ask for everybody again."""
        self._known.clear()
        self._unknown.clear()

    def known(self, uid: int, gid: int | None, peer: str = "") -> tuple[int, ...] | None:
        """The user's groups if they are known (empty: the user is not known here), else None. Asks again in the
        background when they have been known for too long; it is then the turn of the peer's network."""
        entry = self._known.get((uid, gid)) or self._unknown.get((uid, gid))
        if entry is None:
            return None
        if entry[0] <= self._clock():
            self._start(uid, gid, peer)
        return entry[1]

    async def look_up(self, uid: int, gid: int | None, peer: str = "") -> tuple[int, ...]:
        """Ask the system for the user's groups, in the turn of the peer's network, whose callers share a question.
        Empty as well if too many of that network ask."""
        return await asyncio.shield(self._start(uid, gid, peer))

    def _start(self, uid: int, gid: int | None, peer: str) -> asyncio.Task[tuple[int, ...]]:
        part, user = part_of(peer), (uid, gid)
        running = self._running.get((part, user))
        if running is None:
            running = self._running[part, user] = asyncio.ensure_future(self._ask(part, user))
        return running

    async def _ask(self, part: Part, user: _User) -> tuple[int, ...]:
        try:
            found = await self._turns.run(part, self._look_up, *user)
        except Crowded:
            _log.warning("groups of a user of %s are not asked for: too many of its network are", part[1])
            return ()
        finally:
            del self._running[part, user]
        before = self._known.pop(user, None) or self._unknown.pop(user, None)
        answers = self._known if found else self._unknown
        if len(answers) >= _LIMIT:
            del answers[next(iter(answers))]  # the one asked for longest ago
        answers[user] = (self._clock() + (self._ttl if found else self._ttl / 10), found)
        if before is not None and before[1] != found:
            self._changed()
        return found

    async def close(self) -> None:
        """Give up look-ups that are running."""
        self._turns.close()
        for running in list(self._running.values()):
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
