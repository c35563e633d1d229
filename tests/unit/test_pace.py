"""Rates on a virtual clock: what may go on when, whose turn it is, what is owed, and what hurries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpcrdma.pace import Dues, Pace, Rate, pretend
from rpcrdma.paces import NO_BOUND, Bound, Paces
from rpcrdma.rpc.tally import Tally

SECOND = 1_000_000_000
MIB = 1 << 20


class Clock:
    """The time, and the timers that are set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        pretend(int(self.now * SECOND))

    def schedule(self, seconds: float, callback: Callable[[], None]) -> Any:
        entry = (self.now + seconds, callback)
        self.timers.append(entry)
        clock = self

        class Handle:
            def cancel(self) -> None:
                clock.timers.remove(entry)

        return Handle()

    def pass_by(self, seconds: float) -> None:
        """Time, with what is due in it."""
        until = self.now + seconds
        while self.timers and min(self.timers, key=lambda one: one[0])[0] <= until:
            entry = min(self.timers, key=lambda one: one[0])
            self.timers.remove(entry)
            self.now = max(self.now, entry[0])
            pretend(int(self.now * SECOND))
            entry[1]()
        self.now = until
        pretend(int(until * SECOND))


@pytest.fixture
def clock() -> Iterator[Clock]:
    found = Clock()
    yield found
    pretend(0)


class Connection:
    """Has calls of ``octets`` each, without end, and makes them as long as it may."""

    def __init__(self, pace: Pace, tally: Tally, octets: int = 0) -> None:
        self.pace, self.tally, self.octets = pace, tally, octets
        self.made = 0
        self.turns = 0

    def go_on(self) -> None:
        self.turns += 1
        for _ in range(100000):
            if self.pace.is_over():
                break
            self.tally.read += self.octets
            self.tally.add(0.0, False)
            self.made += 1
        else:
            raise AssertionError("nothing ever stops it")
        self.pace.wait(self)


def connections(paces: Paces, host: str, count: int, octets: int = 0, **price: Any) -> list[Connection]:
    pace = paces.of(host)
    tally = Tally()
    paces.price(tally, host, 1, price.get("own", NO_BOUND), 7, price.get("shared", NO_BOUND))
    return [Connection(pace, tally, octets) for _ in range(count)]


@pytest.mark.parametrize(("bound", "octets", "calls"), [
    (Bound(calls=100), 0, 100), (Bound(octets=10 * MIB), MIB, 10), (Bound(octets=MIB), 2 * MIB, 0.5),
    (Bound(octets=100 * MIB, calls=20), MIB, 20), (Bound(octets=4 * MIB, calls=5000), MIB, 4),
])  # fmt: skip
def test_a_client_does_what_its_rate_says(clock: Clock, bound: Bound, octets: int, calls: float) -> None:
    (one,) = connections(Paces(clock.schedule), "h", 1, octets, own=bound)
    one.go_on()
    assert one.made <= calls / 2 + 2, "half a second's worth, and the call that is too much"
    clock.pass_by(200.0)
    assert abs(one.made - 200 * calls) <= calls / 2 + 2


def test_connections_of_a_host_take_turns_and_are_worth_no_more_than_one(clock: Clock) -> None:
    many = connections(Paces(clock.schedule), "h", 8, MIB, own=Bound(octets=16 * MIB))
    for one in many:
        one.go_on()
    clock.pass_by(100.0)
    made = [one.made for one in many]
    assert abs(sum(made) - 1600) <= 20
    # What was saved up goes to the first one.
    assert max(made) - min(made) <= 12


def test_hosts_share_the_rate_of_an_export_whatever_their_connections(clock: Clock) -> None:
    paces = Paces(clock.schedule)
    shared = Bound(octets=16 * MIB)
    greedy, small = connections(paces, "g", 16, MIB, shared=shared), connections(paces, "s", 1, MIB, shared=shared)
    for one in (*greedy, *small):
        one.go_on()
    clock.pass_by(100.0)
    theirs, ours = sum(one.made for one in greedy), small[0].made
    assert abs(theirs + ours - 1600) <= 20
    assert ours >= 0.4 * theirs


def test_the_rate_of_a_client_leaves_others_alone(clock: Clock) -> None:
    paces = Paces(clock.schedule)
    (one,) = connections(paces, "h", 1, own=Bound(calls=1))
    one.go_on()
    other = paces.of("other")
    assert one.pace.is_over()
    assert not other.is_over()
    assert not other.limited


def test_what_is_not_used_is_saved_up_for_half_a_second(clock: Clock) -> None:
    (one,) = connections(Paces(clock.schedule), "h", 1, own=Bound(calls=100))
    clock.pass_by(1000.0)
    one.go_on()
    assert one.made == 51


def test_a_client_that_is_slower_than_its_rate_never_waits(clock: Clock) -> None:
    pace, tally = Pace(clock.schedule), Tally()
    rate = Rate(0, 100)
    pace.limit(rate)
    tally.dues = Dues(pace, rate, None, 0)
    for _ in range(1000):
        clock.pass_by(0.011)
        assert not pace.is_over()
        tally.add(0.0, False)
    assert pace.times_held == 0
    assert pace.owed == 0.0


