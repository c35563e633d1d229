"""Blocked locks: turns, the time a range is kept, who is forgotten, and deadlocks found and never made up."""

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, LockDenied, waiters
from nfsd.state.types import UINT64_MAX
from nfsd.state.waiters import ANSWER, KEEP, LONGEST_POLL, POLLER_WAITS
from tests.support.lines import lines_of

from .state_support import World, failing


class Party:
    """A client and its one lock owner, with its opens by file."""

    def __init__(self, world, name, minor=1):
        self.world = world
        self.client = world.client41(name) if minor else world.client40(name)
        self.name = name
        self.opens = {}

    @property
    def locks(self):
        return self.world.engine.locks

    def open(self, key):
        if key not in self.opens:
            self.opens[key] = self.client.open(key)
        return self.opens[key]

    def ask(self, key=b"f", offset=0, length=10, *, exclusive=True, wait=True, status=p.NFS4_OK, owner=b"l"):
        """LOCK, which must end with this status."""
        self.client.record.renew()
        state = self.open(key)
        if status == p.NFS4_OK:
            self._lock(state, offset, length, exclusive, wait, owner)
        else:
            with failing(status):
                self._lock(state, offset, length, exclusive, wait, owner)

    def _lock(self, state, offset, length, exclusive, wait, owner):
        record, handle = self.client.record, b"handle of " + state.file.key
        locked = state.lock_states.get(record.lock_owners.get(owner))
        if locked is not None:
            made = self.locks.lock(
                locked, exclusive, offset, length, reclaim=False, wait=wait, handle=handle
            )  # fmt: skip
        else:
            known = record.lock_owners.get(owner)
            seqid = known.seqid + 1 if known is not None and known.seqid is not None else 0
            made = self.locks.lock_new(
                state, owner, exclusive, offset, length, reclaim=False, wait=wait, handle=handle, lock_seqid=seqid
            )
        made.commit()

    def release(self, key=b"f", offset=0, length=UINT64_MAX, owner=b"l"):
        self.client.record.renew()
        state = self.opens[key]
        self.locks.unlock(state.lock_states[self.client.record.lock_owners[owner]], offset, length)


def told(world):
    return [waiter.client for waiter in world.engine.locks.waits.notices()]


def parties(count, minor=1):
    world = World()
    return world, *(Party(world, b"%d" % index, minor) for index in range(count))


DENIED, DEADLOCK = p.NFS4ERR_DENIED, p.NFS4ERR_DEADLOCK


# -- turns ----------------------------------------------------------------------------------------------------------
def test_the_first_waiter_is_told_and_gets_the_lock():
    world, one, two, three = parties(3)
    one.ask()
    two.ask(length=5, status=DENIED)
    three.ask(status=DENIED)
    assert told(world) == []
    one.release()
    (notice,) = world.engine.locks.waits.notices()
    assert (notice.client, notice.owner, notice.handle) == (two.client.record, b"l", b"handle of f")
    assert told(world) == [], "each waiter is told once"
    three.ask(status=DENIED)
    one.ask(wait=False, status=DENIED)
    two.ask(length=5)
    assert told(world) == []
    two.release()
    assert told(world) == [three.client.record]
    three.ask()


def test_waiters_that_share_are_told_together():
    world, one, two, three, four = parties(4)
    one.ask()
    two.ask(exclusive=False, status=DENIED)
    three.ask(exclusive=False, status=DENIED)
    four.ask(status=DENIED)
    one.release()
    assert told(world) == [two.client.record, three.client.record]
    three.ask(exclusive=False)
    two.ask(exclusive=False)
    two.release()
    assert told(world) == []
    three.release()
    assert told(world) == [four.client.record]


def test_a_downgrade_lets_readers_in():
    world, one, two = parties(2)
    one.ask()
    two.ask(exclusive=False, status=DENIED)
    one.ask(exclusive=False)
    assert told(world) == [two.client.record]
    two.ask(exclusive=False)


