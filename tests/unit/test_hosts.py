"""Seats of connections: bounds by host and in all, who gives way, calls in progress, headway."""

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import rpcrdma.hosts
from rpcrdma import networks
from rpcrdma.hosts import TURN, HostLimits, Hosts, Refused, Seat, host_of
from rpcrdma.memory import Lease, Pool
from tests.support.lines import lines_of

MIB = 1 << 20


class Connection:
    def __init__(self, hosts: Hosts, address: str, now: float = 0.0) -> None:
        self.served = 0
        self.idle = True
        self.evicted: str | None = None
        self.told = 0
        self.address = address
        self.seat: Seat = hosts.enter(address, now)
        self.seat.member = self

    def evict(self, reason: str) -> None:
        self.evicted = reason
        self.seat.leave()

    def proceed(self) -> None:
        self.told += 1

    def call(self, number: int = 1) -> "Connection":
        self.served += number
        self.seat.call_made()
        return self


def make(**limits: Any) -> Hosts:
    return Hosts(Pool(64 * MIB), HostLimits(**limits))


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_a_host_is_an_address_or_a_64(address: str, host: str) -> None:
    assert host_of(address) == host


def test_a_host_that_holds_nothing_is_forgotten() -> None:
    hosts = make()
    first, second = Connection(hosts, "192.0.2.1"), Connection(hosts, "192.0.2.1")
    assert (len(hosts), hosts.connections) == (1, 2)
    lease = first.seat.account(MIB).lease(100)
    first.seat.leave()
    first.seat.leave()
    second.seat.leave()
    assert (len(hosts), hosts.connections) == (1, 0)  # an operation that goes on still uses its memory
    lease.release()
    hosts.tick(10)
    assert len(hosts) == 0


def test_silent_connections_beyond_the_hosts_share_push_out_each_other_and_no_caller() -> None:
    hosts = make(host_connections=10)
    honest = Connection(hosts, "192.0.2.1").call()
    silent = [Connection(hosts, "192.0.2.1") for _ in range(100)]
    assert honest.evicted is None
    assert [each.evicted is None for each in silent] == [False] * 91 + [True] * 9
    assert hosts.events["evicted_room"] == 91


def test_of_callers_the_one_with_fewest_calls_gives_way_if_it_is_idle() -> None:
    hosts = make(host_connections=4)
    callers = [Connection(hosts, "192.0.2.1").call(number) for number in (40, 2, 30, 1)]
    callers[3].idle = False
    new = Connection(hosts, "192.0.2.1").call(50)
    assert [each.evicted is None for each in callers] == [True, False, True, True]
    for each in (*callers, new):
        each.idle = False
    with pytest.raises(Refused, match=r"too many connections of 192\.0\.2\.1"):
        Connection(hosts, "192.0.2.1")
    assert hosts.events["refused_host_connections"] == 1


def test_when_there_are_too_many_the_host_that_has_most_gives_way() -> None:
    hosts = make(connections=100, host_connections=1000)
    honest = [Connection(hosts, f"192.0.2.{number}").call() for number in range(20)]
    greedy = [Connection(hosts, "198.51.100.1").call(1000) for _ in range(200)]
    assert not any(each.evicted for each in honest)
    assert hosts.connections == 100
    assert sum(each.evicted is None for each in greedy) == 80
    # A new host gets in, even when all of that host's connections are busy; a further one of it does not then.
    for each in greedy:
        each.idle = False
    new = Connection(hosts, "192.0.2.99")
    with pytest.raises(Refused):
        Connection(hosts, "192.0.2.99")
    with pytest.raises(Refused):
        Connection(hosts, "198.51.100.1")
    assert new.evicted is None
    assert not any(each.evicted for each in honest)
    assert hosts.events["refused_connections"] == 2


def test_where_all_hosts_have_one_connection_one_that_never_called_gives_way_after_a_while() -> None:
    hosts = make(connections=10)
    callers = [Connection(hosts, f"192.0.2.{number}").call() for number in range(9)]
    silent = Connection(hosts, "192.0.2.9", now=1.0)
    Connection(hosts, "192.0.2.10", now=7.0).call()
    assert silent.evicted
    assert not any(each.evicted for each in callers)


