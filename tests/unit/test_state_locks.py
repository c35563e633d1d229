"""LOCK, LOCKT, LOCKU and their owners; what must be held towards local processes."""

from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, LockDenied
from nfsd.state.ranges import END
from nfsd.state.types import UINT64_MAX, LocalRange

from .state_support import BOTH, READ, WRITE, World, failing


def two_clients():
    world = World()
    one, two = world.client41(b"1"), world.client41(b"2")
    return world, one, one.open(), two, two.open()


def test_the_end_of_a_lock_state_looks_at_no_other():
    """A hundred thousand of one owner, each of which looks at the others, would keep the server busy for minutes."""

    class Unlooked(set):
        def __iter__(self):
            raise AssertionError("the others are looked at")

    world = World()
    client = world.client41()
    opened = [client.open(b"%d" % number) for number in range(3)]
    held = [client.lock(state, 0, 10) for state in opened]
    held.append(client.lock(client.open(b"0", owner=b"other"), 20, 10))
    owner = held[0].owner
    owner.states = Unlooked(owner.states)
    world.engine.opens.close(opened[0])
    assert len(world.engine.opens.file(b"0").locks.owners[owner]) == 2, "the other open's state is there"
    world.engine.expire_client(client.record)
    assert not owner.files
    assert client.record.locks == client.record.lock_states == 0


def test_denied_lock_names_the_one_in_the_way():
    world, one, first, two, second = two_clients()
    one.lock(first, 10, 10, owner=b"mine")
    one.lock(first, 20, 5, owner=b"mine")
    with pytest.raises(LockDenied) as caught:
        two.lock(second, 24, 100)
    denied = caught.value
    assert (denied.offset, denied.length, denied.exclusive) == (10, 15, True)
    assert (denied.clientid, denied.owner) == (one.clientid, b"mine")
    one.lock(first, 100, UINT64_MAX, owner=b"mine", exclusive=False)
    with pytest.raises(LockDenied) as caught:
        two.lock(second, 1 << 40, 1)
    assert (caught.value.offset, caught.value.length, caught.value.exclusive) == (100, UINT64_MAX, False)
    two.lock(second, 0, 10)
    two.lock(second, 1 << 40, 1, exclusive=False)
    assert world.engine.grace.active is False


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (5, 0), (UINT64_MAX, 2), (5, UINT64_MAX - 1)])
def test_impossible_ranges(offset, length):
    world, one, first, _, _ = two_clients()
    with failing(p.NFS4ERR_INVAL):
        one.lock(first, offset, length)
    with failing(p.NFS4ERR_INVAL):
        world.engine.locks.test(one.record, b"l", b"f", True, offset, length)


def test_ranges_to_the_last_octet():
    _world, one, first, two, second = two_clients()
    one.lock(first, UINT64_MAX, 1)
    with failing(p.NFS4ERR_DENIED):
        two.lock(second, 0, UINT64_MAX)
    two.lock(second, 0, UINT64_MAX - 1)
    two.lock(second, UINT64_MAX - 1, 1)


def test_lock_needs_the_access_it_stands_for():
    world = World()
    client = world.client41()
    reader, writer = client.open(b"r", READ), client.open(b"w", WRITE)
    client.lock(reader, 0, 1, exclusive=False)
    client.lock(writer, 0, 1)
    with failing(p.NFS4ERR_OPENMODE):
        client.lock(reader, 0, 1)
    with failing(p.NFS4ERR_OPENMODE):
        client.lock(writer, 0, 1, exclusive=False, owner=b"other")


def test_lockt_sees_others_and_not_oneself():
    world, one, first, two, _ = two_clients()
    one.lock(first, 0, 10)
    test = world.engine.locks.test
    test(one.record, b"l", b"f", True, 0, 100)
    test(two.record, b"l", b"f", True, 10, 100)
    with failing(p.NFS4ERR_DENIED):
        test(two.record, b"l", b"f", False, 9, 1)
    with failing(p.NFS4ERR_DENIED):
        test(one.record, b"another owner", b"f", False, 0, 1)
    test(two.record, b"l", b"unknown file", True, 0, 1)