def test_a_range_is_kept_for_a_short_time_only():
    world, one, two, three = parties(3)
    one.ask()
    world.clock.now += 20
    two.ask(status=DENIED)
    world.clock.now += 10  # nobody expects it to ask of itself
    three.ask(status=DENIED)
    one.release()
    assert told(world) == [two.client.record]
    world.clock.now += KEEP + 0.1
    assert told(world) == [three.client.record], "the one who does not come loses its turn"
    one.ask(wait=False, status=DENIED)
    world.clock.now += KEEP + 0.1
    one.ask(wait=False)


def test_who_was_refused_for_anothers_turn_hears_when_it_is_over():
    world, one, two = parties(2, minor=0)
    three = Party(world, b"3")
    one.ask()
    for _ in range(2):
        two.ask(status=DENIED)
        world.clock.now += POLLER_WAITS
    one.release()
    assert told(world) == []  # nobody calls a client of 4.0
    three.ask(status=DENIED)
    assert told(world) == []
    world.clock.now += POLLER_WAITS + KEEP + 0.1
    assert told(world) == [three.client.record]


def test_pollers_do_not_make_everybody_keep_their_pace():
    world, one, two = parties(2, minor=0)
    one.ask()
    two.ask(status=DENIED)
    one.release()
    one.ask()
    world.clock.now += POLLER_WAITS
    two.ask(status=DENIED)
    one.release()
    world.clock.now += POLLER_WAITS
    one.ask(status=DENIED)
    two.ask()


def test_who_has_to_poll_finds_the_range_when_it_does():
    """Linux's 4.0 client doubles its interval; a greedy one that locks again and again must not starve it."""
    world, greedy, poller = parties(2, minor=0)
    greedy.ask()
    start = world.clock.now
    for after in (0, 1, 3, 7):
        world.clock.now = start + after
        poller.ask(status=DENIED)
    refused = []
    for tick in range(7 * 4, 15 * 4):  # a quarter of a second each
        world.clock.now = start + tick / 4
        held = bool(greedy.opens[b"f"].file.locks)
        if held:
            greedy.release()
        try:
            greedy.ask(wait=False)
        except LockDenied:
            refused.append(tick / 4)
    assert refused, "the range was never kept"
    assert all(abs(at - 11) <= KEEP or abs(at - 15) <= KEEP for at in refused), "kept only when the poller is due"
    world.clock.now = start + 15
    poller.ask()


def test_a_nonblocking_request_gives_the_place_up():
    world, one, two, three = parties(3)
    one.ask()
    two.ask(status=DENIED)
    three.ask(status=DENIED)
    two.ask(wait=False, status=DENIED)
    one.release()
    assert told(world) == [three.client.record]


def test_asking_again_keeps_the_place():
    world, one, two, three = parties(3)
    one.ask()
    for party in (two, three, two):
        party.ask(status=DENIED)
    assert [waiter.client for waiter in one.opens[b"f"].file.waiters] == [two.client.record, three.client.record]
    assert told(world) == []


def test_who_has_stopped_asking_is_forgotten():
    world, one, two = parties(2)
    one.ask()
    two.ask(status=DENIED)
    file = one.opens[b"f"].file
    for _ in range(10):
        world.pass_time(LONGEST_POLL)
        one.client.renew()
        two.client.renew()
    assert file.waiters == []
    world.engine.opens.close(one.opens[b"f"])
    world.engine.opens.close(two.opens[b"f"])
    world.engine.locks.local_clears(file)
    assert world.engine.opens.file(b"f") is None


def test_a_short_lease_does_not_forget_who_polls_like_linux():
    world = World(Limits(lease=10.0))
    one, two = Party(world, b"1"), Party(world, b"2")
    one.ask()
    two.ask(status=DENIED)
    for _ in range(6):
        world.pass_time(LONGEST_POLL / 6)
        one.client.renew()
        two.client.renew()
    one.release()
    assert told(world) == [two.client.record]


