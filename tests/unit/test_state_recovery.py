"""Grace, reclaim and the records behind them, over restarts (RFC 8881 sections 8.4.2 and 8.4.3)."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nfsd.protocol import nfs4 as p
from nfsd.state import ClientRecord, Limits, Nfs4Error, Recovered
from nfsd.state.types import ANONYMOUS, READ_BYPASS

from .state_support import BOTH, READ, WRITE, Client40, Client41, World, failing


def restarted(*names, minor=1):
    """A world whose last instance had these clients with state."""
    return World(recovered=Recovered(2, tuple(ClientRecord(minor, name, "1:0", 1) for name in names)))


def test_first_start_has_no_grace_period():
    world = World()
    assert not world.engine.grace.active
    assert world.engine.get_timer() is None
    world.client41().open()


def test_grace_refuses_new_state_and_grants_reclaims():
    world = restarted(b"a", b"b")
    client, stranger = world.client41(b"a", ready=False), world.client41(b"c", ready=False)
    with failing(p.NFS4ERR_GRACE):
        client.open()
    with failing(p.NFS4ERR_GRACE):
        stranger.open()
    with failing(p.NFS4ERR_NO_GRACE):
        stranger.open(reclaim=True)
    state = client.open(reclaim=True)
    with failing(p.NFS4ERR_GRACE):
        client.lock(state, 0, 10)
    locked = client.lock(state, 0, 10, reclaim=True)
    with failing(p.NFS4ERR_GRACE):
        world.engine.locks.test(client.record, b"l", b"f", True, 0, 1)
    assert world.engine.stateids.check_io(state.stateid, client.record, b"f", write=True) is state
    world.engine.locks.unlock(locked, 0, 10)
    world.engine.opens.close(state)


def test_special_stateids_in_grace():
    """An open that denies may yet be reclaimed."""
    world = restarted(b"a")
    check = world.engine.stateids.check_io
    for write in (False, True):
        with failing(p.NFS4ERR_GRACE):
            check(ANONYMOUS, None, b"f", write=write)
    assert check(READ_BYPASS, None, b"f", write=False) is None


def test_reclaims_conflicting_with_each_other():
    world = restarted(b"a", b"b")
    one, two = world.client41(b"a", ready=False), world.client41(b"b", ready=False)
    state = one.open(reclaim=True)
    one.lock(state, 0, 10, reclaim=True)
    with failing(p.NFS4ERR_RECLAIM_CONFLICT):
        two.open(deny=READ, reclaim=True)
    other = two.open(reclaim=True)
    with failing(p.NFS4ERR_RECLAIM_CONFLICT):
        two.lock(other, 5, 1, reclaim=True)


def test_no_reclaim_after_reclaim_complete_or_grace():
    world = restarted(b"a", b"b")
    client, late = world.client41(b"a"), world.client41(b"b", ready=False)
    with failing(p.NFS4ERR_NO_GRACE):
        client.open(reclaim=True)
    world.pass_time(world.limits.grace + 1)
    late.renew()
    with failing(p.NFS4ERR_NO_GRACE):
        late.open(reclaim=True)
    client.renew()
    client.open()
    with failing(p.NFS4ERR_GRACE):
        late.open()
    world.engine.clients.reclaim_complete(late.record, one_fs=False)
    late.open()


def test_grace_ends_with_the_last_reclaim_complete():
    world = restarted(b"a", b"b")
    one, stranger = world.client41(b"a"), world.client41(b"c")
    with failing(p.NFS4ERR_GRACE):
        one.open()
    assert stranger.record.reclaim_complete
    two = world.client41(b"b")
    assert not world.engine.grace.active
    for client in (one, two, stranger):
        client.open()


def test_40_clients_cannot_end_the_grace_period():
    world = restarted(b"a", minor=0)
    client = world.client40(b"a")
    client.open(reclaim=True)
    world.pass_time(world.limits.grace - 1)
    client.renew()
    with failing(p.NFS4ERR_GRACE):
        client.open(b"new")
    world.pass_time(2)
    client.open(b"new")
    with failing(p.NFS4ERR_NO_GRACE):
        client.open(b"another", reclaim=True)


def test_grace_lasts_as_long_as_the_former_lease():
    record = ClientRecord(1, b"a", "1:0", 1)
    world = World(Limits(lease=10, grace=10), Recovered(2, (record,), lease=60.0))
    world.pass_time(59)
    assert world.engine.grace.active
    world.pass_time(2)
    assert not world.engine.grace.active


def test_reclaims_under_way_prolong_the_grace_period_to_twice_its_length():
    world = World(Limits(grace=20), Recovered(2, (ClientRecord(1, b"a", "1:0", 1),)))
    client = world.client41(b"a", ready=False)
    start = world.clock.now
    world.pass_time(19.8)
    index = 0
    while world.engine.grace.active:
        client.open(b"%d" % index, reclaim=True)
        index += 1
        world.pass_time(0.5)
        client.renew()
    assert 39 <= world.clock.now - start <= 41


def test_record_of_another_principal_is_no_claim():
    world = restarted(b"a")
    client = world.client41(b"a", principal="1:666", ready=False)
    with failing(p.NFS4ERR_NO_GRACE):
        client.open(reclaim=True)


def test_minor_versions_have_records_of_their_own():
    world = restarted(b"a", minor=1)
    client = world.client40(b"a")
    with failing(p.NFS4ERR_NO_GRACE):
        client.open(reclaim=True)


def test_when_a_client_goes_on_record():
    world = World()
    new, old = world.client41(b"1", ready=False), world.client40(b"2")
    world.store()
    assert world.records == {}
    world.engine.clients.reclaim_complete(new.record, one_fs=False)
    assert not world.engine.stable
    old.open()
    world.store()
    assert set(world.records) == {(1, b"1"), (0, b"2")}
    assert world.engine.stable


def test_restart_in_the_middle_of_grace_forgets_no_claim():
    world = restarted(b"a", b"b")
    world.client41(b"a", ready=False).open(b"1", reclaim=True)
    world.restart()
    for name in (b"a", b"b"):
        world.client41(name, ready=False).open(name, reclaim=True)


def test_whoever_missed_a_grace_period_has_no_claim_in_the_next():
    """The second edge condition of RFC 7530 section 9.6.3.4.2."""
    world = restarted(b"away", b"here")
    here = world.client41(b"here", ready=False)
    world.engine.clients.reclaim_complete(here.record, one_fs=False)
    world.pass_time(world.limits.grace + 1)
    here.renew()
    here.open(deny=BOTH)
    world.restart()
    away = world.client41(b"away", ready=False)
    with failing(p.NFS4ERR_NO_GRACE):
        away.open(reclaim=True)


def test_whoever_lost_its_lease_to_another_has_no_claim():
    """The first edge condition: the lease ran out, another took the lock and gave it back, the server restarted."""
    world = World()
    away, other = world.client41(b"away"), world.client41(b"other")
    away.lock(away.open(), 0, 10)
    for _ in range(3):
        world.pass_time(40)
        other.renew()
    state = other.open()
    locked = other.lock(state, 0, 10)
    world.engine.locks.unlock(locked, 0, 10)
    world.restart()
    away = world.client41(b"away", ready=False)
    with failing(p.NFS4ERR_NO_GRACE):
        away.open(reclaim=True)
    world.client41(b"other", ready=False).open(reclaim=True)


def test_40_client_that_slept_through_a_grace_period_and_only_said_hello_has_no_claim():
    world = restarted(b"away", b"x", minor=0)
    world.pass_time(world.limits.grace + 1)
    world.client40(b"away", b"verifie1")  # SETCLIENTID, SETCLIENTID_CONFIRM, no open
    world.restart()
    away = world.client40(b"away", b"verifie2")
    with failing(p.NFS4ERR_NO_GRACE):
        away.open(reclaim=True)  # nobody is on record, so there is no grace period at all


def test_destroyed_client_leaves_no_record():
    world = World()
    client = world.client41()
    world.engine.sessions.destroy_session(client.sessionid, connection=client.connection, own=None)
    world.engine.clients.destroy_clientid(client.clientid)
    world.store()
    assert world.records == {}


class RestartHistories(RuleBasedStateMachine):
    """Clients that lock, go away and come back, and a server that crashes at any moment, against the one rule that
    counts: nobody reclaims what somebody else has held since.

    Each client has one exclusive lock at most, all on one file. The model keeps who believes to hold what, and
    since when nobody else has held it.
    """

    names = (b"a", b"b", b"c")
    files = (b"f",)

    def __init__(self):
        super().__init__()
        self.world = World(Limits(lease=30, grace=30))
        self.clients = {}
        self.belief = {}
        """name: the file whose lock the client thinks it has, for reclaiming."""
        self.last_holder = {}
        """file: who held its lock last (granted or reclaimed)."""
        self.minor = {b"a": 1, b"b": 1, b"c": 0}

    def alive(self, name):
        client = self.clients.get(name)
        return client is not None and client.record.engine is self.world.engine and not client.record.expired

    def connect(self, name):
        """A client object of this instance, made anew if need be; the old one's record may have expired."""
        if not self.alive(name):
            if self.minor[name]:
                self.clients[name] = Reconnecting(self.world, name)
            else:
                self.clients[name] = Reconnecting40(self.world, name)
        return self.clients[name]

    @rule(name=st.sampled_from(names), key=st.sampled_from(files), crashes=st.sampled_from((False,) * 5 + (True,)))
    def lock(self, name, key, crashes):
        """``crashes``: the server does, before the grant is on the disk and so before its reply."""
        if name in self.belief:
            return
        client = self.connect(name)
        try:
            if self.minor[name] and not client.record.reclaim_complete:
                self.world.engine.clients.reclaim_complete(client.record, one_fs=False)
            state = client.open(key)
            client.lock(state, 0, 10)
        except Nfs4Error as error:
            assert error.status in (p.NFS4ERR_GRACE, p.NFS4ERR_DENIED)  # noqa: PT017
            return
        if crashes:
            self.world.engine.take_writes()
            self.world.restart()
            return
        self.world.store()
        client.reclaimed = True
        self.belief[name] = key
        self.last_holder[key] = name

    @rule(name=st.sampled_from(names))
    def hello(self, name):
        """Connect, and get no further: neither reclaims nor anything new."""
        self.connect(name)
        self.world.store()

    @rule(name=st.sampled_from(names))
    def come_back(self, name):
        """Find out whether the server knows us; if not, reclaim what we believe to hold, or forget it."""
        client = self.connect(name)
        client.renew()
        if client.reclaimed:
            return
        client.reclaimed = True
        key = self.belief.get(name)
        if key is not None:
            try:
                state = client.open(key, reclaim=True)
                client.lock(state, 0, 10, reclaim=True)
            except Nfs4Error as error:
                assert error.status == p.NFS4ERR_NO_GRACE  # noqa: PT017
                del self.belief[name]
            else:
                assert self.last_holder[key] == name, "reclaimed what another has held since"
        if self.minor[name] and not client.record.reclaim_complete:
            self.world.engine.clients.reclaim_complete(client.record, one_fs=False)
        self.world.store()

    @rule(name=st.sampled_from(names))
    def unlock(self, name):
        if name not in self.belief or not self.alive(name) or not self.clients[name].reclaimed:
            return
        client = self.clients[name]
        state = client.record.open_owners[b"o"].states[self.belief.pop(name)]
        self.world.engine.opens.close(state)

    @rule(seconds=st.sampled_from([5, 40, 100]))
    def time_passes(self, seconds):
        self.world.pass_time(seconds)
        self.world.store()

    @rule()
    def server_restarts(self):
        self.world.restart()

    @invariant()
    def one_holder_each(self):
        for key in self.files:
            file = self.world.engine.opens.file(key)
            owners = list(file.locks.owners) if file is not None and file.locks is not None else []
            assert len(owners) <= 1
            if owners and not owners[0].client.courtesy:
                name = owners[0].client.owner
                assert self.belief.get(name) == key
                assert self.last_holder[key] == name


