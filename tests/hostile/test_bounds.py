"""One host fills its share of what the server remembers for NFS clients, by many clients; nobody else notices.

Against a process of its own, whose configuration has defaults, or small bounds on clients and replies. What is looked
at is what any host sees, and the memory of the process: who floods is refused in the end, and another host opens, locks
and writes all the while.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from nfsd.protocol import nfs3
from nfsd.protocol import nfs4 as p
from tests.hostile.flood import Flood, Maker, Tally, Way, introduce, lock_by_nlm
from tests.hostile.peer import Iwarp, Tcp, client4, drive, mount
from tests.hostile.server import Server
from tests.hostile.watch import Watch
from tests.support.nfs4 import Client4, mode

GREEDY, HONEST = "127.0.0.2", "127.0.0.3"
PATIENCE = 60.0
SHARE = 256 << 20
"""Octets: of a quarter of what ``nfs4.limits.octets`` is unless it is set."""
ROOM = 96 << 20
"""What the process may use beyond: buffers, what allocators keep."""
MOST = 200_000
"""Of records of a kilobyte and more each: twice what there is room for in a share. No client has as many as one client
may have."""
EACH = 90_000
ALONE = {p.NFS4ERR_NOSPC, p.NFS4ERR_RESOURCE, p.NFS4ERR_DELAY, p.NFS4ERR_SERVERFAULT}
NOLOCKS = 2
"""NLM4_DENIED_NOLOCKS."""
pytestmark = pytest.mark.timeout(300)


def reach(server: Server, way: str, host: str) -> Way:
    """A connection that a host makes."""
    if way == "tcp":
        return Tcp(server.doors.tcp, host, patience=PATIENCE)
    return Iwarp(server.doors.rdma, host, patience=PATIENCE)


class Honest:
    """Opens, locks and writes by another host, over and over, and once more at the end."""

    def __init__(self, server: Server, way: str) -> None:
        self._server, self._way = server, way
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self.turns = 0
        self.faults: list[str] = []

    def _live(self) -> None:
        try:
            while not self._over.is_set():
                self.turn()
        except Exception as error:
            self.faults.append(f"turn {self.turns}: {error!r}")

    def turn(self) -> None:
        """As a new client, and with new files."""
        for minor in (0, 1):
            name = b"honest %d %d" % (minor, self.turns)
            with reach(self._server, self._way, HONEST) as way:
                client = client4(way, minor, name=name)
                drive(client.connect())
                self.work(client, name)
        self.turns += 1

    def work(self, client: Client4, name: bytes) -> None:
        access = p.OPEN4_SHARE_ACCESS_BOTH | (p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG if client.minor else 0)
        opened, handle = drive(client.open("/memory", name, access=access, create=mode(0o600)))
        seqid = 0 if client.minor else client.seqid(b"owner")
        new = p.open_to_lock_owner4(seqid, opened, 0, p.lock_owner4(client.clientid, b"locker"))
        lock = p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, 0, 100, p.locker4(True, open_owner=new))
        drive(client.on(handle, (p.OP_LOCK, lock)))
        write = p.WRITE4args(opened, 0, p.stable_how4.FILE_SYNC4, memoryview(name))
        drive(client.on(handle, (p.OP_WRITE, write)))
        assert (self._server.memory / name.decode()).read_bytes() == name
        drive(client.close(opened, handle))
        if client.minor:
            for operation in (
                (p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(client.session)),
                (p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(client.clientid)),
            ):
                assert drive(client.raw(operation))[0] == 0

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        if not self.faults:
            self._live_once()

    def _live_once(self) -> None:
        try:
            self.turn()
        except Exception as error:
            self.faults.append(f"the last turn: {error!r}")


def flood(server: Server, way: str, minor: int, kind: Callable[[Flood], Maker], most: int = MOST) -> Tally:
    """One host's clients, one after the other, until one is refused or they have so many."""
    tally = Tally()
    for number in itertools.count():
        if tally.refusals or tally.done >= most:
            return tally
        client = Flood(reach(server, way, GREEDY), minor, b"greedy %d %d" % (minor, number), "/memory")
        tally.add(client.run(kind(client), min(EACH, most - tally.done)))
    raise AssertionError


@contextlib.contextmanager
def under_way(limits: str = "") -> Iterator[tuple[Server, Watch]]:
    with Server(limits) as server:
        watch = Watch(server.process.pid, server.log)
        yield server, watch
        assert server.alive