def test_a_client_that_expires_waits_no_more():
    world, one, two, three = parties(3)
    one.ask()
    two.ask(status=DENIED)
    three.ask(status=DENIED)
    world.engine.expire_client(two.client.record)
    one.release()
    assert told(world) == [three.client.record]


def test_nothing_is_kept_for_an_owner_that_does_something_else():
    """A process that a signal has woken gives up what it holds: it does not wait any more."""
    world, one, two, three = parties(3)
    one.ask(offset=0)
    two.ask(offset=10)
    one.ask(offset=10, status=DENIED)
    one.release()
    two.release()
    assert told(world) == [one.client.record], "it may have been another thread, though"
    three.ask(offset=10, wait=False)


def test_an_owner_whose_state_is_gone_waits_no_more():
    world, one, two = parties(2)
    one.ask(offset=0)
    two.ask(offset=10)
    one.ask(offset=10, status=DENIED)
    one.release()
    world.engine.locks.free(one.opens[b"f"].lock_states[one.client.record.lock_owners[b"l"]])
    assert two.opens[b"f"].file.waiters == []


def test_release_lockowner_ends_waiting():
    world, one, two = parties(2, minor=0)
    one.ask()
    two.ask(status=DENIED)
    world.engine.locks.release_lockowner(two.client.record, b"l")
    assert one.opens[b"f"].file.waiters == []


def test_the_lock_of_an_expired_client_goes_to_who_waits():
    world, one, two = parties(2)
    one.ask()
    two.ask(status=DENIED)
    world.engine.expire_client(one.client.record)
    assert told(world) == [two.client.record]


def test_the_lock_of_a_client_whose_lease_is_over_goes_to_who_waits_at_once():
    """Nobody's courtesy: who was promised a notification asks again late."""
    world, one, two = parties(2)
    one.ask()
    for _ in range(3):
        two.ask(status=DENIED)
        world.pass_time(LONGEST_POLL - 0.1)
    assert not one.client.record.courtesy
    world.pass_time(2)
    assert one.client.record.expired
    assert told(world) == [two.client.record]
    two.ask()


def test_queues_are_bounded():
    world = World(Limits(waiters=3, client_waiters=2))
    one, two, three = (Party(world, name) for name in (b"1", b"2", b"3"))
    one.ask(length=100)
    for offset in range(4):
        two.ask(offset=offset, status=DENIED)
        three.ask(offset=offset, status=DENIED)
    waiters = one.opens[b"f"].file.waiters
    assert [waiter.client for waiter in waiters] == [two.client.record, three.client.record, two.client.record]


# -- deadlock -------------------------------------------------------------------------------------------------------
def cross(one, two, **denied):
    """Each holds what the other asks for."""
    one.ask(b"f")
    two.ask(b"g")
    one.ask(b"g", status=DENIED)
    two.ask(b"f", status=DENIED)


def test_two_that_wait_for_each_other():
    world, one, two = parties(2)
    cross(one, two)
    assert told(world) == [one.client.record], "whether it still waits is asked by calling it"
    one.ask(b"g", status=DENIED)
    assert told(world) == [two.client.record]
    two.ask(b"f", status=DEADLOCK)
    # Its process gives up what it holds; the other goes on.
    two.release(b"g")
    assert told(world) == [one.client.record]
    one.ask(b"g")


def test_three_owners_of_two_clients_on_one_file():
    world = World()
    client = Party(world, b"1")
    other = Party(world, b"2")
    client.ask(offset=0, owner=b"a")
    client.ask(offset=10, owner=b"b")
    other.ask(offset=20)
    client.ask(offset=10, owner=b"a", status=DENIED)
    client.ask(offset=20, owner=b"b", status=DENIED)
    other.ask(offset=0, status=DENIED)
    assert sorted(waiter.owner for waiter in world.engine.locks.waits.notices()) == [b"a", b"b"]
    client.ask(offset=10, owner=b"a", status=DENIED)
    client.ask(offset=20, owner=b"b", status=DENIED)
    other.ask(offset=0, status=DEADLOCK)
    client.ask(offset=10, owner=b"a", status=DENIED)  # broken: nobody else need give up


