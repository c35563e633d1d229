"""What a stateid is worth: seqids, other clients, other files, other instances, revocation."""

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Recovered
from nfsd.state.types import ANONYMOUS, CURRENT, INVALID, READ_BYPASS, Stateid

from .state_support import READ, WRITE, World, failing


def moved(state, by):
    return Stateid((state.seqid + by) & 0xFFFFFFFF, state.other)


def test_seqid_of_41():
    world = World()
    client = world.client41()
    state = client.open()
    client.open()
    find = world.engine.stateids.find
    assert find(moved(state, 0), client.record) is state
    assert find(Stateid(0, state.other), client.record) is state, "zero is the current one"
    with failing(p.NFS4ERR_OLD_STATEID):
        find(moved(state, -1), client.record)
    with failing(p.NFS4ERR_BAD_STATEID):
        find(moved(state, 1), client.record)


def test_seqid_of_40_has_no_zero():
    world = World()
    client = world.client40()
    state = client.open()
    find = world.engine.stateids.find
    assert find(state.stateid, None) is state
    with failing(p.NFS4ERR_BAD_STATEID):
        find(Stateid(0, state.other), None)
    with failing(p.NFS4ERR_OLD_STATEID):
        find(moved(state, -1), None)


def test_seqid_wraps_over_zero():
    world = World()
    client = world.client41()
    state = client.open()
    state.seqid = 0xFFFFFFFF
    old = state.stateid
    state.bump()
    assert state.seqid == 1
    with failing(p.NFS4ERR_OLD_STATEID):
        world.engine.stateids.find(old, client.record)


@pytest.mark.parametrize("stateid", [ANONYMOUS, READ_BYPASS, CURRENT, INVALID, Stateid(5, bytes(12)), Stateid(1, b"")])
def test_special_and_malformed_stateids_name_nothing(stateid):
    world = World()
    client = world.client41()
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.stateids.find(stateid, client.record)
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.stateids.find(stateid, None)
    assert world.engine.stateids.test(stateid, client.record) == p.NFS4ERR_BAD_STATEID
    if stateid not in (ANONYMOUS, READ_BYPASS):
        with failing(p.NFS4ERR_BAD_STATEID):
            world.engine.stateids.check_io(stateid, client.record, b"f", write=False)


def test_stateid_of_another_client_file_or_version():
    world = World()
    one, two, old = world.client41(b"1"), world.client41(b"2"), world.client40(b"3")
    state, old_state = one.open(access=READ), old.open()
    stateids = world.engine.stateids
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.find(state.stateid, two.record)
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.find(state.stateid, None)
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.find(old_state.stateid, one.record)
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.find_open(state.stateid, one.record, b"another")
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.check_io(state.stateid, one.record, b"another", write=False)
    with failing(p.NFS4ERR_BAD_STATEID):
        stateids.find_lock(state.stateid, one.record, b"f")


def test_open_mode():
    world = World()
    client = world.client41()
    check = world.engine.stateids.check_io
    reader, writer = client.open(b"r", READ), client.open(b"w", WRITE)
    assert check(reader.stateid, client.record, b"r", write=False) is reader
    with failing(p.NFS4ERR_OPENMODE):
        check(reader.stateid, client.record, b"r", write=True)
    assert check(writer.stateid, client.record, b"w", write=True) is writer
    assert check(writer.stateid, client.record, b"w", write=False) is writer


def test_lock_stateid_does_io_under_its_open():
    world = World()
    client = world.client41()
    state = client.open()
    locked = client.lock(state, 0, 10)
    assert world.engine.stateids.check_io(locked.stateid, client.record, b"f", write=True) is state


def test_stateids_of_earlier_instances():
    world = World()
    old, new = world.client40(b"1"), world.client41(b"2")
    old_stateid, new_stateid = old.open().stateid, new.open(owner=b"x").stateid
    world.boot(Recovered(world.engine.epoch + 1))
    client = world.client41(b"2")
    with failing(p.NFS4ERR_STALE_STATEID):
        world.engine.stateids.find(old_stateid, None)
    with failing(p.NFS4ERR_BAD_STATEID):
        world.engine.stateids.find(new_stateid, client.record)


def test_40_stateid_of_an_expired_client():
    world = World()
    client = world.client40()
    stateid = client.open().stateid
    world.engine.expire_client(client.record)
    with failing(p.NFS4ERR_EXPIRED):
        world.engine.stateids.find(stateid, None)


def test_40_io_renews_the_lease():
    world = World()
    client = world.client40()
    state = client.open()
    for _ in range(5):
        world.pass_time(80)
        world.engine.stateids.check_io(state.stateid, None, b"f", write=False)
    assert not client.record.courtesy


def test_free_stateid():
    world = World()
    client = world.client41()
    state = client.open()
    locked = client.lock(state, 0, 10)
    free = world.engine.stateids.free
    for held in (state, locked):
        with failing(p.NFS4ERR_LOCKS_HELD):
            free(held.stateid, client.record)
    with failing(p.NFS4ERR_OLD_STATEID):
        client.lock(state, 5, 10)
        free(moved(locked, -1), client.record)
    world.engine.locks.unlock(locked, 0, 100)
    assert world.engine.stateids.test(locked.stateid, client.record) == p.NFS4_OK
    free(locked.stateid, client.record)
    with failing(p.NFS4ERR_BAD_STATEID):
        free(locked.stateid, client.record)
    assert client.record.lock_states == 0
    assert client.record.lock_owners == {}


def test_revoked_state_is_free_for_others_and_told_until_acknowledged():
    world = World()
    client, other = world.client41(b"1"), world.client41(b"2")
    state = client.open(deny=3)
    locked = client.lock(state, 0, 10)
    world.engine.revoke(state)
    other.open(deny=3)
    session = client.record.sessions[client.sessionid]
    assert session.status_flags() == p.SEQ4_STATUS_ADMIN_STATE_REVOKED
    for gone in (state, locked):
        assert world.engine.stateids.test(gone.stateid, client.record) == p.NFS4ERR_ADMIN_REVOKED
        with failing(p.NFS4ERR_ADMIN_REVOKED):
            world.engine.stateids.check_io(gone.stateid, client.record, b"f", write=False)
        world.engine.stateids.free(gone.stateid, client.record)
        assert world.engine.stateids.test(gone.stateid, client.record) == p.NFS4ERR_BAD_STATEID
    assert session.status_flags() == 0
    assert client.record.states == {}


def test_revoked_state_goes_with_its_client():
    world = World()
    client = world.client41()
    world.engine.revoke(client.open())
    world.engine.sessions.destroy_session(client.sessionid, connection=client.connection, own=None)
    world.engine.clients.destroy_clientid(client.clientid)
    assert world.engine.stateids.entries == {}