KINDS: dict[str, tuple[str, int, Callable[[Flood], Maker]]] = {
    "opens and open owners of 4.1 over TCP": ("tcp", 1, Flood.opens),
    "opens and open owners of 4.0 over TCP": ("tcp", 0, Flood.opens),
    "opens and open owners of 4.1 over RDMA": ("rdma", 1, lambda client: client.opens(40)),
    "locks and lock owners of 4.1 over TCP": ("tcp", 1, Flood.lock_owners),
    "locks and lock owners of 4.0 over TCP": ("tcp", 0, Flood.lock_owners),
    "locks and lock owners of 4.1 over RDMA": ("rdma", 1, lambda client: client.lock_owners(200)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_with_many_clients_fills_its_share_and_no_more(kind: str) -> None:
    way, minor, make = KINDS[kind]
    with under_way() as (server, watch):
        before = watch.begin()
        with Honest(server, way) as honest:
            tally = flood(server, way, minor, make)
            faults = [] if tally.refusals else [f"{tally.done} of one host were granted, and none refused"]
            # Nor has it room for anything else, under whatever name.
            for other in (0, 1):
                more = Tally()
                with contextlib.suppress(Exception):  # who it is may be more than there is room for
                    client = Flood(reach(server, way, GREEDY), other, b"another %d" % other, "/memory")
                    more = client.run(client.opens(), 1000)
                if more.done > 100:
                    faults.append(f"4.{other}: another {more.done} opens after {tally}")
            grown = watch.now().peak - before.resident
        if grown > SHARE + ROOM:
            faults.append(f"{grown >> 20} MiB for one host")
        faults += honest.faults
        assert faults == []
        assert set(tally.refusals) <= ALONE
        assert tally.done > 1000
        assert honest.turns > 1


def handle3(server: Server, host: str, name: bytes) -> bytes:
    """The handle that a file has in NFSv3."""
    root = mount(server.doors.mountd, host, b"/memory")
    with Tcp(server.doors.tcp, host, patience=PATIENCE) as way:
        found = way.nfs3("LOOKUP", nfs3.LOOKUP3args(nfs3.diropargs3(root, name)))
    return bytes(found.resok.object.data)


def test_locks_of_nfs3_are_on_the_same_account() -> None:
    """Most of the share is taken by locks of 4.1, which are quicker to have."""
    with under_way() as (server, _):
        tally = flood(server, "tcp", 1, Flood.lock_owners, 104_000)
        assert tally.refusals == {}
        handle = handle3(server, GREEDY, b"flooded")
        with Honest(server, "tcp") as honest:
            tally = Tally()
            for name in (b"host", b"host.example.org", b"and another"):
                with Tcp(server.doors.nlm, GREEDY, patience=PATIENCE) as way:
                    tally.add(lock_by_nlm(way, handle, name, 5000))
        with Tcp(server.doors.nlm, HONEST, patience=PATIENCE) as way:
            other = lock_by_nlm(way, handle, b"host", 10)
        assert list(tally.refusals) == [NOLOCKS], f"{tally.done} locks granted"
        assert tally.done > 100
        assert (other.done, other.refusals) == (10, {})
        assert honest.faults == []


def test_a_host_does_not_fill_the_table_of_clients() -> None:
    with under_way("clients: 64, unconfirmed_clients: 16") as (server, _):
        clients = Tally()
        with Honest(server, "tcp") as honest, Tcp(server.doors.tcp, GREEDY, patience=PATIENCE) as way:
            for number in range(20):
                known, _ = introduce(way, [b"one of many %d %d" % (number, more) for more in range(8)])
                clients.add(known)
        assert honest.faults == []
        assert list(clients.refusals) == [p.NFS4ERR_DELAY]
        assert honest.turns > 1


def test_a_host_does_not_take_all_replies_that_are_kept() -> None:
    """Sessions whose slots promise more replies than there is room for: another's session has slots all the same."""
    with under_way("all_cached_octets: 8MiB") as (server, _):
        with Tcp(server.doors.tcp, GREEDY, patience=PATIENCE) as way:
            names = [b"one of many %d" % number for number in range(8)]
            clients, sessions = introduce(way, names, sessions=8, slots=256)
        assert (clients.done, sessions.done) == (8, 64)
        with Honest(server, "tcp") as honest, Tcp(server.doors.tcp, HONEST, patience=PATIENCE) as way:
            client = client4(way, 1, name=b"with slots")
            drive(client.connect())
            granted = drive(slots(client))
        assert honest.faults == []
        assert granted >= 8


async def slots(client: Client4) -> int:
    """How many the client's session has: SEQUENCE says which is the highest."""
    sequence = p.SEQUENCE4args(client.session, client.sequence + 1, 0, 0, False)
    status, [(_, told)] = await client.raw((p.OP_SEQUENCE, sequence))
    assert status == 0
    client.sequence += 1
    return int(told.sr_resok4.sr_highest_slotid) + 1
