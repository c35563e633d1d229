"""The table of delegations: who is given one, what stands in its way, how it comes back (RFC 8881 section 10.4)."""

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, delegations
from nfsd.state.errors import DelegationConflict
from nfsd.state.records import Delegation
from tests.support.lines import lines_of
from tests.unit.state_support import BOTH, READ, WRITE, World, failing

WHY = p.why_no_delegation4


def offer(client, key=b"f", *, write=False, reclaim=False):
    """A delegation that the client has been told of, or why there is none."""
    table = client.engine.delegations
    made = table.offer(client.record, key, write=write, reclaim=reclaim)
    if isinstance(made, Delegation):
        assert table.settle(made)
    return made


def two(**limits):
    world = World(Limits(**limits))
    return world, world.client41(b"a"), world.client41(b"b")


def test_readers_share_a_writer_does_not():
    world, a, b = two()
    a.open(access=READ)
    b.open(access=READ)
    assert isinstance(offer(a), Delegation)
    assert isinstance(offer(b), Delegation)
    assert offer(a, write=True) is WHY.WND4_CONTENTION
    assert offer(a) is WHY.WND4_CONTENTION, "one of each file"
    assert world.engine.delegations.count == 2


@pytest.mark.parametrize("write", [False, True])
def test_a_reader_costs_the_same_however_many_others_read(write):
    """All nodes of a cluster open the same program."""

    def lines(readers):
        world = World(Limits())
        table = world.engine.delegations
        for number in range(readers):
            reader = world.client41(b"%d" % number)
            reader.open(access=READ)
            assert isinstance(offer(reader), Delegation)
        last = world.client41(b"last")

        def run():
            state = last.open(access=READ)
            made = offer(last)
            assert offer(last, write=write) is WHY.WND4_CONTENTION
            assert table.covers(last.record, b"f", write=False)
            assert table.other_writer(b"f", last.record) is None
            table.give_back(made)
            last.engine.opens.close(state)

        return lines_of([delegations], run)

    assert lines(2) == lines(100) > 15


@pytest.mark.parametrize(
    ("access", "deny", "read", "write"), [(READ, 0, True, False), (WRITE, 0, False, False), (READ, READ, False, False)]
)
def test_what_others_have_open_stands_against_a_delegation(access, deny, read, write):
    _, a, b = two()
    state = b.open(access=access, deny=deny)
    assert isinstance(offer(a), Delegation) is read
    assert isinstance(offer(a, b"g", write=True), Delegation)
    if not read:
        assert offer(a, write=True) is WHY.WND4_CONTENTION
        b.engine.opens.close(state)
        assert isinstance(offer(a, write=True), Delegation)
    else:
        assert isinstance(offer(a, write=write), Delegation) is write


def test_an_open_that_has_only_been_reserved_counts():
    world, a, b = two()
    reservation = world.engine.opens.reserve(world.engine.opens.owner(b.record, b"o"), b"f", WRITE, 0, reclaim=False)
    assert offer(a) is WHY.WND4_CONTENTION
    reservation.abort()
    assert isinstance(offer(a), Delegation)


def test_own_opens_do_not_stand_against_it():
    _, a, _ = two()
    a.open(access=BOTH)
    assert isinstance(offer(a, write=True), Delegation)


@pytest.mark.parametrize(
    ("held", "access", "deny", "changes", "conflict"),
    [
        (False, READ, 0, False, False),
        (False, WRITE, 0, False, True),
        (False, READ, READ, False, True),
        (False, READ, WRITE, False, False),
        (False, READ, 0, True, True),
        (True, READ, 0, False, True),
        (True, WRITE, 0, False, True),
    ],
)
def test_opens_of_others_recall_what_conflicts(held, access, deny, changes, conflict):
    world, a, b = two()
    made = offer(a, write=held)
    owner = world.engine.opens.owner(b.record, b"o")
    table = world.engine.delegations
    if not conflict:
        world.engine.opens.reserve(owner, b"f", access, deny, reclaim=False, changes=changes).commit()
        assert table.take_recalls() == []
        return
    with pytest.raises(DelegationConflict):
        world.engine.opens.reserve(owner, b"f", access, deny, reclaim=False, changes=changes)
    assert table.take_recalls() == [made]
    with pytest.raises(DelegationConflict):
        world.engine.opens.reserve(owner, b"f", access, deny, reclaim=False, changes=changes)
    assert table.take_recalls() == [], "told once"
    table.give_back(made)
    world.engine.opens.reserve(owner, b"f", access, deny, reclaim=False, changes=changes).commit()