def test_lock_stateid_advances_with_every_change():
    world, one, first, _, _ = two_clients()
    locked = one.lock(first, 0, 10)
    assert locked.seqid == 1
    assert one.lock(first, 10, 10) is locked
    assert locked.seqid == 2
    assert world.engine.locks.unlock(locked, 0, 5).seqid == 3


# -- local processes ------------------------------------------------------------------------------------------------
def plan(world, client, state, offset, length, exclusive=True, owner=b"l"):
    return world.engine.locks.lock_new(state, owner, exclusive, offset, length, reclaim=False, wait=False)


def test_local_range_of_a_plan():
    world, one, first, two, second = two_clients()
    made = plan(world, one, first, 5, 10)
    assert made.local == LocalRange(5, 10, True)
    made.commit()
    assert plan_local(world, one, first, 7, 3) is None
    assert plan_local(world, one, first, 7, 9) == LocalRange(7, 9, True)
    assert plan_local(world, one, first, 7, 3, exclusive=False) == LocalRange(7, 3, False)
    assert plan_local(world, one, first, 1 << 62, UINT64_MAX) == LocalRange(1 << 62, 0, True)
    assert plan_local(world, one, first, 1 << 62, 1 << 62) == LocalRange(1 << 62, 0, True)
    assert plan_local(world, one, first, 1 << 63, 5) is None
    two.lock(second, 100, 10, exclusive=False)
    assert plan_local(world, one, first, 100, 10, exclusive=False) is None


def plan_local(world, client, state, offset, length, exclusive=True):
    locked = next(iter(state.lock_states.values()))
    with world.engine.locks.lock(locked, exclusive, offset, length, reclaim=False, wait=False) as made:
        return made.local


def test_aborted_plan_leaves_nothing():
    world, one, first, two, second = two_clients()
    with plan(world, one, first, 0, 10):
        pass
    assert one.record.lock_states == 0
    assert one.record.lock_owners == {}
    two.lock(second, 0, 10)
    assert world.engine.locks.local_clears(first.file) == []


def test_one_plan_per_file_at_a_time():
    world, one, first, two, second = two_clients()
    made = plan(world, one, first, 0, 10)
    with failing(p.NFS4ERR_DELAY):
        two.lock(second, 50, 10)
    made.commit()
    with failing(p.NFS4ERR_BAD_STATEID):
        made.commit()
    two.lock(second, 50, 10)


def test_client_that_expires_under_its_plan_leaves_a_range_to_clear():
    world, one, first, two, second = two_clients()
    two.lock(second, 0, 5, exclusive=False)
    made = plan(world, one, first, 0, 10, exclusive=False)
    world.engine.expire_client(one.record)
    with failing(p.NFS4ERR_EXPIRED):
        made.commit()
    assert world.engine.files_to_clear() == [second.file]
    assert world.engine.locks.local_clears(second.file) == [LocalRange(5, 5)]
    two.lock(second, 0, 20)


def test_open_closed_under_its_plan():
    world, one, first, _, _ = two_clients()
    made = plan(world, one, first, 0, 10)
    world.engine.opens.close(first)
    with failing(p.NFS4ERR_BAD_STATEID):
        made.commit()
    assert world.engine.locks.local_clears(first.file) == [LocalRange(0, 10)]


def test_unlock_clears_what_nobody_else_holds():
    world, one, first, two, second = two_clients()
    locked = one.lock(first, 0, 100, exclusive=False)
    two.lock(second, 40, 20, exclusive=False)
    world.engine.locks.unlock(locked, 10, 60)
    assert world.engine.locks.local_clears(first.file) == [LocalRange(10, 30), LocalRange(60, 10)]
    assert world.engine.locks.local_clears(first.file) == []


def test_range_taken_again_before_it_was_cleared_is_kept():
    world, one, first, two, second = two_clients()
    locked = one.lock(first, 0, 100)
    world.engine.locks.unlock(locked, 0, 100)
    two.lock(second, 20, 10)
    assert world.engine.locks.local_clears(first.file) == [LocalRange(0, 20), LocalRange(30, 70)]


def test_close_releases_locks_and_clears_them_locally():
    world, one, first, two, second = two_clients()
    one.lock(first, 0, 10)
    one.lock(first, 1 << 63, UINT64_MAX)
    file = first.file
    world.engine.opens.close(first)
    assert world.engine.locks.local_clears(file) == [LocalRange(0, 0)]
    assert (one.record.locks, one.record.lock_states, one.record.lock_owners) == (0, 0, {})
    two.lock(second, 0, UINT64_MAX)