class Reconnecting(Client41):
    """A client that comes back under its name; a new verifier each time, as after losing its state."""

    incarnations = 0
    reclaimed = False
    """Has done, or given up, its reclaims in this instance."""

    def __init__(self, world, name):
        Reconnecting.incarnations += 1
        super().__init__(world, name, Reconnecting.incarnations.to_bytes(8, "big"), ready=False)


class Reconnecting40(Client40):
    reclaimed = False

    def __init__(self, world, name):
        Reconnecting.incarnations += 1
        super().__init__(world, name, Reconnecting.incarnations.to_bytes(8, "big"))


RestartHistories.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRestartHistories = RestartHistories.TestCase


@pytest.mark.parametrize("block", range(4))
def test_a_thousand_random_restart_histories(block):
    """The same steps by plain weighted chance, which reaches the long unlucky sequences sooner."""
    names, key = RestartHistories.names, RestartHistories.files[0]
    for seed in range(block * 250, block * 250 + 250):
        chance, history = random.Random(seed), RestartHistories()
        steps = (
            (8, lambda h, c: h.lock(c.choice(names), key, c.random() < 0.1)),
            (5, lambda h, c: h.come_back(c.choice(names))),
            (3, lambda h, c: h.hello(c.choice(names))),
            (3, lambda h, c: h.unlock(c.choice(names))),
            (5, lambda h, c: h.time_passes(c.choice((5, 35)))),
            (2, lambda h, _: h.server_restarts()),
        )
        for step in chance.choices([step for _, step in steps], [weight for weight, _ in steps], k=80):
            step(history, chance)
            history.one_holder_each()