def test_where_all_hosts_have_one_connection_the_one_that_gives_least_gives_way_to_another_host() -> None:
    hosts = make(connections=8)
    callers = [Connection(hosts, f"192.0.2.{number}").call(100) for number in range(6)]
    seldom = Connection(hosts, "192.0.2.8").call(3)
    busy = Connection(hosts, "192.0.2.9").call(1)
    busy.idle = False
    new = Connection(hosts, "192.0.2.10", now=20.0).call(1)
    assert seldom.evicted
    newer = Connection(hosts, "192.0.2.11", now=21.0)
    assert newer.evicted is new.evicted is None, "who has just come cannot have made many calls"
    assert sum(each.evicted is not None for each in callers) == 1
    with pytest.raises(Refused):
        Connection(hosts, "192.0.2.10", now=22.0)


NETWORKS = {
    "IPv4 /22": lambda number: f"10.1.{number >> 8}.{number & 255}",
    "IPv4, all over": lambda number: f"{number // 32 + 1}.{number % 32}.0.1",
    "IPv6 /48": lambda number: f"2001:db8:1:{number:x}::1",
    "IPv6 /54": lambda number: f"2001:db8:1:{0x400 + number:x}::1",
    "IPv6, all over": lambda number: f"{0x2000 + number:x}:db8::1",
}