def test_expiry_tells_the_files_to_clear_even_if_nothing_else_is_known_of_them():
    world = World()
    client = world.client41()
    state = client.open()
    client.lock(state, 3, 4)
    state.file.node = "node"
    world.engine.expire_client(client.record)
    (file,) = world.engine.files_to_clear()
    assert file.node == "node"
    assert world.engine.locks.local_clears(file) == [LocalRange(3, 4)]
    assert world.engine.opens.file(b"f") is None


def test_same_owner_through_two_opens_keeps_its_ranges_until_the_last_closes():
    world = World()
    client, other = world.client41(b"1"), world.client41(b"2")
    first, second = client.open(owner=b"x"), client.open(owner=b"y")
    client.lock(first, 0, 10)
    client.lock(second, 10, 10)
    world.engine.opens.close(first)
    probe = other.open()
    with failing(p.NFS4ERR_DENIED):
        other.lock(probe, 0, 1)
    world.engine.opens.close(second)
    other.lock(probe, 0, 20)


# -- courtesy, limits, queues ---------------------------------------------------------------------------------------
def test_courtesy_clients_lock_gives_way():
    world, one, first, two, second = two_clients()
    one.lock(first, 0, 10)
    for _ in range(3):
        world.pass_time(40)
        two.renew()
    assert one.record.courtesy
    world.store()
    two.lock(second, 5, 1)
    assert one.record.expired
    assert not world.engine.stable
    assert world.engine.locks.local_clears(second.file) == [LocalRange(0, 5), LocalRange(6, 4)]


def test_locks_are_bounded_per_client():
    world = World(Limits(locks=3, lock_owners=2, lock_states=2))
    client = world.client41()
    state = client.open()
    for index in range(3):
        locked = client.lock(state, index * 10, 5)
    with failing(p.NFS4ERR_SERVERFAULT):
        client.lock(state, 100, 1)
    client.lock(state, 0, 1)  # within its own range: no further one
    world.engine.locks.unlock(locked, 0, 15)
    client.lock(state, 100, 1, owner=b"2")
    with failing(p.NFS4ERR_SERVERFAULT):
        client.lock(state, 200, 1, owner=b"3")
    assert client.record.locks == 2


def test_splitting_range_counts_before_it_is_made():
    world = World(Limits(locks=2))
    client = world.client41()
    state = client.open()
    client.lock(state, 0, 100)
    with failing(p.NFS4ERR_SERVERFAULT):
        client.lock(state, 10, 10, exclusive=False)
    assert client.record.locks == 1
    client.lock(state, 200, 10)
    locked = next(iter(state.lock_states.values()))
    with failing(p.NFS4ERR_SERVERFAULT):
        world.engine.locks.unlock(locked, 10, 10)
    world.engine.locks.unlock(locked, 90, 20)
    assert client.record.locks == 2


# -- v4.0 -----------------------------------------------------------------------------------------------------------
def test_lock_owner_of_40_has_its_own_seqid():
    world = World()
    client = world.client40()
    state, other = client.open(b"f"), client.open(b"g")
    locks, opens = world.engine.locks, world.engine.opens
    locks.lock_new(state, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=50).commit()
    owner = client.record.lock_owners[b"l"]
    locked = state.lock_states[owner]
    assert opens.begin_seqid(locked.stateid.other, 51) == (owner, None)
    stateid = locks.unlock(locked, 0, 5)
    owner.finish(0, b"unlocked")
    replay = opens.begin_seqid(stateid.other, 51)[1]
    assert replay is not None
    assert replay.result == b"unlocked"
    with failing(p.NFS4ERR_BAD_SEQID):
        opens.begin_seqid(stateid.other, 53)
    with failing(p.NFS4ERR_BAD_SEQID):
        locks.lock_new(other, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=60)
    locks.lock_new(other, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=52).commit()
    assert owner.seqid == 52


