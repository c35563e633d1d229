"""The grace period that servers have together: histories of crashes against a model, which finds mistakes out."""

import asyncio
from types import SimpleNamespace

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.stable.cluster_grace import ClusterGrace, Member
from nfsd.stable.rados import together
from nfsd.state.types import ANONYMOUS
from tests.support.cluster_of_servers import Server, World, Wrong, history

from .state_support import World as StateWorld
from .state_support import failing


def _histories(count):
    return [asyncio.run(history(seed)) for seed in range(count)]


@pytest.fixture(autouse=True)
def _the_worlds_time(monkeypatch):
    """Time passes as the world has it."""
    clock = SimpleNamespace(now=0.0)
    made = World.__init__

    def remember(self, seed):
        made(self, seed)
        clock.world = self

    monkeypatch.setattr(World, "__init__", remember)
    monkeypatch.setattr(together, "time", SimpleNamespace(monotonic=lambda: clock.world.now))
    monkeypatch.setattr(together, "_SOON", 0)
    monkeypatch.setattr(together, "POLL", 0.5)


def test_nobody_is_given_what_another_servers_client_may_reclaim():
    grants = _histories(60)
    assert sum(grants) > 10 * len(grants), "hardly anything was given"


def test_who_is_overtaken_asks_the_event_again():
    """A server comes back while another one is about to grant new things again."""
    world, asked = World(0), []
    one, two = (together.Together(name, name, lambda: world, None, None) for name in ("a", "b"))
    one._replace(lambda grace: ClusterGrace({"a": Member(holds_back=True)}))

    def resumed(grace):
        if not asked:
            two._replace(lambda grace: grace.started("b", True))
        asked.append(grace.active)
        return grace.resumed("a")

    grace = one._replace(resumed)
    assert asked == [False, True]
    assert grace.everybody_holds_back
    assert one._read(world)[1] == grace


@pytest.mark.parametrize("value", [b"", b"no json", b"[]", b'{"needs": false, "more": 1}'])
def test_a_record_of_another_version_is_told_of_and_left_alone(value):
    world = World(0)
    one = together.Together("a", "a", lambda: world, None, None)
    one._replace(lambda grace: grace.started("a", False))
    world.objects[b"grace"][b"member.b"] = value
    with pytest.raises(OSError, match="the object grace is not this version's"):
        one._replace(lambda grace: grace.started("a", True))
    assert world.objects[b"grace"][b"member.b"] == value


def _and_yet(name, value):
    """ClusterGrace with an event that does nothing, or a question that is always answered so."""
    return lambda monkeypatch: monkeypatch.setattr(ClusterGrace, name, value)


def _without_waiting(monkeypatch):
    async def hold_back(self, engine, grace):
        engine.grace.elsewhere = True
        await self._change(lambda grace: grace.held_back(self._name))

    monkeypatch.setattr(together.Together, "_hold_back", hold_back)


def _before_it_is_true(monkeypatch):
    async def hold_back(self, engine, grace):
        await self._change(lambda grace: grace.held_back(self._name))
        engine.grace.elsewhere = True

    monkeypatch.setattr(together.Together, "_hold_back", hold_back)


def _in_words_only(monkeypatch):
    async def hold_back(self, engine, grace):
        await self._change(lambda grace: grace.held_back(self._name))
        engine.grace.elsewhere = False

    monkeypatch.setattr(together.Together, "_hold_back", hold_back)


def _without_a_flush(monkeypatch):
    async def flush(self):
        return

    monkeypatch.setattr(Server, "_flush", flush)


MISTAKES = {
    "reclaims without waiting for the others": _and_yet("everybody_holds_back", True),
    "no grace period for a server that has died": _and_yet("died", lambda self, name, claims: self),
    "new locks while another one needs its grace period": _in_words_only,
    "a server that was given up comes back with its claims": _and_yet(
        "gave_up", lambda self, name: self._with(name, needs=False)
    ),
    "the period ends before the others' records are gone": _without_a_flush,
    "who holds back does not wait for what it has admitted": _without_waiting,
    "who holds back says so too early": _before_it_is_true,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_out(mistake, monkeypatch):
    MISTAKES[mistake](monkeypatch)
    with pytest.raises(Wrong):
        _histories(2000)


# -- what a server does while another one's clients may reclaim --------------------------------------------------------
def test_nothing_new_is_granted_for_anothers_sake_and_what_there_is_goes_on():
    world = StateWorld()
    client, old = world.client41(), world.client40(b"old")
    state, locked = client.open(), client.open(b"g")
    held = client.lock(locked, 0, 10)
    world.engine.grace.elsewhere = True
    for new in (lambda: client.open(b"h"), lambda: old.open(b"h"), lambda: client.lock(state, 0, 10)):
        with failing(p.NFS4ERR_GRACE):
            new()
    with failing(p.NFS4ERR_GRACE):
        world.engine.locks.test(client.record, b"l", b"f", True, 0, 1)
    assert world.engine.delegations.refusal(client.record, b"f", write=False) is p.why_no_delegation4.WND4_CONTENTION
    with failing(p.NFS4ERR_NO_GRACE):  # that is for the other server to grant
        client.lock(state, 0, 10, reclaim=True)
    check = world.engine.stateids.check_io
    assert check(state.stateid, client.record, b"f", write=True) is state
    assert check(ANONYMOUS, None, b"h", write=True) is None
    world.engine.locks.unlock(held, 0, 10)
    world.engine.opens.close(state)
    world.engine.grace.elsewhere = False
    client.open(b"h")
    client.lock(locked, 0, 10)


def test_locks_that_are_being_made_are_counted():
    world = StateWorld()
    client = world.client41()
    state = client.open()
    locks = world.engine.locks
    asked = {"exclusive": True, "offset": 0, "length": 10, "reclaim": False, "wait": False}
    plan = locks.lock_new(state, b"l", **asked)
    assert locks.plans == 1
    plan.abort()
    plan.abort()
    assert locks.plans == 0
    with locks.lock_new(state, b"l", **asked) as plan:
        assert locks.plans == 1
        plan.commit()
    assert locks.plans == 0
