"""Opens, share reservations and v4.0's seqids (RFC 8881 section 9.7; RFC 7530 sections 9.1.7 and 9.9)."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.state.types import ANONYMOUS, INVALID, READ_BYPASS, SeqidReplay

from .state_support import BOTH, READ, WRITE, World, failing

MODES = list(itertools.product((1, 2, 3), (0, 1, 2, 3)))


@pytest.mark.parametrize(("access", "deny"), MODES)
def test_share_matrix(access, deny):
    """Every second open against this first one."""
    for other_access, other_deny in MODES:
        world = World()
        first, second = world.client41(b"1"), world.client41(b"2")
        first.open(access=access, deny=deny)
        if access & other_deny or deny & other_access:
            with failing(p.NFS4ERR_SHARE_DENIED):
                second.open(access=other_access, deny=other_deny)
        else:
            second.open(access=other_access, deny=other_deny)


@pytest.mark.parametrize(("access", "deny"), [(0, 0), (4, 0), (1, 4), (1, -1)])
def test_share_bits_out_of_range(access, deny):
    with failing(p.NFS4ERR_INVAL):
        World().client41().open(access=access, deny=deny)


def test_same_owner_upgrades_its_open():
    world = World()
    client = world.client41()
    first = client.open(access=READ)
    assert first.stateid.seqid == 1
    second = client.open(access=WRITE, deny=0)
    assert second is first
    assert (second.access, second.deny, second.stateid.seqid) == (BOTH, 0, 2)


def test_an_owners_own_open_denies_it_like_anybody_else():
    world = World()
    client = world.client41()
    state = client.open(access=READ, deny=WRITE)
    for access, deny in ((WRITE, 0), (READ, READ)):
        with failing(p.NFS4ERR_SHARE_DENIED):
            client.open(access=access, deny=deny)
    assert (state.access, state.deny, state.stateid.seqid) == (READ, WRITE, 1)


def test_downgrade_goes_only_to_what_was_opened():
    world = World()
    client = world.client41()
    state = client.open(access=READ)
    client.open(access=BOTH, deny=WRITE)
    downgrade = world.engine.opens.downgrade
    for access, deny in [(WRITE, 0), (READ, WRITE), (BOTH, 0)]:
        with failing(p.NFS4ERR_INVAL):
            downgrade(state, access, deny)
    assert (state.access, state.deny) == (BOTH, WRITE)
    assert downgrade(state, READ, 0).seqid == 3
    world.client41(b"2").open(access=BOTH, deny=WRITE)
    with failing(p.NFS4ERR_INVAL):
        downgrade(state, BOTH, WRITE)  # what was given up is no longer in effect


def test_downgrade_to_a_union_of_opens():
    world = World()
    client = world.client41()
    state = client.open(access=READ, deny=0)
    client.open(access=WRITE, deny=0)
    world.engine.opens.downgrade(state, BOTH, 0)
    assert (state.access, state.deny) == (BOTH, 0)
    world.engine.opens.downgrade(state, WRITE, 0)
    assert (state.access, state.deny) == (WRITE, 0)


def test_reservation_conflicts_before_it_is_granted_and_not_after_it_is_dropped():
    world = World()
    one, two = world.client41(b"1"), world.client41(b"2")
    owner = world.engine.opens.owner(one.record, b"o")
    with world.engine.opens.reserve(owner, b"f", READ, BOTH, reclaim=False), failing(p.NFS4ERR_SHARE_DENIED):
        two.open()
    two.open()
    assert world.engine.opens.file(b"f").deny_read == 0


def test_two_opens_of_one_owner_in_flight_end_in_one_state():
    world = World()
    client = world.client41()
    owner = world.engine.opens.owner(client.record, b"o")
    first = world.engine.opens.reserve(owner, b"f", READ, 0, reclaim=False)
    second = world.engine.opens.reserve(owner, b"f", WRITE, 0, reclaim=False)
    assert second.commit() is first.commit()
    state = client.record.open_owners[b"o"].states[b"f"]
    assert (state.access, state.seqid) == (BOTH, 2)


def test_reservation_of_a_client_that_expired_meanwhile():
    world = World()
    client = world.client41()
    owner = world.engine.opens.owner(client.record, b"o")
    reservation = world.engine.opens.reserve(owner, b"f", READ, BOTH, reclaim=False)
    world.engine.expire_client(client.record)
    with failing(p.NFS4ERR_EXPIRED):
        reservation.commit()
    assert world.engine.opens.file(b"f") is None


def test_close_of_41_answers_a_stateid_that_names_nothing():
    world = World()
    client = world.client41()
    state = client.open()
    state.opened = "descriptor"
    assert world.engine.opens.close(state) == INVALID
    assert world.released == ["descriptor"]
    assert client.record.open_owners == {}
    assert world.engine.opens.file(b"f") is None
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.stateids.find(state.stateid, client.record)


def test_opens_and_owners_are_bounded():
    world = World(Limits(opens=2, open_owners=2))
    client, old = world.client41(), world.client40(b"old")
    client.open(b"1")
    client.open(b"2")
    with failing(p.NFS4ERR_NOSPC):
        client.open(b"3")
    old.open(owner=b"1", access=READ)
    old.open(owner=b"2", access=READ)
    with failing(p.NFS4ERR_RESOURCE):
        world.engine.opens.begin40(old.record, b"3", 1)
    with failing(p.NFS4ERR_INVAL):
        world.engine.opens.owner(client.record, bytes(1025))


# -- special stateids -----------------------------------------------------------------------------------------------
def test_special_stateids_against_share_denies():
    world = World()
    client = world.client41()
    check = world.engine.stateids.check_io
    for stateid, write in itertools.product((ANONYMOUS, READ_BYPASS), (False, True)):
        assert check(stateid, client.record, b"f", write=write) is None
    state = client.open(access=READ, deny=BOTH)
    with failing(p.NFS4ERR_LOCKED):
        check(ANONYMOUS, client.record, b"f", write=False)
    with failing(p.NFS4ERR_LOCKED):
        check(ANONYMOUS, client.record, b"f", write=True)
    with failing(p.NFS4ERR_LOCKED):
        check(READ_BYPASS, client.record, b"f", write=True)
    assert check(READ_BYPASS, client.record, b"f", write=False) is None
    assert check(ANONYMOUS, client.record, b"another", write=True) is None
    world.engine.opens.close(state)
    assert check(ANONYMOUS, client.record, b"f", write=True) is None


def test_anonymous_io_ends_a_courtesy_clients_deny():
    world = World()
    away = world.client41()
    away.open(access=READ, deny=BOTH)
    world.pass_time(world.limits.lease + 2)
    assert world.engine.stateids.check_io(ANONYMOUS, None, b"f", write=True) is None
    assert away.record.expired


# -- v4.0 seqids ----------------------------------------------------------------------------------------------------
def test_open_confirm_and_what_is_refused_before_it():
    world = World()
    client = world.client40()
    opens, stateids = world.engine.opens, world.engine.stateids
    owner, _ = opens.begin40(client.record, b"o", 77)
    assert not owner.confirmed
    state = opens.reserve(owner, b"f", BOTH, 0, reclaim=False).commit()
    owner.finish(0, b"open", b"handle")
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.check_io(state.stateid, None, b"f", write=False)
    assert opens.begin_seqid(state.stateid.other, 78) == (owner, None)
    with failing(p.NFS4ERR_BAD_STATEID):
        opens.close(state)
    owner.finish(p.NFS4ERR_BAD_STATEID, b"close")
    assert owner.seqid == 77, "BAD_STATEID leaves the seqid (RFC 7530 section 9.1.7)"
    opens.begin_seqid(state.stateid.other, 78)
    assert opens.confirm(state).seqid == 2
    owner.finish(0, b"confirm")
    assert stateids.check_io(state.stateid, None, b"f", write=True) is state
    assert opens.begin40(client.record, b"o", 79)[0].confirmed


def test_unconfirmed_owner_that_opens_again_starts_over():
    world = World()
    client = world.client40()
    opens = world.engine.opens
    owner, _ = opens.begin40(client.record, b"o", 5)
    opens.reserve(owner, b"f", READ, BOTH, reclaim=False).commit()
    owner.finish(0, b"first", b"h")
    assert opens.begin40(client.record, b"o", 5)[1] == SeqidReplay(0, b"first", b"h")
    again, replay = opens.begin40(client.record, b"o", 500)
    assert replay is None
    assert again is not owner
    assert opens.file(b"f") is None


def test_replay_and_misorder_of_an_owner():
    world = World()
    client = world.client40()
    state = client.open()
    opens = world.engine.opens
    assert opens.begin_seqid(state.stateid.other, 2)[1] == SeqidReplay(0, b"confirm", None)
    for seqid in (0, 1, 4, 0xFFFFFFFF):
        with failing(p.NFS4ERR_BAD_SEQID):
            opens.begin_seqid(state.stateid.other, seqid)
    owner, replay = opens.begin_seqid(state.stateid.other, 3)
    assert replay is None
    with failing(p.NFS4ERR_DELAY):
        opens.begin_seqid(state.stateid.other, 3)
    owner.finish(p.NFS4ERR_SHARE_DENIED, b"denied")
    assert opens.begin_seqid(state.stateid.other, 3)[1] == SeqidReplay(p.NFS4ERR_SHARE_DENIED, b"denied", None)


def test_close_is_replayed_until_the_owner_goes_on():
    world = World()
    client = world.client40()
    kept = client.open(b"other")
    state = client.open(b"f")
    opens, stateids = world.engine.opens, world.engine.stateids
    seqid = client.seqids[b"o"] + 1
    owner, _ = opens.begin_seqid(state.stateid.other, seqid)
    before = state.stateid
    closed = opens.close(state)
    owner.finish(0, b"closed")
    assert closed.other == before.other
    assert opens.begin_seqid(before.other, seqid)[1] == SeqidReplay(0, b"closed", None)
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.find(before, None)
    opens.begin_seqid(kept.stateid.other, seqid + 1)[0].finish(0, b"")
    with failing(p.NFS4ERR_BAD_STATEID):
        opens.begin_seqid(before.other, seqid)


def test_idle_owner_is_forgotten_after_a_lease():
    world = World()
    client = world.client40()
    state = client.open()
    world.engine.opens.close(state)
    for _ in range(4):
        world.pass_time(30)
        client.renew()
    world.pass_time(60)
    client.renew()
    world.pass_time(60)
    assert client.record.open_owners == {}
    assert world.engine.stateids._closed == {}


def test_seqid_wraps():
    world = World()
    client = world.client40()
    client.seqids[b"o"] = 0xFFFFFFFC
    state = client.open()
    owner = state.owner
    for seqid in (0xFFFFFFFF, 0, 1):
        assert owner.begin(seqid) is None
        owner.finish(0, b"")


class ShareHistories(RuleBasedStateMachine):
    """Opens, upgrades, downgrades, closes and expiry of three owners on one file against a table of opens."""

    owners = ((0, b"p"), (0, b"q"), (1, b"p"))

    def __init__(self):
        super().__init__()
        self.world = World()
        self.clients = [self.world.client41(b"0"), self.world.client41(b"1")]
        self.model = {index: [] for index in range(3)}
        self.states = {}

    def held(self, index):
        access = deny = 0
        for one in self.model[index]:
            access, deny = access | one[0], deny | one[1]
        return access, deny

    @rule(index=st.integers(0, 2), mode=st.sampled_from(MODES))
    def open(self, index, mode):
        client, owner = self.owners[index]
        conflict = any(mode[0] & self.held(each)[1] or mode[1] & self.held(each)[0] for each in range(3))
        if conflict:
            with failing(p.NFS4ERR_SHARE_DENIED):
                self.clients[client].open(b"f", *mode, owner=owner)
            return
        self.states[index] = self.clients[client].open(b"f", *mode, owner=owner)
        if mode not in self.model[index]:
            self.model[index].append(mode)

    @rule(index=st.integers(0, 2), mode=st.sampled_from(MODES))
    def downgrade(self, index, mode):
        if not self.model[index]:
            return
        subsets = itertools.chain.from_iterable(
            itertools.combinations(self.model[index], size) for size in range(1, len(self.model[index]) + 1)
        )
        unions = [(set(subset), (_or(one[0] for one in subset), _or(one[1] for one in subset))) for subset in subsets]
        fitting = [subset for subset, union in unions if union == mode]
        if not fitting:
            with failing(p.NFS4ERR_INVAL):
                self.world.engine.opens.downgrade(self.states[index], *mode)
            return
        self.world.engine.opens.downgrade(self.states[index], *mode)
        kept = set().union(*fitting)
        self.model[index] = [one for one in self.model[index] if one in kept]

    @rule(index=st.integers(0, 2))
    def close(self, index):
        if self.model[index]:
            self.world.engine.opens.close(self.states.pop(index))
            self.model[index] = []

    @rule(client=st.integers(0, 1))
    def expire(self, client):
        self.world.engine.expire_client(self.clients[client].record)
        self.clients[client] = self.world.client41(b"%d" % client)
        for index in range(3):
            if self.owners[index][0] == client:
                self.model[index] = []
                self.states.pop(index, None)

    @invariant()
    def counters_add_up(self):
        file = self.world.engine.opens.file(b"f")
        holds = [self.held(index) for index in range(3)]
        counted = (file.access_read, file.access_write, file.deny_read, file.deny_write) if file else (0, 0, 0, 0)
        assert counted == tuple(
            sum(bool(hold[which] & bit) for hold in holds) for which, bit in ((0, 1), (0, 2), (1, 1), (1, 2))
        )


def _or(values):
    result = 0
    for value in values:
        result |= value
    return result


ShareHistories.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestShareHistories = ShareHistories.TestCase


def test_owner_whose_open_failed_is_forgotten_too():
    world = World()
    blocker, client = world.client41(b"1"), world.client41(b"2")
    blocker.open(deny=BOTH)
    with failing(p.NFS4ERR_SHARE_DENIED):
        client.open()
    assert list(client.record.open_owners) == [b"o"]
    for _ in range(5):
        world.pass_time(60)
        blocker.renew()
        client.renew()
    assert client.record.open_owners == {}