def test_denied_lock_of_a_known_owner_uses_up_its_seqid():
    world = World()
    client, other = world.client40(b"1"), world.client40(b"2")
    state, second, theirs = client.open(b"f"), client.open(b"g"), other.open(b"g")
    locks = world.engine.locks
    locks.lock_new(state, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=1).commit()
    locks.lock_new(theirs, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=1).commit()
    with failing(p.NFS4ERR_DENIED):
        locks.lock_new(second, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=2)
    locks.lock_new(second, b"l", True, 20, 10, reclaim=False, wait=False, lock_seqid=3).commit()


def test_new_lock_owner_is_for_those_that_hold_nothing_there():
    world = World()
    client = world.client40()
    state = client.open()
    new = partial(world.engine.locks.lock_new, state, b"l", True, reclaim=False, wait=False)
    new(0, 10, lock_seqid=0).commit()
    with failing(p.NFS4ERR_BAD_SEQID):
        new(20, 10, lock_seqid=1)
    owner = client.record.lock_owners[b"l"]
    locked = state.lock_states[owner]
    world.engine.locks.unlock(locked, 0, UINT64_MAX)
    new(20, 10, lock_seqid=1).commit()
    assert state.lock_states == {owner: locked}


def test_release_lockowner():
    world = World()
    client = world.client40()
    state = client.open()
    release = world.engine.locks.release_lockowner
    release(client.record, b"never seen")
    locked = client.lock(state, 0, 10)
    with failing(p.NFS4ERR_LOCKS_HELD):
        release(client.record, b"l")
    world.engine.locks.unlock(locked, 0, UINT64_MAX)
    release(client.record, b"l")
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.stateids.find(locked.stateid, None)
    assert client.record.lock_owners == {}


# -- histories ------------------------------------------------------------------------------------------------------
SIZE = 12
spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(lambda t: (t[0], min(t[0] + t[1], SIZE)))


class LockHistories(RuleBasedStateMachine):
    """Three lock owners of two clients, a local process, plans that are aborted, closes and expiry; against octets.

    ``local`` is what the server's own local lock holds, octet by octet, done exactly as the engine says.
    """

    def __init__(self):
        super().__init__()
        self.world = World()
        self.clients = [self.world.client41(b"0"), self.world.client41(b"1")]
        self.who = ((0, b"p"), (0, b"q"), (1, b"p"))
        self.held = [[None] * SIZE for _ in self.who]
        self.local = [None] * SIZE
        self.process = [False] * SIZE
        self.states = [client.open() for client in self.clients]

    def length(self, start, end):
        return UINT64_MAX if end == SIZE else end - start

    def octets(self, local):
        return range(local.start, min(SIZE, local.start + local.length) if local.length else SIZE)

    @rule(index=st.integers(0, 2), span=spans, exclusive=st.booleans())
    def lock(self, index, span, exclusive):
        number, owner = self.who[index]
        client, state = self.clients[number], self.states[number]
        conflict = any(
            self.held[other][octet] is not None and (exclusive or self.held[other][octet])
            for other in range(3)
            if other != index
            for octet in range(*span)
        )
        locked = state.lock_states.get(client.record.lock_owners.get(owner))
        locks, arguments = self.world.engine.locks, (exclusive, span[0], self.length(*span))
        make = partial(locks.lock_new, state, owner) if locked is None else partial(locks.lock, locked)
        if conflict:
            with failing(p.NFS4ERR_DENIED):
                make(*arguments, reclaim=False, wait=False)
            return
        made = make(*arguments, reclaim=False, wait=False)
        wanted = [] if made.local is None else list(self.octets(made.local))
        if any(self.process[octet] for octet in wanted):
            made.abort()
            return
        for octet in wanted:
            self.local[octet] = made.local.exclusive
        made.commit()
        for octet in range(*span):
            self.held[index][octet] = exclusive

    @rule(index=st.integers(0, 2), span=spans)
    def unlock(self, index, span):
        number, owner = self.who[index]
        client, state = self.clients[number], self.states[number]
        locked = state.lock_states.get(client.record.lock_owners.get(owner))
        if locked is not None:
            self.world.engine.locks.unlock(locked, span[0], self.length(*span))
            self.held[index][span[0] : span[1]] = [None] * (span[1] - span[0])

    @rule()
    def clear(self):
        for file in self.world.engine.files_to_clear():
            for local in self.world.engine.locks.local_clears(file):
                for octet in self.octets(local):
                    self.local[octet] = None

    def forget(self, number):
        for index, (client, _) in enumerate(self.who):
            if client == number:
                self.held[index] = [None] * SIZE

    @rule(number=st.integers(0, 1))
    def close(self, number):
        self.world.engine.opens.close(self.states[number])
        self.forget(number)
        self.states[number] = self.clients[number].open()

    @rule(number=st.integers(0, 1))
    def expire(self, number):
        self.world.engine.expire_client(self.clients[number].record)
        self.forget(number)
        self.clients[number] = self.world.client41(b"%d" % number)
        self.states[number] = self.clients[number].open()

    @rule(octet=st.integers(0, SIZE - 1), takes=st.booleans())
    def local_process(self, octet, takes):
        """A local process takes an octet the server does not hold, or gives it up."""
        self.process[octet] = takes and self.local[octet] is None

    @invariant()
    def held_locally_at_least_what_is_granted(self):
        for octet in range(SIZE):
            kinds = [held[octet] for held in self.held if held[octet] is not None]
            if kinds:
                assert self.local[octet] is any(kinds)
                assert not self.process[octet]

    @invariant()
    def nothing_more_once_cleared(self):
        if not any(file.dirty for file in {state.file for state in self.states}):
            for octet in range(SIZE):
                if all(held[octet] is None for held in self.held):
                    assert self.local[octet] is None

    @invariant()
    def counts_add_up(self):
        for number, client in enumerate(self.clients):
            file = self.states[number].file
            ranges = file.locks.owners if file.locks else {}
            owned = sum(len(one) for owner, one in ranges.items() if owner.client is client.record)
            assert client.record.locks == owned