@pytest.mark.parametrize("address", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("newcomer", ["10.1.2.200", "10.1.77.1", "192.0.2.1", "2001:db8:1:7ff::1", "2001:db8:9::1"])
@pytest.mark.parametrize("lately", [True, False])
def test_a_host_without_a_connection_gets_in_whoever_holds_all_there_are(
    address: Callable[[int], str], newcomer: str, lately: bool
) -> None:
    """A thousand addresses that hold one connection each, and make calls by it: nobody is worse than the newcomer."""
    hosts = make()
    held = [Connection(hosts, address(number)).call(10) for number in range(1024) if address(number) != newcomer]
    while hosts.connections < 1024:
        held.append(Connection(hosts, "172.16.1.1").call(10))
    new = Connection(hosts, newcomer, now=20.0 if lately else 1000.0).call()
    assert hosts.connections == 1024
    assert sum(each.evicted is not None for each in held) == 1
    for each in held:
        if not each.evicted:
            each.call()
    assert not new.evicted


def test_of_networks_the_one_that_has_most_gives_way_and_not_the_host_with_some_connections() -> None:
    hosts = make()
    honest = [Connection(hosts, "127.0.0.1").call(number) for number in range(10)]
    other = [Connection(hosts, f"10.0.0.{number}").call() for number in range(50)]
    for number in range(4000):
        with contextlib.suppress(Refused):
            Connection(hosts, f"127.{number // 2000 + 1}.{number % 2000 // 250}.{number % 250}", 20.0).call()
    assert not any(each.evicted for each in honest + other)
    # And it gets as many more as it wants, if not all at once.
    honest += [Connection(hosts, "127.0.0.1", 30.0 + 10 * number) for number in range(20)]
    assert not any(each.evicted for each in honest + other)


def test_a_flood_of_newcomers_does_not_push_out_those_that_make_calls() -> None:
    hosts = make()
    honest = [Connection(hosts, f"10.{number}.0.1").call(100) for number in range(100)]
    for number in range(924):
        Connection(hosts, f"172.{number // 250}.{number % 250}.1").call(5)
    rng, refused = random.Random(5), 0
    for step in range(20_000):  # two hundred a second, of a thousand networks
        now = 20.0 + step / 200
        address = f"{rng.randrange(20, 220)}.{rng.randrange(5)}.{rng.randrange(256)}.1"
        try:
            Connection(hosts, address, now).call()
        except Refused:
            refused += 1
        if step % 200 == 0:
            for each in honest:
                each.served += 2
                each.seat.look(now)
    assert not any(each.evicted for each in honest)
    assert hosts.events["evicted_room"] + refused == 20_000
    assert hosts.events["evicted_room"] <= 192 * 11, "in ten seconds"


def test_a_host_that_calls_much_takes_as_many_places_of_a_crowd_as_it_wants() -> None:
    """As a client does that mounts and unmounts all the time; whoever else has its freed places at once."""
    hosts = make()
    honest = Connection(hosts, "127.0.0.1").call(10_000)
    honest.seat.look(0.0)
    for number in range(1023):
        Connection(hosts, f"127.1.{number // 250}.{number % 250}").call(3)
    for number in range(500):
        Connection(hosts, "127.0.0.1", 20.0).call().seat.leave()
        with contextlib.suppress(Refused):
            Connection(hosts, f"127.2.{number // 250}.{number % 250}", 20.0).call()
    assert hosts.connections == 1024
    assert honest.evicted is None


def test_a_host_takes_the_place_of_its_own_connection_that_is_dead() -> None:
    hosts = make(connections=10)
    dead = Connection(hosts, "192.0.2.0").call()
    dead.idle = False  # an answer that nobody takes
    for number in range(1, 10):
        Connection(hosts, f"192.0.2.{number}").call()
    with pytest.raises(Refused):
        Connection(hosts, "192.0.2.0", now=1.0)  # it is in use, as far as one knows
    Connection(hosts, "192.0.2.0", now=6.0).call()
    assert dead.evicted
    assert hosts.events["evicted_room"] == 1


def test_a_host_takes_the_places_of_its_own_connections_that_are_dead() -> None:
    hosts = make(host_connections=4)
    dead = [Connection(hosts, "192.0.2.0").call() for number in range(4)]
    for each in dead:
        each.idle = False
        each.seat.look(0.0)
    with pytest.raises(Refused):
        Connection(hosts, "192.0.2.0", now=60.0)
    for number in range(4):
        Connection(hosts, "192.0.2.0", now=130.0).call(200)
        assert sum(each.evicted is not None for each in dead) == number + 1


def test_a_newcomer_takes_the_same_work_however_many_there_are() -> None:
    lines = []
    for connections in (256, 4096):
        hosts = make(connections=connections)
        for number in range(connections):
            Connection(hosts, f"10.{number & 1}.{number >> 8}.{number >> 1 & 127}").call()
        lines.append(lines_of((networks, rpcrdma.hosts), lambda hosts=hosts: Connection(hosts, "192.0.2.1", now=20.0)))
    assert lines[0] == pytest.approx(lines[1], rel=0.5)


def test_any_coming_and_going_keeps_the_books() -> None:
    rng = random.Random(11)
    hosts = make(connections=50, host_connections=20)
    there: list[Connection] = []
    for step in range(20_000):
        there = [each for each in there if each.evicted is None]
        if there and rng.random() < 0.4:
            there.pop(rng.randrange(len(there))).seat.leave()
        else:
            number = min(rng.randrange(40), 12)
            address = f"192.0.{number & 3}.{number}" if number & 1 else f"2001:db8:{number & 2}:{number << 6:x}::1"
            try:
                there.append(Connection(hosts, address, step))
            except Refused:
                continue
            if rng.random() < 0.5:
                there[-1].call(rng.randrange(1, 100))
            there[-1].idle = rng.random() < 0.7
        there = [each for each in there if each.evicted is None]
        counts = [len(list(same)) for _, same in itertools.groupby(sorted(each.address for each in there))]
        assert hosts.connections == len(there) <= 50
        assert hosts.statistics()["most_connections_of_a_host"] == max(counts, default=0) <= 20
        assert len(hosts) == len(counts)
        silent = [each.seat for each in there if not each.seat.called]
        assert list(hosts.everybody.silent) == silent
        if step % 100 == 0:
            chains = [each.seat.host.chain() for each in there]
            for depth in range(4):
                held = Counter(chain[depth] for chain in chains)
                for group, connections in held.items():
                    assert group.connections == connections
                    assert list(group.silent) == [seat for seat in silent if group in seat.host.chain()]
                    parts = {
                        chain[depth + 1].weight for chain in chains if len(chain) > depth + 1 and chain[depth] is group
                    }
                    assert group.most == max(parts, default=0)
                    assert not parts or group.fullest().weight == group.most


def test_calls_in_progress_are_bounded_by_host_and_in_all_and_those_who_wait_take_turns() -> None:
    hosts = make(host_calls=3, calls=5)
    greedy, modest = Connection(hosts, "192.0.2.1"), Connection(hosts, "192.0.2.2")
    gone = Connection(hosts, "192.0.2.1")
    assert [greedy.seat.begin_call() for _ in range(5)] == [True] * 3 + [False] * 2
    assert not gone.seat.begin_call()
    assert [modest.seat.begin_call() for _ in range(3)] == [True, True, False]
    gone.seat.leave()
    modest.seat.end_call()
    assert (modest.told, greedy.told) == (1, 0)  # whose host has too many still
    greedy.seat.end_call()
    assert (modest.told, greedy.told) == (1, 1)
    for _ in range(2):
        greedy.seat.end_call()
    modest.seat.end_call()
    assert hosts.statistics()["calls"] == 0


def test_connections_that_want_more_turns_share_the_time_of_one() -> None:
    hosts = make()
    there = [Connection(hosts, f"192.0.2.{number}") for number in range(10)]
    for each in there:
        each.seat.cut_short()
        each.seat.cut_short()
    assert there[0].seat.begin_turn() == pytest.approx(TURN / 10)
    for each in there:
        each.seat.leave()
        each.seat.cut_short()  # as one does that is being closed
        each.seat.leave()
    assert Connection(hosts, "192.0.2.1").seat.begin_turn() == TURN


def holding(hosts: Hosts, address: str, size: int) -> tuple[Seat, Any, list[Lease]]:
    seat = Connection(hosts, address).seat
    account = seat.account(64 * MIB)
    return seat, account, [account.lease(MIB) for _ in range(size // MIB)]


def test_who_holds_much_while_memory_is_short_must_make_headway() -> None:
    hosts = make(host_memory=64 * MIB)
    seat, account, held = holding(hosts, "192.0.2.1", 40 * MIB)
    assert not any(seat.stuck(now, account, True) for now in range(100))  # there is plenty
    other = holding(hosts, "192.0.2.2", 10 * MIB)
    # Half of it in fifteen seconds is enough, and what we are the cause of is no fault of the peer's.
    for now in range(100, 200):
        assert not seat.stuck(now, account, True)
        for _ in range(2):
            held.pop().release()
            held.append(account.lease(MIB))
    assert not any(seat.stuck(now, account, now % 14 != 0) for now in range(200, 300))
    assert not seat.stuck(300, account, False)
    found = [now for now in range(301, 400) if seat.stuck(now, account, True)]
    assert found[0] == 316
    # One MiB of forty a second is too little now; it was enough.
    assert not seat.stuck(400, account, False)
    found = []
    for now in range(401, 417):
        held.pop().release()
        held.append(account.lease(MIB))
        found.append(seat.stuck(now, account, True))
    assert found == [False] * 15 + [True]
    for lease in held + other[2]:
        lease.release()


def test_small_parts_of_much_must_be_given_back_as_well() -> None:
    """A hundred connections of a host, none of which holds much."""
    hosts = make(host_memory=64 * MIB)
    there = [holding(hosts, "192.0.2.1", MIB) for _ in range(47)]
    for now in range(0, 40, 5):
        assert not any(seat.stuck(now, account, True) for seat, account, _ in there), "there is plenty"
    there[0][2].extend(there[0][1].lease(MIB) for _ in range(2))
    found: set[Seat] = set()
    for now in range(100, 120):
        for number, (seat, account, held) in enumerate(there):
            if number % 2 and now % 7 == 0:
                held.pop().release()
                held.append(account.lease(MIB))
            if seat.stuck(now, account, True):
                found.add(seat)
    assert found == {seat for seat, _, _ in there[::2]}
    for _, _, held in there:
        for lease in held:
            lease.release()


def test_who_waits_for_memory_gives_way_if_its_host_uses_more_than_its_part() -> None:
    hosts = make(host_memory=64 * MIB)
    greedy, account, held = holding(hosts, "192.0.2.1", 50 * MIB)
    modest, other, few = holding(hosts, "192.0.2.2", 2 * MIB)
    assert not any(modest.starved(now, other, True) for now in range(0, 200, 10))
    assert not greedy.starved(0, account, True)
    assert not greedy.starved(14, account, True)
    assert greedy.starved(15, account, True)
    assert not greedy.starved(16, account, False)
    assert not greedy.starved(17, account, True)
    for lease in held + few:
        lease.release()


def test_connections_of_one_host_that_wait_for_each_other_do_not_wait_for_ever() -> None:
    hosts = make(host_memory=8 * MIB)
    seat, account, held = holding(hosts, "192.0.2.1", 8 * MIB)
    assert not any(seat.starved(now, account, True) for now in range(60))
    assert seat.starved(60, account, True)
    for lease in held:
        lease.release()
