"""Four hosts that fill what the server remembers for clients of NFSv4 and of NFSv3's lock manager, each its share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from nfsd.protocol import nfs3
from tests.hostile.attack import Refused, Scene, attack
from tests.hostile.flood import Flood, Tally, Way, introduce, introduce40, lock_by_nlm
from tests.hostile.peer import Tcp, mount
from tests.support.nfs4 import Failed

HOSTS = 4
CLIENTS = 10000
"""The default of ``nfs4.limits.clients``."""
FEW = 2000
"""What one client makes of anything before the next one comes."""


def refused(before: Mapping[str, int], end: Mapping[str, int]) -> bool:
    """Whether the server has refused them for want of room."""
    return end["refusals"] >= before["refusals"] + HOSTS


def crowded(_: Mapping[str, int], end: Mapping[str, int]) -> bool:
    """Whether the table of clients is full but for its last part."""
    return end["clients"] >= CLIENTS - CLIENTS // 16 - 100


def full(_: Mapping[str, int], end: Mapping[str, int]) -> bool:
    """Whether the table of clients is, but for those that are about to be replaced."""
    return end["clients"] >= CLIENTS - 100


class Greedy:
    """One host: clients come one after the other, over one connection, and go on when they have been refused."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.scene, self.number = scene, number
        self.source = scene.address()
        self.way: Way | None = None
        self.full = threading.Event()

    def connection(self, over_rdma: bool = False) -> Way:
        if self.way is None:
            make = self.scene.iwarp if over_rdma else self.scene.tcp
            self.way = make(source=self.source, patience=20)
        return self.way

    def tcp(self) -> Tcp:
        way = self.connection()
        assert isinstance(way, Tcp)
        return way

    def flood(self, client: int, *, minor: int = 1, over_rdma: bool = False) -> Flood:
        """A new client, with a file open. Raises what :class:`Flood` does."""
        name = b"%d %s" % (client, self.source.encode())
        return Flood(self.connection(over_rdma), minor, name, "/memory", b"flooded by " + self.source.encode())

    def live(self, what: str, work: Callable[[Greedy, int], Tally]) -> None:
        for client in self.scene.rounds():
            try:
                tally = work(self, client)
            except (Failed, AssertionError):
                tally = Tally(refusals={0: 1})  # already the client, or its file
            except (OSError, EOFError, Refused):
                self.way = None
                self.scene.count("connections lost")
                self.scene.pause(0.05)
                continue
            self.scene.count(what, tally.done)
            if tally.refusals:
                self.full.set()
                self.scene.pause(0.05)


def _fill(scene: Scene, what: str, work: Callable[[Greedy, int], Tally]) -> None:
    """All hosts at once, until each has been refused, and on until it is over."""
    hosts = [Greedy(scene, number) for number in range(HOSTS)]
    with ThreadPoolExecutor(HOSTS) as threads:
        lives = [threads.submit(host.live, what, work) for host in hosts]
        with scene.setting_up():
            while not scene.over and not all(host.full.is_set() for host in hosts):
                scene.pause(0.02)
                if any(life.done() for life in lives):
                    break
    for life in lives:
        life.result()


@attack("NFSv4", "clients of four hosts open a file, with an owner for each open", effect="opens", bound=refused)
def many_opens(scene: Scene) -> None:
    def work(host: Greedy, client: int) -> Tally:
        flood = host.flood(client, over_rdma=host.number % 2 == 1)
        return flood.run(flood.opens(40), FEW, over=lambda: scene.over)

    _fill(scene, "opens", work)


@attack(
    "NFSv4", "owners of 4.0 and 4.1, of opens and of locks, with names of 1,000 octets", effect="owners", bound=refused
)
def many_owners(scene: Scene) -> None:
    def work(host: Greedy, client: int) -> Tally:
        flood = host.flood(client, minor=host.number % 2)
        make = flood.opens() if client % 2 else flood.lock_owners()
        return flood.run(make, FEW, over=lambda: scene.over)

    _fill(scene, "owners", work)


@attack(
    "NFSv4", "locks with gaps between them, by few owners and by many, and NFSv3's locks", effect="locks", bound=refused
)
def many_locks(scene: Scene) -> None:
    """NFSv3's take a call each: that host begins with some of 4.1."""
    handles: dict[str, bytes] = {}

    def work(host: Greedy, client: int) -> Tally:
        if host.number == 0 and client > 12:
            if host.source not in handles:
                root = mount(scene.doors.mountd, host.source, b"/memory")
                with Tcp(scene.doors.tcp, host.source) as way:
                    file = nfs3.diropargs3(root, b"flooded by " + host.source.encode())
                    handles[host.source] = bytes(way.nfs3("LOOKUP", nfs3.LOOKUP3args(file)).resok.object.data)
            with Tcp(scene.doors.nlm, host.source, patience=20) as way:
                tally = lock_by_nlm(way, handles[host.source], b"host %d" % client, FEW, over=lambda: scene.over)
            scene.count("locks of NFSv3", tally.done)
            return tally
        flood = host.flood(client, over_rdma=host.number == 1)
        if host.number == 0 or client % 2:
            return flood.run(flood.lock_owners(), FEW // 2 if host.number == 0 else 2 * FEW, over=lambda: scene.over)
        return flood.run(flood.ranges(20 * FEW * client), 20 * FEW - 2, over=lambda: scene.over)

    _fill(scene, "locks", work)


@attack(
    "NFSv4", "four hosts introduce clients with a session each, as many as they can", effect="clients", bound=crowded
)
def many_clients(scene: Scene) -> None:
    def work(host: Greedy, client: int) -> Tally:
        names = [b"%d %d %s" % (client, more, host.source.encode()) for more in range(100)]
        # Who has as many as it may takes the places of its own that have no session yet.
        _, sessions = introduce(host.tcp(), names)
        return sessions

    _fill(scene, "clients", work)


@attack(
    "NFSv4",
    "clients of 4.0 that have nothing: four hosts as many as they can, then 200 hosts four each, over and over",
    effect="clients",
    bound=full,
)
def stateless_clients(scene: Scene) -> None:
    hosts = [scene.address() for _ in range(HOSTS + 200)]

    def live(source: str, most: int, number: int) -> int:
        done = 0
        with contextlib.suppress(OSError, EOFError, Refused), scene.tcp(source=source, patience=20) as way:
            while done < most and not scene.over:
                names = [b"%d %d %d %s" % (number, done, more, source.encode()) for more in range(min(most, 100))]
                tally = introduce40(way, names)
                scene.count("clients", tally.done)
                done += tally.done
                if tally.refusals:
                    break
        return done

    with scene.setting_up():
        for host in hosts[:HOSTS]:
            live(host, CLIENTS, 0)
        for host in hosts[HOSTS:]:
            live(host, 4, 0)
    for number in scene.rounds():
        live(hosts[HOSTS + number % 200], 4, number)


@attack("NFSv4", "sessions of 256 slots, 64 of each client", effect="sessions", bound=refused)
def many_sessions(scene: Scene) -> None:
    def work(host: Greedy, client: int) -> Tally:
        names = [b"%d %d %s" % (client, more, host.source.encode()) for more in range(4)]
        clients, sessions = introduce(host.tcp(), names, sessions=64, slots=256, cached=0)
        sessions.add(Tally(refusals=clients.refusals))
        return sessions

    _fill(scene, "sessions", work)