LockHistories.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLockHistories = LockHistories.TestCase


def test_many_locks_of_one_client():
    world = World()
    client = world.client41()
    state = client.open(access=BOTH)
    locked = client.lock(state, 0, 1)
    for index in range(1, 20_000):
        world.engine.locks.lock(locked, True, index * 2, 1, reclaim=False, wait=False).commit()
    assert client.record.locks == 20_000
    assert state.file.locks.conflict(None, 39_998, END, False)[1:] == (39_998, 39_999, True)
    world.engine.opens.close(state)
    assert client.record.locks == 0


# -- what may happen while a gate is waited for ---------------------------------------------------------------------
class Gate:
    def __init__(self):
        self.held = True

    def locked(self):
        return self.held


def test_file_keeps_its_gate_while_local_locks_are_on_their_way_out():
    world, one, first, _, second = two_clients()
    world.engine.opens.close(second)
    one.lock(first, 0, 10)
    file = first.file
    file.gate = Gate()
    world.engine.opens.close(first)
    assert world.engine.locks.local_clears(file) == [LocalRange(0, 10)]
    again = one.open()
    assert again.file is file, "another gate would let a new local lock overtake the clearing of the old"
    world.engine.opens.close(again)
    assert world.engine.opens.file(b"f") is file
    file.gate.held = False
    world.pass_time(2)
    assert world.engine.opens.file(b"f") is None


def test_states_that_went_away_while_the_gate_was_waited_for():
    world, one, first, two, second = two_clients()
    locked, theirs = one.lock(first, 0, 10), two.lock(second, 20, 10)
    world.engine.opens.close(first)
    with failing(p.NFS4ERR_BAD_STATEID):
        plan(world, one, first, 40, 1)
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.locks.lock(locked, True, 40, 1, reclaim=False, wait=False)
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.locks.unlock(locked, 0, 10)
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.opens.close(first)
    world.engine.expire_client(two.record)
    with failing(p.NFS4ERR_EXPIRED):
        plan(world, two, second, 40, 1)
    with failing(p.NFS4ERR_EXPIRED):
        world.engine.locks.unlock(theirs, 0, 10)


def test_lock_refused_locally_uses_up_the_seqid_of_a_known_owner():
    world = World()
    client = world.client40()
    first, second = client.open(b"f"), client.open(b"g")
    locks = world.engine.locks
    locks.lock_new(first, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=7).commit()
    locks.lock_new(second, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=8).abort()
    locks.lock_new(second, b"l", True, 0, 10, reclaim=False, wait=False, lock_seqid=9).commit()
    assert client.record.lock_owners[b"l"].seqid == 9