def test_writes_are_told_in_order_and_once():
    world = World()
    client = world.client41(b"1")
    world.engine.expire_client(client.record)
    assert [write.action for write in world.engine.take_writes()] == ["record", "remove"]
    assert world.engine.take_writes() == []
    assert not world.engine.stable
    world.engine.writes_done(2)
    assert world.engine.stable


def test_access_modes_survive_as_reclaimed():
    world = restarted(b"a", b"b")
    one, two = world.client41(b"a", ready=False), world.client41(b"b", ready=False)
    one.open(access=READ, deny=WRITE, reclaim=True)
    with failing(p.NFS4ERR_RECLAIM_CONFLICT):
        two.open(access=WRITE, reclaim=True)
    two.open(access=READ, reclaim=True)


# -- edge conditions of RFC 8881 section 8.4.3 ------------------------------------------------------------------------
def test_second_edge_condition_with_part_of_the_reclaims_done():
    """Cut off in the middle of its reclaims: what it had not reclaimed another has held since."""
    world = restarted(b"away", b"here")
    away = world.client41(b"away", ready=False)
    away.open(b"one", reclaim=True)
    here = world.client41(b"here")
    world.pass_time(world.limits.grace + 1)
    assert not world.engine.grace.active
    here.renew()
    state = here.open(b"two", deny=BOTH)
    world.engine.opens.close(state)
    world.restart()
    away = world.client41(b"away", ready=False)
    with failing(p.NFS4ERR_NO_GRACE):
        away.open(b"two", reclaim=True)
    world.client41(b"here", ready=False).open(b"two", reclaim=True)


