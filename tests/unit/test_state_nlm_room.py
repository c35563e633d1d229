"""The table of the lock manager's clients when it is full: who gives way to newcomers, and what finding that costs."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, LockDenied, Nfs4Error, accounts, nlm, room
from nfsd.state.nlm import NlmClient
from rpcrdma import networks
from tests.support.nfs4 import Client4
from tests.support.nlm import DENIED, GRANTED, locking_server

from .state_support import World, failing
from .test_state_accounts import Actors
from .test_state_room import lines_of

SERVER = "198.51.100.9"


def client(world: World, host: str, name: bytes = b"name") -> NlmClient:
    return world.engine.nlm.client(name, host, SERVER)


def crowded(most: int) -> tuple[World, list[NlmClient]]:
    """A table as full as it gets for hosts of one network."""
    world = World(Limits(grace=0, clients=most))
    made = [client(world, f"192.0.2.{number % 200}", b"%d" % number) for number in range(most - most // 16 - 1)]
    made.append(client(world, "198.51.100.1", b"the other network's"))
    return world, made


def test_of_the_network_with_most_idle_clients_that_which_was_idle_for_longest_gives_way() -> None:
    world, made = crowded(160)
    busy = made[:3]
    for one in busy:
        world.engine.nlm.open(one, b"file %d" % one.clientid, exclusive=True, reclaim=False)
    world.engine.nlm.begin(made[3])
    for number in range(4):
        for name in range(accounts.FEW + 1):
            client(world, f"203.0.113.{number}", b"%d" % name)
    gone = [one for one in made if one.expired]
    assert gone
    assert gone[0] is made[4]
    assert not made[-1].expired, "its network has next to nothing"
    assert not any(one.expired for one in made[:4])


def test_who_has_lost_what_it_held_gives_way_again_and_is_the_last_to() -> None:
    world = World(Limits(grace=0, clients=64))
    table = world.engine.nlm
    first, *others = [client(world, "192.0.2.1", b"%d" % number) for number in range(16)]
    opened = table.open(first, b"file", exclusive=True, reclaim=False)
    client(world, "192.0.2.1", b"one more")
    assert [one.expired for one in (first, *others)] == [False, True] + [False] * 14
    table.take_away(opened)
    for number in range(16):
        assert not first.expired
        client(world, "192.0.2.1", b"newer %d" % number)
    assert first.expired


def test_nobody_gives_way_who_holds_or_asks_for_something() -> None:
    world = World(Limits(grace=0, clients=64))
    table = world.engine.nlm
    made = [client(world, "192.0.2.1", b"%d" % number) for number in range(16)]
    for one in made[1:]:
        table.open(one, b"file %d" % one.clientid, exclusive=True, reclaim=False)
    table.begin(made[0])
    with failing(p.NFS4ERR_RESOURCE):
        client(world, "192.0.2.1", b"one more")
    table.end(made[0])
    client(world, "192.0.2.1", b"one more")
    assert [one.expired for one in made] == [True] + [False] * 15


def test_a_place_costs_no_more_in_a_larger_table() -> None:
    def work(most: int) -> tuple[int, int]:
        world, _ = crowded(most)
        for number in range(world.limits.share(most)):
            client(world, "203.0.113.2", b"%d" % number)
        modules = [accounts, networks, nlm, room]
        for number in range(accounts.FEW):
            client(world, "203.0.113.1", b"%d" % number)
        newcomer = lines_of(modules, lambda: client(world, "203.0.113.1"))
        return newcomer, lines_of(modules, lambda: client(world, "203.0.113.2", b"beyond its share"))

    small, large = work(160), work(1600)
    assert all(lines < 2 * before + 100 for before, lines in zip(small, large, strict=True)), (small, large)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_those_who_hold_nothing_are_to_be_found(seed: int) -> None:
    chance, actors = Random(seed), Actors(seed)
    table = actors.engine.nlm
    under_way: list[NlmClient] = []
    for _ in range(700):
        actors.step()
        if chance.random() < 0.3 and table.all():
            under_way.append(chance.choice(table.all()))
            table.begin(under_way[-1])
        elif under_way and chance.random() < 0.5:
            table.end(under_way.pop())
        if chance.random() < 0.3 and actors.states:
            opened = chance.choice(actors.states)
            if opened.client in table.all() and opened.other in opened.client.states:
                with contextlib.suppress(LockDenied, Nfs4Error):
                    owner = b"%d" % chance.randrange(3)
                    actors.engine.locks.lock_new(opened, owner, True, 0, 60, reclaim=False, wait=True)
        assert set(table._idle.all) == {one for one in table.all() if one.idle}
        assert table._idle.everybody.connections == len(table._idle.all)
    for one in table.all():
        table.drop(one)
    assert not table._idle.all


def test_a_host_that_calls_itself_by_many_names_keeps_its_locks_and_nobody_out(tmp_path: Path) -> None:
    """Over TCP, as lock managers do."""

    async def main() -> None:
        limits = Limits(grace=0, delegations=0, clients=32)
        async with asyncio.timeout(60), locking_server(tmp_path, limits=limits) as server:
            table = server.parts.engine.nlm
            _, handle = await (await Client4(server.parts, 1).connect()).open("/0", b"f")
            holder = server.host(2, b"holder")
            holder.handle = handle
            assert await holder.lock(0, 1) == GRANTED
            for number in range(40):
                other = server.host(2, b"name %d" % number)
                other.handle = handle
                assert await other.lock(10, 1) == GRANTED
                assert await other.unlock(10, 1) == GRANTED
                other.hang_up()
            stranger = server.host(3)
            stranger.handle = handle
            assert await stranger.lock(20, 1) == GRANTED
            assert table.find(b"holder", "127.0.0.2") is not None
            assert len(table.all()) <= 17
            assert await stranger.lock(0, 1) == DENIED

    asyncio.run(main())
