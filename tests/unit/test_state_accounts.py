"""The state engine counts all state on its clients' hosts, no less than it takes; and which state gives way."""

import contextlib
import gc
import tracemalloc
from dataclasses import replace
from random import Random

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, LockDenied, Nfs4Error
from nfsd.state import accounts as a

from .state_support import BACK, FORE, World, failing

HOSTS = ("192.0.2.1", "192.0.2.2", "2001:db8::3")


def recount(engine):
    """Octets by host, from what there is."""
    found = {}
    for client in [*engine.clients.all(), *engine.nlm.all()]:
        octets = a.CLIENT + 3 * len(client.owner)
        octets += sum(s.octets + len(s.slots) * a.SLOT for s in client.sessions.values())
        octets += sum(a.OPEN_OWNER + len(name) for name in client.open_owners)
        octets += sum(a.LOCK_OWNER + len(name) for name in client.lock_owners)
        octets += sum(a.STATE[state.kind] for state in client.states.values())
        octets += client.locks * a.LOCK
        for owner, waiters in engine.locks.waits._by_client.get(client, {}).items():
            octets += len(waiters) * (a.WAITER + len(owner))
        found[client.account.host] = found.get(client.account.host, a.HOST) + octets
    return found


class Actors:
    """Clients on some hosts that do what comes to mind."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.world = World(Limits(grace=0, opens=12, lock_states=8, locks=20, courtesy=200, octets=1 << 20))
        self.engine = self.world.engine
        self.states, self.locks, self.delegations = [], [], []

    def clients(self):
        return [client for client in self.engine.clients.all() if client.confirmed]

    def introduce(self):
        name, host = self.random.randbytes(self.random.choice((1, 1, 40))), self.random.choice(HOSTS)
        verifier = self.random.randbytes(1) * 8
        if self.random.random() < 0.4:
            made, confirm = self.engine.clients.setclientid(
                owner=name, verifier=verifier, principal="1:0", callback=None, host=host
            )
            if self.random.random() < 0.8:
                self.engine.clients.setclientid_confirm(clientid=made, confirm=confirm, principal="1:0")
            return
        made = self.engine.clients.exchange_id(owner=name, verifier=verifier, flags=0, principal="1:0", host=host)
        if self.random.random() < 0.8:
            self.session(made.clientid, made.sequenceid, host)
            client = self.engine.clients.lookup(made.clientid)
            if not client.reclaim_complete:
                self.engine.clients.reclaim_complete(client, one_fs=False)

    def session(self, clientid, sequenceid, host):
        fore = replace(FORE, maxrequests=self.random.randint(1, 9))
        self.engine.sessions.create_session(
            clientid=clientid, sequenceid=sequenceid, flags=2, fore=fore, back=BACK, cb_program=1, cb_credentials=(),
            principal="1:0", connection=object(), host=host,
        )  # fmt: skip

    def key(self):
        return self.random.choice((b"f", b"g", b"h"))

    def open(self):
        client = self.random.choice(self.clients())
        owner = self.random.randbytes(1) * self.random.choice((1, 200))
        if client.minor:
            found = self.engine.opens.owner(client, owner)
        else:
            found = client.open_owners.get(owner) or self.engine.opens._new_owner(client, owner)
            found.confirmed = True
        reservation = self.engine.opens.reserve(found, self.key(), 3, 0, reclaim=False)
        if self.random.random() < 0.2:
            reservation.abort()
        else:
            self.states.append(reservation.commit())

    def lock(self):
        state = self.random.choice(self.states)
        plan = self.engine.locks.lock_new(
            state, self.random.randbytes(1), self.random.random() < 0.5, self.random.randrange(50),
            self.random.randint(1, 9), reclaim=False, wait=self.random.random() < 0.5,
        )  # fmt: skip
        if self.random.random() < 0.2:
            plan.abort()
        else:
            plan.commit()
            self.locks += state.lock_states.values()

    def unlock(self):
        self.engine.locks.unlock(self.random.choice(self.locks), self.random.randrange(50), self.random.randint(1, 9))

    def close(self):
        self.engine.opens.close(self.random.choice(self.states))

    def revoke(self):
        client = self.random.choice(self.clients())
        self.engine.revoke(self.random.choice([one for one in client.states.values() if not one.status]))

    def free(self):
        entry = self.random.choice(self.states + self.locks)
        self.engine.stateids.free(entry.stateid, entry.client)

    def delegate(self):
        made = self.engine.delegations.offer(self.random.choice(self.clients()), self.random.randbytes(1), write=False)
        if not isinstance(made, p.why_no_delegation4):
            self.engine.delegations.settle(made)
            self.delegations.append(made)

    def copy(self):
        client = self.random.choice(self.clients())
        made = self.engine.copies.begin(client, b"f", "1:0")
        if made is not None and self.random.random() < 0.5:
            self.engine.copies.release(made)

    def lock_manager(self):
        host = self.random.choice(HOSTS)
        client = self.engine.nlm.client(self.random.randbytes(1), host, "192.0.2.100")
        made = self.engine.nlm.open(client, self.key(), exclusive=True, reclaim=False)
        self.states.append(made)

    def wait(self):
        self.world.pass_time(self.random.choice((1, 30, 95, 300)))

    def expire(self):
        self.engine.expire_client(self.random.choice(self.engine.clients.all()))

    def drop(self):
        self.engine.nlm.drop(self.random.choice(self.engine.nlm.all()))

    def step(self):
        action = self.random.choice(
            (self.introduce, self.introduce, self.open, self.open, self.open, self.lock, self.lock, self.unlock,
             self.close, self.revoke, self.free, self.delegate, self.copy, self.lock_manager, self.wait, self.expire,
             self.drop)
        )  # fmt: skip
        # Refused, or there is none yet.
        with contextlib.suppress(Nfs4Error, LockDenied, IndexError, AttributeError):
            action()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_accounts_are_those_of_what_there_is(seed):
    actors = Actors(seed)
    for number in range(700):
        actors.step()
        if number % 10 == 0:
            found = {account.host: account.octets for account in actors.engine.ledger.hosts.values()}
            assert found == recount(actors.engine)
            assert actors.engine.ledger.octets == sum(found.values())
    assert actors.engine.ledger.octets > 0
    for client in actors.engine.clients.all():
        actors.engine.expire_client(client)
    for client in actors.engine.nlm.all():
        actors.engine.nlm.drop(client)
    assert (actors.engine.ledger.octets, actors.engine.ledger.hosts) == (0, {})


def measured(world, work):
    """Octets that some work takes, and what they are counted as."""
    gc.collect()
    tracemalloc.start()
    counted, before = world.engine.ledger.octets, tracemalloc.get_traced_memory()[0]
    kept = work()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del kept
    return taken, world.engine.ledger.octets - counted


def test_no_record_is_counted_as_less_than_it_takes():
    many = 600
    limits = Limits(clients=10**6, unconfirmed_clients=10**6, sessions=10**6, all_cached_octets=1 << 40, host_share=100)
    world = World(limits)
    client, old = world.client41(b"41"), world.client40(b"40")
    whole = client.open(b"whole")

    def session(number):
        world.engine.sessions.create_session(
            clientid=client.clientid, sequenceid=2 + number, flags=2, fore=replace(FORE, maxrequests=16), back=BACK,
            cb_program=1, cb_credentials=(), principal="1:0", connection=object(),
        )  # fmt: skip

    kinds = {
        "client": lambda n: world.client41(b"%0300d" % n).record,
        "session": session,
        "open": lambda n: client.open(b"file %0100d" % n),
        "owner": lambda n: client.open(b"one file", owner=b"%0900d" % n),
        "owner of 4.0": lambda n: old.open(b"some %0100d" % n, owner=b"%0900d" % n),
        "lock owner": lambda n: client.lock(whole, 3 * n, 1, owner=b"%0900d" % n),
        "range": lambda n: client.lock(whole, 1 << 30 | 3 * n, 1, owner=b"ranges"),
        "delegation": lambda n: world.engine.delegations.offer(client.record, b"read %0100d" % n, write=False),
    }
    for kind, make in kinds.items():
        taken, counted = measured(world, lambda make=make: [make(number) for number in range(many)])
        assert taken <= 1.1 * counted, f"{kind}: {taken // many} octets, counted as {counted // many}"
        assert counted <= 6 * taken + many * 500, f"{kind}: {taken // many} octets, counted as {counted // many}"


def fill(world, host, names, *, owner=900):
    """Open files in the name of one host until it is refused; the clients, and the status."""
    made = []
    for name in names:
        try:
            exchanged = world.engine.clients.exchange_id(
                owner=name, verifier=b"%8.8s" % host[-8:].encode(), flags=0, principal="1:0", host=host
            )
            world.engine.sessions.create_session(
                clientid=exchanged.clientid, sequenceid=1, flags=0, fore=FORE, back=BACK, cb_program=0,
                cb_credentials=(), principal="1:0", connection=object(), host=host,
            )  # fmt: skip
            client = world.engine.clients.lookup(exchanged.clientid)
            world.engine.clients.reclaim_complete(client, one_fs=False)
            made.append(client)
            for number in range(100):
                found = world.engine.opens.owner(client, b"%0*d" % (owner, number))
                world.engine.opens.reserve(found, b"f", 1, 0, reclaim=False).commit()
        except Nfs4Error as error:
            return made, error.status
    return made, 0


def names(count=200):
    return [b"client %d" % number for number in range(count)]


def test_one_host_has_a_share_and_all_together_leave_a_reserve():
    world = World(Limits(grace=0, courtesy=1000, octets=16 << 20))
    ledger = world.engine.ledger
    for number in range(3):
        _, status = fill(world, f"192.0.2.{number}", names())
        assert status == p.NFS4ERR_NOSPC, "its own share is full: it need not ask again"
        assert ledger.hosts[f"192.0.2.{number}"].octets <= 4 << 20
    _, status = fill(world, "192.0.2.3", names())
    assert status == p.NFS4ERR_DELAY, "others have filled the rest"
    assert ledger.octets <= 15 << 20
    honest, status = fill(world, "192.0.2.9", [b"honest"], owner=1)
    assert honest, "a host that has nothing gets in"
    assert len(honest[0].states) >= 3
    assert ledger.octets <= 16 << 20


def test_those_away_give_way_the_greediest_first():
    world = World(Limits(grace=0, courtesy=10000, octets=16 << 20, host_share=60))
    small, _ = fill(world, "192.0.2.1", names(2))
    large, status = fill(world, "192.0.2.2", names())
    assert status == p.NFS4ERR_NOSPC
    world.pass_time(world.limits.lease + 2)
    assert all(client.courtesy for client in small + large)
    other, status = fill(world, "192.0.2.3", names())
    assert status == p.NFS4ERR_DELAY, "room is looked for once a second"
    assert len(other) > 10
    assert not any(client.expired for client in small)
    gone = [client.expired for client in large]
    assert any(gone)
    assert gone == sorted(gone, reverse=True), "who has been away longest goes first"


def test_an_own_client_that_is_away_gives_way_to_its_hosts_others():
    world = World(Limits(grace=0, courtesy=10000, octets=16 << 20))
    first, _ = fill(world, "192.0.2.1", names())
    world.pass_time(world.limits.lease + 2)
    again, status = fill(world, "192.0.2.1", [b"anew"])
    assert status == 0
    assert len(again[0].states) == 100
    assert any(client.expired for client in first)


def unconfirmed(world, host, name):
    world.engine.clients.exchange_id(owner=name, verifier=b"v" * 8, flags=0, principal="1:0", host=host)


def test_unconfirmed_records_of_the_greediest_host_give_way():
    world = World(Limits(clients=100, unconfirmed_clients=10))
    unconfirmed(world, "192.0.2.1", b"honest")
    for name in names(50):
        unconfirmed(world, "192.0.2.2", name)
    left = [client.account.host for client in world.engine.clients.all()]
    assert left.count("192.0.2.1") == 1
    assert left.count("192.0.2.2") == 9


def test_one_host_does_not_fill_the_table_of_clients():
    world = World(Limits(grace=0, clients=64))
    for host in range(4):
        made, status = fill(world, f"192.0.2.{host}", names())
        assert (len(made), status) in ((16, p.NFS4ERR_DELAY), (12, p.NFS4ERR_DELAY))
    assert len(world.engine.clients.all()) == 60
    for host in range(10, 14):
        made, _ = fill(world, f"192.0.2.{host}", names(1))
        assert len(made) == 1
    with failing(p.NFS4ERR_DELAY):
        unconfirmed(world, "192.0.2.20", b"one too many")


def test_a_host_that_was_restarted_comes_back_to_a_full_table():
    world = World(Limits(grace=0, clients=64))
    refusals = world.engine.ledger.refusals
    world.client41(b"honest")
    for host in range(4):
        fill(world, f"192.0.2.{host + 100}", names())
    again = world.engine.clients.exchange_id(
        owner=b"honest", verifier=b"restart!", flags=0, principal="1:0", host=next(iter(world.engine.ledger.hosts))
    )
    assert again.clientid
    assert world.engine.ledger.refusals >= refusals + 4, "who finds the table full is counted too"


def test_delegations_and_replies_are_shared_too():
    world = World(Limits(grace=0, delegations=100, all_cached_octets=8 << 20))
    greedy = [world.client41(name, slots=256) for name in names(20)]
    for number in range(60):
        world.engine.delegations.offer(greedy[number % 20].record, b"%d" % number, write=False)
    assert world.engine.delegations.count == 25
    account = greedy[0].record.account
    assert (2 << 20) <= account.cached_octets <= (2 << 20) + 20 * 4096