def after_part_of_the_reclaims_of_a_40_client():
    """(world, the client, another): the grace period has just ended."""
    world = World(recovered=Recovered(2, tuple(ClientRecord(0, name, "1:0", 1) for name in (b"away", b"here"))))
    away, here = world.client40(b"away"), world.client40(b"here")
    away.open(b"one", reclaim=True)
    world.pass_time(world.limits.grace + 1)
    assert not world.engine.grace.active
    world.store()
    return world, away, here


def test_second_edge_condition_with_part_of_the_reclaims_done_by_a_40_client():
    world, _, here = after_part_of_the_reclaims_of_a_40_client()
    world.engine.opens.close(here.open(b"two", deny=BOTH))
    world.restart()
    with failing(p.NFS4ERR_NO_GRACE):
        world.client40(b"away").open(b"two", reclaim=True)
    world.client40(b"here").open(b"two", reclaim=True)


def test_a_40_client_heard_of_after_the_grace_period_keeps_its_claim():
    world, away, here = after_part_of_the_reclaims_of_a_40_client()
    away.renew()
    here.open(b"two", deny=BOTH)
    world.restart()
    world.client40(b"away").open(b"one", reclaim=True)


def test_a_40_client_heard_of_late_is_put_on_record_again():
    world, away, here = after_part_of_the_reclaims_of_a_40_client()
    here.open(b"two", deny=BOTH)
    world.store()
    assert (0, b"away") not in world.records
    away.renew()
    assert not world.engine.stable, "its next reply promises what a restart must know"
    world.restart()
    world.client40(b"away").open(b"one", reclaim=True)