def test_the_share_reservation_is_asked_first():
    world, a, b = two()
    a.open(access=READ, deny=WRITE)
    offer(a)
    with failing(p.NFS4ERR_SHARE_DENIED):
        b.open(access=WRITE)
    assert world.engine.delegations.take_recalls() == []


def test_a_conflict_while_it_is_only_offered_takes_it_away_silently():
    world, a, b = two()
    table = world.engine.delegations
    made = table.offer(a.record, b"f", write=True)
    assert not table.clear(b"f", b.record, write=False)
    assert table.take_recalls() == []
    assert not table.settle(made)
    assert table.count == a.record.delegations == 0
    assert table.clear(b"f", b.record, write=True)


def test_a_file_that_is_being_changed_is_not_delegated():
    world, a, _ = two()
    table = world.engine.delegations
    with table.hold(b"f"):
        with table.hold(b"f"):
            pass
        assert offer(a) is WHY.WND4_CONTENTION
    assert isinstance(offer(a), Delegation)


def test_a_shared_file_is_left_alone_for_a_while():
    world, a, b = two(delegation_pause=30)
    table = world.engine.delegations
    made = offer(a)
    assert not table.clear(b"f", b.record, write=True)
    table.give_back(made)
    assert offer(a) is WHY.WND4_CONTENTION
    world.pass_time(29)
    assert offer(a) is WHY.WND4_CONTENTION
    world.pass_time(1)
    assert isinstance(offer(a), Delegation)


def test_limits():
    world, a, b = two(delegations=3, client_delegations=2)
    table = world.engine.delegations
    first = offer(a, b"1")
    offer(a, b"2")
    assert offer(a, b"3") is WHY.WND4_RESOURCE
    assert table.take_recall_any() == [(a.record, 1)]
    assert offer(a, b"3") is WHY.WND4_RESOURCE
    assert table.take_recall_any() == [], "not at every turn"
    offer(b, b"3")
    assert offer(b, b"4") is WHY.WND4_RESOURCE
    table.give_back(first)
    assert isinstance(offer(b, b"4"), Delegation)
    assert (a.record.delegations, b.record.delegations, table.count) == (1, 2, 3)


def test_none_without_a_limit():
    world, a, _ = two(delegations=0)
    assert offer(a) is WHY.WND4_RESOURCE
    assert world.engine.delegations.take_recall_any() == []


def test_a_client_whose_lease_is_over_gives_way_at_once():
    world, a, b = two(lease=30)
    a.open(access=READ)
    made = offer(a)
    made.opened = "descriptor"
    world.pass_time(20)
    b.renew()
    world.pass_time(15)
    assert a.record.courtesy
    assert offer(a, b"g") is WHY.WND4_RESOURCE, "nothing new for it"
    assert world.engine.delegations.clear(b"f", b.record, write=True)
    assert a.record.expired
    assert "descriptor" in world.released
    assert world.engine.opens.file(b"f") is None, "the open has gone too"


def test_delegations_outlive_their_opens_and_go_with_the_client():
    world, a, b = two()
    state = a.open(access=READ)
    made = offer(a)
    world.engine.opens.close(state)
    assert world.engine.opens.file(b"f") is not None
    assert world.engine.stateids.find(made.stateid, a.record) is made
    world.engine.expire_client(a.record)
    assert world.engine.opens.file(b"f") is None
    assert world.engine.delegations.count == 0
    b.open(access=BOTH)


def test_what_is_not_returned_is_revoked_and_said_so():
    world, a, b = two(lease=90, recall=20)
    table = world.engine.delegations
    made = offer(a)
    gone = []
    table.on_gone = gone.append
    table.clear(b"f", b.record, write=True)
    world.pass_time(19)
    assert table.holds(made)
    world.pass_time(2)
    assert not table.holds(made)
    assert (gone, table.revoked, table.count) == ([made], 1, 0)
    with failing(p.NFS4ERR_DELEG_REVOKED):
        world.engine.stateids.check_io(made.stateid, a.record, b"f", write=False)
    assert world.engine.revoked_flags(a.record) == p.SEQ4_STATUS_RECALLABLE_STATE_REVOKED
    with failing(p.NFS4ERR_DELEG_REVOKED):
        table.find(made.stateid, a.record, b"f")
    world.engine.stateids.free(made.stateid, a.record)
    assert world.engine.revoked_flags(a.record) == 0
    b.open(access=BOTH)