def test_as_many_calls_are_in_progress_as_go_into_a_second(clock: Clock) -> None:
    for bound, most in ((Bound(octets=10 * MIB), 10), (Bound(octets=4096), 1), (Bound(calls=7), 7),
                        (Bound(octets=3 * MIB, calls=50), 3)):  # fmt: skip
        (one,) = connections(Paces(clock.schedule), "h", 1, own=bound)
        assert one.pace.most_calls == most
    assert Pace(clock.schedule).most_calls == 0


def test_what_has_come_of_a_call_is_reckoned_with_once(clock: Clock) -> None:
    pace, tally = Pace(clock.schedule), Tally()
    rate = Rate(MIB, 0)
    pace.limit(rate)
    tally.dues = Dues(pace, rate, None, 0)
    pace.expect(2 * MIB)
    assert pace.is_over()
    assert pace.owed == pytest.approx(1.5)
    tally.written += 2 * MIB
    tally.add(0.0, False)
    assert pace.owed == pytest.approx(1.5), "not charged twice"


def test_who_comes_back_owes_what_it_owed(clock: Clock) -> None:
    paces = Paces(clock.schedule)
    (one,) = connections(paces, "h", 1, 10 * MIB, own=Bound(octets=MIB))
    one.go_on()
    one.pace.leave(one)
    paces.left("h")
    paces.tidy()
    assert paces.of("h") is one.pace
    assert paces.of("h").is_over()
    paces.left("h")
    clock.pass_by(20.0)
    paces.tidy()
    assert one.pace.gone
    assert paces.known("h") is None
    assert not paces.of("h").is_over()


def test_debts_that_are_remembered_are_bounded(clock: Clock) -> None:
    paces = Paces(clock.schedule)
    for number in range(5000):
        (one,) = connections(paces, f"h{number}", 1, 10 * MIB, own=Bound(octets=MIB))
        one.go_on()
        one.pace.leave(one)
        paces.left(f"h{number}")
    paces.tidy()
    assert len(paces.all()) <= 4097


def test_a_host_is_hurried_once_until_it_has_paid(clock: Clock) -> None:
    paces = Paces(clock.schedule)
    (one,) = connections(paces, "h", 1, MIB, own=Bound(octets=MIB))
    one.go_on()
    assert one.pace.is_over()
    assert one.pace.hurry()
    assert not one.pace.is_over()
    one.pace.leave(one)
    for _ in range(100):
        one.tally.read += MIB
        one.tally.add(0.0, False)
    clock.pass_by(5.1)
    assert one.pace.is_over(), "it owes for what it did in a hurry"
    assert not one.pace.hurry(), "and is not hurried again"
    assert one.pace.is_over()
    clock.pass_by(100.0)
    assert not one.pace.is_over()
    assert one.pace.hurry()


def test_who_is_hurried_goes_on_at_once(clock: Clock) -> None:
    (one,) = connections(Paces(clock.schedule), "h", 1, 64 * MIB, own=Bound(octets=MIB))
    one.go_on()
    turns = one.turns
    one.octets = 0
    one.pace.limit(Rate(0, 1000000))

    class Done(Exception):
        pass

    def go_on() -> None:
        raise Done

    one.go_on = go_on  # type: ignore[method-assign]
    one.pace.hurry()
    with pytest.raises(Done):
        clock.pass_by(0.01)
    assert one.turns == turns


def test_without_rates_any_more_everybody_goes_on(clock: Clock) -> None:
    paces = Paces(clock.schedule)
    (one,) = connections(paces, "h", 1, 64 * MIB, own=Bound(octets=MIB))
    one.go_on()
    assert one.pace.held
    went: list[int] = []
    one.go_on = lambda: went.append(1)  # type: ignore[method-assign]
    paces.forget_rates()
    clock.pass_by(0.01)
    assert went == [1]
    assert not one.pace.limited
    assert not one.pace.is_over()


def test_a_debt_is_never_longer_than_an_hour(clock: Clock) -> None:
    (one,) = connections(Paces(clock.schedule), "h", 1, 1 << 50, own=Bound(octets=4096))
    one.go_on()
    assert one.pace.owed <= 3600.1


def test_it_is_told_how_long_somebody_waited(clock: Clock) -> None:
    (one,) = connections(Paces(clock.schedule), "h", 1, 3 * MIB, own=Bound(octets=MIB))
    one.go_on()
    clock.pass_by(2.0)
    assert one.pace.held
    assert one.pace.held_seconds == pytest.approx(2.0)
    one.pace.leave(one)
    clock.pass_by(1.0)
    assert one.pace.held_lately
    assert not one.pace.held
    clock.pass_by(2.0)
    assert not one.pace.held_lately
    assert one.pace.held_seconds == pytest.approx(2.0)


def test_others_do_not_wait_for_what_is_done_in_a_hurry() -> None:
    clock = Clock()
    try:
        paces = Paces(clock.schedule)
        hurried, other = Tally(), Tally()
        for host, tally in (("hurried", hurried), ("other", other)):
            paces.of(host)
            paces.price(tally, host, 1, NO_BOUND, 1, Bound(octets=100 << 20))
        assert paces.of("hurried").hurry()
        for _ in range(25000):  # what memory gives in five seconds
            hurried.read += 1 << 20
            hurried.add(0.0, False)
        other.add(0.0, False)
        assert paces.of("other").owed < 2.0
        assert paces.of("hurried").owed > 240.0, "but it pays for all of it"
        assert not paces.of("hurried").is_over()
        clock.pass_by(6.0)
        assert paces.of("hurried").is_over()
        assert not paces.of("other").is_over()
    finally:
        pretend(0)