def test_a_40_client_keeps_its_claim_as_long_as_nobody_is_given_anything():
    world, _, _ = after_part_of_the_reclaims_of_a_40_client()
    world.restart()
    away = world.client40(b"away")
    away.open(b"one", reclaim=True)
    away.open(b"two", reclaim=True)


def test_who_is_done_reclaiming_keeps_its_claim_through_a_restart_in_the_same_grace_period():
    world = restarted(b"done", b"late")
    world.client41(b"done", ready=False).open(b"1", reclaim=True)
    done = world.client41(b"done", b"another!")
    assert done.record.reclaim_complete
    for _ in range(3):
        world.restart()
        assert world.engine.grace.active
        world.client41(b"done", ready=False).open(b"1", reclaim=True)
    world.client41(b"late", ready=False).open(b"2", reclaim=True)


def test_a_grace_period_that_ended_early_is_over_for_good():
    world = restarted(b"a")
    world.client41(b"a")
    assert not world.engine.grace.active
    late = world.client41(b"b", ready=False)
    with failing(p.NFS4ERR_NO_GRACE):
        late.open(reclaim=True)


def test_no_claim_to_what_was_revoked_until_the_loss_is_acknowledged():
    world = World()
    client, other = world.client41(b"a"), world.client41(b"b")
    state = client.open(b"f")
    client.open(b"g")
    world.engine.revoke(state)
    assert not world.engine.stable, "the other's grant must wait for the disk"
    taken = other.open(b"f", deny=BOTH)
    world.engine.opens.close(taken)
    world.restart()
    client = world.client41(b"a", ready=False)
    for key in (b"f", b"g"):
        with failing(p.NFS4ERR_NO_GRACE):
            client.open(key, reclaim=True)


def test_a_revocation_that_was_acknowledged_costs_no_more_than_what_was_revoked():
    world = World()
    client = world.client41(b"a")
    lost, kept = client.open(b"f"), client.open(b"g")
    world.engine.revoke(lost)
    world.store()
    assert world.records == {}
    world.engine.stateids.free(lost.stateid, client.record)
    assert not world.engine.stable
    world.restart()
    world.client41(b"a", ready=False).open(kept.file.key, reclaim=True)


def test_a_revocation_in_the_middle_of_the_reclaims_is_on_the_disk_too():
    world = restarted(b"a", b"b")
    client = world.client41(b"a", ready=False)
    state = client.open(b"f", reclaim=True)
    world.engine.revoke(state)
    client.open(b"g", reclaim=True)  # nobody else can have had this meanwhile
    world.engine.clients.reclaim_complete(client.record, one_fs=False)
    world.restart()
    with failing(p.NFS4ERR_NO_GRACE):
        world.client41(b"a", ready=False).open(b"f", reclaim=True)


def test_an_introduction_that_came_to_nothing_costs_no_claim():
    world = restarted(b"a")
    for number in range(3):
        world.engine.clients.exchange_id(owner=b"a", verifier=b"%08d" % number, flags=0, principal="1:0")
    world.restart()
    world.client41(b"a", ready=False).open(reclaim=True)


def test_reclaim_complete_is_said_once():
    world = World()
    client = world.client41(b"a", ready=False)
    complete = world.engine.clients.reclaim_complete
    complete(client.record, one_fs=True)
    with failing(p.NFS4ERR_GRACE):
        client.open()  # one file system's is not the global one
    complete(client.record, one_fs=False)
    client.open()
    with failing(p.NFS4ERR_COMPLETE_ALREADY):
        complete(client.record, one_fs=False)
    complete(client.record, one_fs=True)