def test_a_local_process_shortens_the_time():
    world, a, b = two(lease=90)
    table = world.engine.delegations
    made = offer(a, write=True)
    table.recall(made, 40)
    table.clear(b"f", b.record, write=True)
    world.pass_time(39)
    assert table.holds(made)
    world.pass_time(2)
    assert not table.holds(made)


def test_a_40_client_hears_bad_stateid_and_keeps_no_claim():
    world = World(Limits(lease=90, recall=20))
    a, b = world.client40(b"a"), world.client41(b"b")
    a.open(access=READ)
    made = offer(a)
    world.store()
    assert (0, b"a") in world.records
    world.engine.delegations.clear(b"f", b.record, write=True)
    world.pass_time(21)
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.stateids.find(made.stateid, None)
    world.store()
    assert (0, b"a") not in world.records


def test_stateids_of_delegations():
    world, a, b = two()
    table, stateids = world.engine.delegations, world.engine.stateids
    made = offer(a)
    assert stateids.check_io(made.stateid, a.record, b"f", write=False) is made
    assert table.find(made.stateid._replace(seqid=0), a.record, b"f") is made
    with failing(p.NFS4ERR_OPENMODE):
        stateids.check_io(made.stateid, a.record, b"f", write=True)
    for client, key in ((a.record, b"g"), (b.record, b"f")):
        with failing(p.NFS4ERR_BAD_STATEID):
            table.find(made.stateid, client, key)
    with failing(p.NFS4ERR_BAD_STATEID):
        table.find(made.stateid._replace(seqid=7), a.record, b"f")
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.find_open(made.stateid, a.record, b"f")
    with failing(p.NFS4ERR_LOCKS_HELD):
        stateids.free(made.stateid, a.record)
    opened = a.open(access=READ)
    with failing(p.NFS4ERR_BAD_STATEID):
        table.find(opened.stateid, a.record, b"f")


def test_delegations_are_no_opens_to_the_limit_of_opens():
    _, a, _ = two(opens=2)
    for key in (b"1", b"2", b"3"):
        offer(a, key)
    a.open(b"x")
    a.open(b"y")
    with failing(p.NFS4ERR_NOSPC):
        a.open(b"z")


def test_a_client_with_delegations_is_busy():
    world, a, _ = two()
    made = offer(a)
    world.engine.sessions.destroy_session(a.sessionid, connection=a.connection, own=None)
    with failing(p.NFS4ERR_CLIENTID_BUSY):
        world.engine.clients.destroy_clientid(a.clientid)
    world.engine.delegations.give_back(made)
    world.engine.clients.destroy_clientid(a.clientid)


def test_delegations_are_reclaimed_after_a_restart_and_only_then():
    world, a, _ = two()
    a.open(access=BOTH)
    offer(a, write=True)
    world.restart()
    a, b = world.client41(b"a", b"w" * 8, ready=False), world.client41(b"b", b"w" * 8, ready=False)
    a.open(access=BOTH, reclaim=True)
    assert offer(a, b"g") is WHY.WND4_CONTENTION, "nothing new in the grace period"
    assert isinstance(offer(a, write=True, reclaim=True), Delegation)
    assert world.engine.delegations.reclaimed == 1
    for client in (a, b):
        world.engine.clients.reclaim_complete(client.record, one_fs=False)
    with pytest.raises(DelegationConflict):
        b.open(access=READ)


def test_a_reclaim_that_conflicts_brings_no_delegation():
    world, a, b = two()
    world.restart()
    a, b = world.client41(b"a", b"w" * 8, ready=False), world.client41(b"b", b"w" * 8, ready=False)
    b.open(access=WRITE, reclaim=True)
    a.open(access=READ, reclaim=True)
    assert offer(a, reclaim=True) is WHY.WND4_CONTENTION
