"""Seats of connections: bounds by host and in all, who gives way, calls in progress, headway."""

import itertools
import random
from typing import Any

import pytest

from rpcrdma.hosts import TURN, HostLimits, Hosts, Refused, Seat, host_of
from rpcrdma.memory import Lease, Pool

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
    with pytest.raises(Refused):
        Connection(hosts, "192.0.2.10", now=2.0)
    Connection(hosts, "192.0.2.10", now=7.0).call()
    assert silent.evicted
    assert not any(each.evicted for each in callers)
    with pytest.raises(Refused):
        Connection(hosts, "192.0.2.11", now=99.0)


def test_any_coming_and_going_keeps_the_books() -> None:
    rng = random.Random(11)
    hosts = make(connections=50, host_connections=20)
    there: list[Connection] = []
    for step in range(20_000):
        there = [each for each in there if each.evicted is None]
        if there and rng.random() < 0.4:
            there.pop(rng.randrange(len(there))).seat.leave()
        else:
            try:
                there.append(Connection(hosts, f"192.0.2.{min(rng.randrange(40), 12)}", step))
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
        assert len(hosts.silent) == sum(not each.seat.called for each in there)


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
    # One MiB in fifteen seconds is enough, and what we are the cause of is no fault of the peer's.
    for now in range(100, 200):
        assert not seat.stuck(now, account, True)
        if now % 10 == 0:
            held.pop().release()
            held.append(account.lease(MIB))
    assert not any(seat.stuck(now, account, now % 14 != 0) for now in range(200, 300))
    assert not seat.stuck(300, account, False)
    found = [now for now in range(301, 400) if seat.stuck(now, account, True)]
    assert found[0] == 316
    for lease in held + other[2]:
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