def test_two_readers_that_both_want_to_write():
    _, one, two = parties(2)
    one.ask(exclusive=False)
    two.ask(exclusive=False)
    one.ask(status=DENIED)
    two.ask(status=DENIED)
    one.ask(status=DENIED)
    two.ask(status=DEADLOCK)
    two.release()
    one.ask()


def test_clients_of_40_are_found_by_their_polls():
    world, one, two = parties(2, minor=0)
    cross(one, two)
    world.clock.now += 1
    one.ask(b"g", status=DENIED)
    two.ask(b"f", status=DEADLOCK)


def test_one_that_has_stopped_waiting_makes_no_deadlock():
    """A signal ends the wait; the server is not told. However often the other asks, it is no deadlock."""
    world, one, two = parties(2)
    one.ask(b"f")
    two.ask(b"g")
    one.ask(b"g", status=DENIED)
    for _ in range(5):
        two.ask(b"f", status=DENIED)
        told(world)
        world.clock.now += 1
    one.release(b"f")
    two.ask(b"f")


def test_one_that_does_something_else_waits_for_nothing():
    world, one, two = parties(2)
    cross(one, two)
    one.ask(b"h")
    assert told(world) == [one.client.record]
    two.ask(b"f", status=DENIED)
    one.ask(b"g", status=DENIED)
    two.ask(b"f", status=DENIED)
    one.ask(b"g", status=DEADLOCK)


def test_a_wait_that_has_ended_and_begun_again_counts_from_its_beginning():
    world, one, two = parties(2)
    cross(one, two)
    one.ask(b"h")  # it did not wait then
    one.ask(b"g", status=DENIED)
    world.clock.now += LONGEST_POLL + KEEP + 1
    two.ask(b"f", status=DENIED)  # the same process, another wait
    one.ask(b"g", status=DENIED)
    two.ask(b"f", status=DEADLOCK)


def test_one_that_was_heard_of_too_long_ago_makes_no_deadlock():
    world, one, two = parties(2)
    cross(one, two)
    one.ask(b"g", status=DENIED)  # since the cycle was seen; then a signal ends its wait
    world.clock.now += ANSWER + 1
    two.ask(b"f", status=DENIED)
    assert told(world) == [one.client.record, two.client.record]
    two.ask(b"f", status=DENIED)


def test_calls_that_fail_are_replaced_by_polls():
    world, one, two = parties(2)
    cross(one, two)
    for waiter in world.engine.locks.waits.notices():
        world.engine.locks.waits.unreachable(waiter)
    world.clock.now += 1
    one.ask(b"g", status=DENIED)
    for waiter in world.engine.locks.waits.notices():
        world.engine.locks.waits.unreachable(waiter)
    world.clock.now += LONGEST_POLL
    for party, key, status in ((two, b"f", DENIED), (one, b"g", DEADLOCK)):
        party.ask(key, status=status)


def test_nonblocking_requests_never_deadlock():
    _world, one, two = parties(2)
    cross(one, two)
    for _ in range(3):
        one.ask(b"g", wait=False, status=DENIED)
        two.ask(b"f", wait=False, status=DENIED)


def test_a_called_waiter_is_not_called_in_a_loop():
    world, one, two = parties(2)
    cross(one, two)
    calls = 0
    for _ in range(20):
        calls += len(told(world))
        two.ask(b"f", status=DENIED)  # never the one that is called
        world.clock.now += 0.1
    assert calls == 1 + int(2 / ANSWER)


