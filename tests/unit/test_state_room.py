"""Which client record gives way to a newcomer's: by network and host, never one that has state, and at what cost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, Nfs4Error, Recovered, accounts, clients, room
from nfsd.state.clients import Client
from nfsd.state.recovery import ClientRecord
from rpcrdma import networks
from tests.support.lines import lines_of

from .state_support import BACK, CALLBACK, FORE, World, failing
from .test_state_accounts import Actors, measured

HONEST = "198.51.100.7"
NEIGHBOUR = "192.0.2.250"
_names = (b"client %d" % number for number in itertools.count())


def introduced(world: World, host: str, minor: int = 0, name: bytes = b"") -> Client:
    """A new client, confirmed, that has nothing but what that takes. Raises Nfs4Error."""
    name = name or next(_names)
    table = world.engine.clients
    if minor == 0:
        clientid, confirm = table.setclientid(
            owner=name, verifier=b"v" * 8, principal="1:0", callback=CALLBACK, host=host
        )
        return table.setclientid_confirm(clientid=clientid, confirm=confirm, principal="1:0")
    made = table.exchange_id(owner=name, verifier=b"v" * 8, flags=0, principal="1:0", host=host)
    world.engine.sessions.create_session(
        clientid=made.clientid, sequenceid=made.sequenceid, flags=0, fore=FORE, back=BACK, cb_program=0,
        cb_credentials=(), principal="1:0", connection=object(), host=host,
    )  # fmt: skip
    found = table.lookup(made.clientid)
    assert found is not None
    return found


def opened(world: World, client: Client, key: bytes = b"f") -> Any:
    """A file, open."""
    if client.minor:
        client.reclaim_complete = True
        owner = world.engine.opens.owner(client, b"o")
    else:
        owner, _ = world.engine.opens.begin40(client, b"o", 1)
        owner.confirmed = True
    state = world.engine.opens.reserve(owner, key, 1, 0, reclaim=False).commit()
    if not client.minor:
        owner.finish(0, b"open", b"handle")
    return state


def crowded(minor: int = 0, *, most: int = 400, each: int = 4) -> tuple[World, list[Client]]:
    """A table filled by one network: four hosts have all that they may, and others a few each."""
    world = World(Limits(grace=0, clients=most, unconfirmed_clients=most))
    made: list[Client] = []
    hosts = (f"192.0.2.{number}" for number in range(1, 250))
    for number, host in enumerate(hosts):
        try:
            made.extend(introduced(world, host, minor) for _ in range(most if number < 4 else each))
        except Nfs4Error:
            assert number < 4
        if len(world.engine.clients) == most:
            return world, [client for client in made if not client.expired]
    raise AssertionError


@pytest.mark.parametrize("minor", [0, 1])
def test_an_honest_host_gets_into_a_table_that_others_have_filled(minor: int) -> None:
    world, made = crowded(minor)
    honest = introduced(world, HONEST, minor)
    assert sum(one.expired for one in made) == 1
    other = introduced(world, NEIGHBOUR, minor)
    assert not honest.expired
    assert not other.expired, "nor is one shut out that lives among them"
    assert len(world.engine.clients) == 400


@pytest.mark.parametrize("minor", [0, 1])
def test_who_is_in_stays_in_while_others_come_and_come(minor: int) -> None:
    world, _ = crowded(minor)
    honest = introduced(world, HONEST, minor)
    for number in range(1500):
        try:
            introduced(world, f"192.0.{3 + number % 200}.{number % 7}", minor)
        except Nfs4Error:
            world.clock.now += 0.01
    assert not honest.expired
    assert len(world.engine.clients) <= 400


def test_an_introduction_is_not_lost_before_it_is_confirmed() -> None:
    world, _ = crowded()
    table = world.engine.clients
    clientid, confirm = table.setclientid(
        owner=b"honest", verifier=b"v" * 8, principal="1:0", callback=CALLBACK, host=HONEST
    )
    for number in range(300):
        with_name: dict[str, Any] = {"owner": b"%d" % number, "verifier": b"v" * 8, "principal": "1:0"}
        try:
            table.setclientid(callback=CALLBACK, host=f"192.0.2.{number % 200}", **with_name)
        except Nfs4Error:
            continue
    table.setclientid_confirm(clientid=clientid, confirm=confirm, principal="1:0")


@pytest.mark.parametrize("minor", [0, 1])
def test_who_has_state_keeps_it(minor: int) -> None:
    world, made = crowded(minor)
    for client in made[:-10]:
        opened(world, client)
    for number in range(8):
        introduced(world, f"198.{number}.100.1", minor)
    gone = [number for number, client in enumerate(made) if client.expired]
    assert len(gone) == 8
    assert min(gone) >= len(made) - 10
    for client in made[-10:]:
        if not client.expired:
            opened(world, client)
    with failing(p.NFS4ERR_DELAY if minor else p.NFS4ERR_RESOURCE):
        introduced(world, "198.51.100.9", minor)
    assert sum(client.expired for client in made) == 8


def test_who_has_state_no_more_may_give_way_again() -> None:
    world, made = crowded()
    states = [opened(world, client) for client in made]
    with failing(p.NFS4ERR_RESOURCE):
        introduced(world, HONEST)
    world.engine.opens.release(states[5])
    introduced(world, HONEST)
    assert [number for number, client in enumerate(made) if client.expired] == [5]


@pytest.mark.parametrize("minor", [0, 1])
def test_who_was_dropped_begins_again(minor: int) -> None:
    world, made = crowded(minor)
    sessions = [next(iter(client.sessions)) for client in made if client.sessions]
    introduced(world, HONEST, minor)
    (number,) = (number for number, client in enumerate(made) if client.expired)
    if minor:
        with failing(p.NFS4ERR_BADSESSION):
            world.engine.sessions.sequence(object(), sessions[number], 1, 0, 0, False)
    else:
        with failing(p.NFS4ERR_STALE_CLIENTID):
            world.engine.clients.renew(made[number].clientid)


def test_those_never_heard_of_go_first() -> None:
    world, made = crowded()
    world.clock.now += 1
    last = {client.account.host: client for client in made}
    for client in made:
        if client not in last.values():
            client.renew()
    for number in range(3):
        introduced(world, f"198.{number}.100.1")
    gone = [client for client in made if client.expired]
    assert len(gone) == 3
    assert gone[0].introduced_until != gone[0].lease_end or set(gone) & set(last.values())


def test_those_that_renew_their_leases_give_way_too_but_not_all_at_once() -> None:
    world, made = crowded()
    world.clock.now += 1
    for client in made:
        client.renew()
    with failing(p.NFS4ERR_RESOURCE):
        for number in range(200):
            introduced(world, f"198.51.100.{number}")
    displaced = sum(client.expired for client in made)
    assert 1 < displaced < 100
    introduced(world, "203.0.113.1")
    assert sum(client.expired for client in made) == displaced + 1, "of another network"


def test_whose_request_is_executing_goes_last() -> None:
    """Its retransmission must find the slot, not do once more what has been done (RFC 8881 section 2.10.6)."""
    world = World(Limits(grace=0, clients=8, host_share=100))
    made = [introduced(world, "somewhere", 1) for _ in range(7)]
    for client in made:
        world.clock.now += 1
        client.renew()
    busy = made[:2]
    for client in busy:
        (session,) = client.sessions.values()
        assert session.slots[0].begin(1, False, 0) == 0
    introduced(world, "anywhere", 1)
    introduced(world, "elsewhere", 1)
    assert [client.expired for client in made] == [False, False, True, False, False, False, False]


def test_who_may_reclaim_is_left_alone_while_it_may() -> None:
    records = tuple(ClientRecord(0, b"%d" % number, f"1:0 192.0.2.1 {(b'v' * 8).hex()}", 1) for number in range(4))
    world = World(Limits(clients=4, host_share=100), Recovered(1, records))
    old = [introduced(world, "192.0.2.1", name=b"%d" % number) for number in range(4)]
    assert all(client.may_reclaim for client in old)
    with failing(p.NFS4ERR_RESOURCE):
        introduced(world, HONEST)
    world.engine.end_grace()
    introduced(world, HONEST)
    assert sum(client.expired for client in old) == 1


def test_those_behind_no_ip_address_are_hosts_too() -> None:
    world = World(Limits(grace=0, clients=16, host_share=100))
    made = [introduced(world, "somewhere") for _ in range(15)]
    introduced(world, "anywhere")
    introduced(world, "elsewhere")
    assert sum(client.expired for client in made) == 1


@pytest.mark.parametrize("minor", [0, 1])
def test_neither_a_place_nor_a_refusal_costs_more_in_a_larger_table(minor: int) -> None:
    def work(most: int) -> list[int]:
        world, made = crowded(minor, most=most, each=3)
        for client in made[: most // 4]:
            opened(world, client)

        def refused() -> None:
            with failing(p.NFS4ERR_DELAY if minor else p.NFS4ERR_RESOURCE):
                introduced(world, "192.0.2.4", minor)

        modules = [accounts, clients, networks, room]
        refused()  # what is found of others' state is found once
        introduced(world, HONEST, minor)
        found = [lines_of(modules, refused), lines_of(modules, lambda: introduced(world, HONEST, minor))]
        return [*found, lines_of(modules, lambda: introduced(world, "203.0.113.1", minor))]

    small, large = work(160), work(640)
    assert all(lines < 2 * before + 200 for before, lines in zip(small, large, strict=True)), (small, large)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_every_client_has_one_place(seed: int) -> None:
    actors = Actors(seed)
    engine = actors.engine
    table = engine.clients.room
    for _ in range(700):
        actors.step()
        places: list[Client] = [*table._unconfirmed.all, *table._idle.all, *table._away.all, *table._holding]
        assert sorted(map(id, places)) == sorted(map(id, engine.clients.all()))
        assert set(table._unconfirmed.all) == {client for client in engine.clients.all() if not client.confirmed}
        assert set(table._away.all) == {client for client in engine.clients.all() if client.courtesy}
        assert set(table._emptied) == {client for client in table._holding if not client.states}
        for crowd in (table._unconfirmed, table._idle, table._away):
            assert crowd.everybody.connections == len(crowd.all)
        assert sum(table._total[account.host] for account in engine.ledger.hosts.values()) == len(engine.clients)
    for client in engine.clients.all():
        engine.expire_client(client)
    assert not table._total
    assert table._idle.everybody.connections == 0


def test_a_client_is_counted_as_no_less_than_it_takes() -> None:
    world = World(Limits(clients=10**6, unconfirmed_clients=10**6, host_share=100))
    introduced(world, "192.0.2.1")
    taken, counted = measured(
        world, lambda: [introduced(world, f"192.{n % 250}.{n % 100}.{n % 7}", name=b"%0300d" % n) for n in range(600)]
    )
    assert taken <= 1.1 * counted, f"{taken // 600} octets, counted as {counted // 600}"
