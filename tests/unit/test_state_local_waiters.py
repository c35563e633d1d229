"""Blocked locks that a local process keeps waiting: who is looked at, and what that takes."""

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, waiters
from tests.support.lines import lines_of

from .state_support import World
from .test_state_waiters import DENIED, Party, parties, told


def stopped_locally(party, offset=0):
    """The party's request for ten octets, which a local process is in the way of."""
    locks = party.locks
    made = locks.lock_new(party.open(b"f"), b"l%d" % offset, True, offset, 10, reclaim=False, wait=True, handle=b"h")
    made.blocked_locally()


def test_a_local_process_in_the_way():
    world, one, two = parties(2)
    waits = world.engine.locks.waits
    stopped_locally(one)
    (waiter,) = waits.locally_blocked(10)
    two.ask(wait=False)  # nothing is kept for one who could not have it
    two.release()
    assert told(world) == []
    waits.locally_free(waiter)
    assert told(world) == [one.client.record]
    one.ask(owner=b"l0")
    assert waits.locally_blocked(10) == []


def test_who_is_gone_meanwhile_is_not_looked_at():
    world, one, _ = parties(2)
    waits = world.engine.locks.waits
    stopped_locally(one)
    (waiter,) = waits.locally_blocked(10)
    world.engine.expire_client(one.client.record)
    assert not waits.is_locally_blocked(waiter)
    waits.locally_free(waiter)
    assert waits.locally_blocked(10) == told(world) == []


def test_those_that_are_looked_at_take_turns():
    world, one = parties(1)
    for number in range(5):
        stopped_locally(one, 10 * number)
    rounds = [[waiter.start // 10 for waiter in world.engine.locks.waits.locally_blocked(2)] for _ in range(5)]
    assert rounds == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


def test_others_that_wait_cost_nothing():
    def work(count):
        world = World(Limits(waiters=2000, client_waiters=2000, host_share=100))
        one, two = Party(world, b"1"), Party(world, b"2")
        one.ask(length=100)
        for offset in range(count):
            two.ask(owner=b"%d" % offset, status=DENIED)
        waits = world.engine.locks.waits
        assert waits.waits_for_any(two.client.record)
        return lines_of([waiters], lambda: waits.locally_blocked(100))

    assert work(1000) == work(10)


def test_a_local_process_is_forgotten_when_the_owner_asks_again():
    world, one, two = parties(2)
    stopped_locally(one)
    two.ask(length=10)
    one.ask(owner=b"l0", status=p.NFS4ERR_DENIED)
    assert world.engine.locks.waits.locally_blocked(10) == [], "somebody else is in the way now"