def test_a_search_for_a_cycle_is_bounded(monkeypatch):
    """Thousands of locks in the way: a search that would take long is given up, and the client polls."""
    world, one = parties(1)
    one.ask(b"other")
    crowd = Party(world, b"crowd")
    for index in range(200):
        crowd.ask(offset=index, length=1, owner=b"%d" % index)
    crowd.ask(b"other", owner=b"150", status=DENIED)
    monkeypatch.setattr(waiters, "SEARCH", 100)
    one.ask(length=UINT64_MAX, status=DENIED)
    assert told(world) == []
    monkeypatch.setattr(waiters, "SEARCH", 1000)
    one.ask(length=UINT64_MAX, status=DENIED)
    assert told(world) == [crowd.client.record]


def a_crowd(waiting):
    """Twenty clients whose leases run out, one of them waited for by so many, whose own leases do not."""
    world = World(Limits(courtesy=1000, waiters=100_000))
    gone = [world.client41(b"gone %d" % number) for number in range(20)]
    wanted = world.client41(b"wanted")
    wanted.lock(wanted.open(), 0, 10)
    world.clock.now += 50
    crowd = [Party(world, b"waits %d" % number) for number in range(8)]
    for number in range(waiting):
        crowd[number % 8].ask(status=DENIED, owner=b"%d" % number)
    return world, gone, wanted


def test_a_sweep_takes_the_same_work_however_many_wait():
    """Thousands may wait, and hold up everything else each time that anybody's lease runs out."""
    lines = []
    for waiting in (20, 200):
        world, gone, wanted = a_crowd(waiting)
        world.clock.now += 45
        lines.append(lines_of([waiters], lambda world=world: world.engine.handle_timer(world.clock.now)))
        assert all(client.record.courtesy for client in gone)
        assert wanted.record.expired, "somebody waits for its lock"
    assert lines[0] == lines[1]
    world.clock.now += 1
    assert lines_of([waiters], lambda: world.engine.handle_timer(world.clock.now)) <= 20, "nobody's time is over"


def test_a_sweep_gives_up_only_those_that_have_stopped_asking():
    world, one, two, three = parties(3)
    one.ask()
    for number in range(10):
        two.ask(status=DENIED, owner=b"stops %d" % number)
    three.ask(status=DENIED)
    for _ in range(10):
        world.clock.now += 10
        one.client.record.renew()
        two.client.record.renew()
        three.ask(status=DENIED)
        world.engine.handle_timer(world.clock.now)
    assert [waiter.client for waiter in one.opens[b"f"].file.waiters] == [three.client.record]


def test_of_several_that_are_gone_and_in_the_way_none_keeps_a_waiter_waiting():
    """Only one of them is remembered."""
    world = World(Limits(courtesy=1000))
    readers = [Party(world, b"reader %d" % number) for number in range(3)]
    for reader in readers:
        reader.ask(exclusive=False)
    world.clock.now += 50
    writer = Party(world, b"writer")
    writer.ask(status=DENIED)
    world.pass_time(45)
    assert [reader.client.record.expired for reader in readers].count(True) == 1
    assert [reader.client.record.courtesy for reader in readers].count(True) == 2
    assert told(world) == [writer.client.record]
    writer.ask()
    assert all(reader.client.record.expired for reader in readers)


def test_who_is_in_the_way_is_looked_at_anew_when_a_lock_goes():
    world = World(Limits(courtesy=1000))
    one, two, three = (Party(world, name) for name in (b"one", b"two", b"three"))
    one.ask(exclusive=False)
    two.ask(exclusive=False)
    three.ask(status=DENIED)
    waits = world.engine.locks.waits
    assert [waits.wanted(party.client.record) for party in (one, two, three)] == [True, False, False]
    one.release()
    assert told(world) == []
    assert [waits.wanted(party.client.record) for party in (one, two, three)] == [False, True, False]
    two.release()
    assert told(world) == [three.client.record]
    assert not any(waits.wanted(party.client.record) for party in (one, two, three))
    two.ask(exclusive=False, wait=False, status=DENIED)  # it is kept for three
    three.ask()
    two.ask(exclusive=False, status=DENIED)
    assert waits.wanted(three.client.record)
    two.ask(exclusive=False, wait=False, status=DENIED)  # says that it does not wait any more
    assert not waits.wanted(three.client.record)
