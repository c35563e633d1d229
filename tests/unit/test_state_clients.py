"""Client records: the cases of SETCLIENTID and EXCHANGE_ID, leases, courtesy, the end of a client."""

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import ClientInUse, Limits
from nfsd.state.types import Callback40

from .state_support import CALLBACK, READ, World, failing

V1, V2 = b"verifie1", b"verifie2"
UPDATE = p.EXCHGID4_FLAG_UPD_CONFIRMED_REC_A

RESULT_FLAGS = p.EXCHGID4_FLAG_USE_NON_PNFS | p.EXCHGID4_FLAG_SUPP_MOVED_REFER


def setclientid(world, name=b"x", verifier=V1, principal="1:0", callback=CALLBACK):
    return world.engine.clients.setclientid(owner=name, verifier=verifier, principal=principal, callback=callback)


def confirm(world, clientid, verifier, principal="1:0"):
    return world.engine.clients.setclientid_confirm(clientid=clientid, confirm=verifier, principal=principal)


def exchange(world, name=b"x", verifier=V1, flags=0, principal="1:0", **kwargs):
    return world.engine.clients.exchange_id(owner=name, verifier=verifier, flags=flags, principal=principal, **kwargs)


# -- v4.0 (RFC 7530 sections 16.33.5 and 16.34.5) -------------------------------------------------------------------
def test_new_name_is_confirmed_with_what_it_was_given():
    world = World()
    clientid, verifier = setclientid(world)
    with failing(p.NFS4ERR_STALE_CLIENTID):
        world.engine.clients.client40(clientid)
    with failing(p.NFS4ERR_STALE_CLIENTID):
        confirm(world, clientid, b"12345678")
    with failing(p.NFS4ERR_CLID_INUSE):
        confirm(world, clientid, verifier, principal="1:1")
    assert confirm(world, clientid, verifier).confirmed
    assert confirm(world, clientid, verifier).confirmed, "a retry of the confirmation"
    assert world.engine.clients.client40(clientid).owner == b"x"


def test_unconfirmed_record_is_replaced():
    world = World()
    first, first_verifier = setclientid(world)
    second, second_verifier = setclientid(world)
    assert first != second
    with failing(p.NFS4ERR_STALE_CLIENTID):
        confirm(world, first, first_verifier)
    confirm(world, second, second_verifier)


def test_same_incarnation_updates_its_callback_and_keeps_its_state():
    world = World()
    client = world.client40(b"x", V1)
    client.open()
    moved = Callback40(0x40000001, "tcp", "10.0.0.1.9.9", 2)
    clientid, verifier = setclientid(world, callback=moved)
    assert clientid == client.clientid
    assert client.record.callback == CALLBACK, "not before its confirmation"
    with failing(p.NFS4ERR_CLID_INUSE):
        confirm(world, clientid, verifier, principal="1:7")
    assert confirm(world, clientid, verifier) is client.record
    assert client.record.callback == moved
    assert client.record.states


def test_restarted_client_loses_its_state_on_confirmation_only():
    world = World()
    client = world.client40(b"x", V1)
    client.open()
    clientid, verifier = setclientid(world, verifier=V2)
    assert clientid != client.clientid
    assert client.record.states
    assert not client.record.expired
    new = confirm(world, clientid, verifier)
    assert client.record.expired
    assert not client.record.states
    assert world.engine.clients.client40(clientid) is new
    with failing(p.NFS4ERR_EXPIRED):
        world.engine.clients.client40(client.clientid)


def test_restarted_client_replaces_its_own_unconfirmed_record():
    world = World()
    client = world.client40(b"x", V1)
    second, second_verifier = setclientid(world, verifier=V2)
    third, third_verifier = setclientid(world, verifier=V2)
    assert len({client.clientid, second, third}) == 3
    with failing(p.NFS4ERR_STALE_CLIENTID):
        confirm(world, second, second_verifier)
    confirm(world, third, third_verifier)


def test_name_of_another_principal_is_in_use_while_it_has_state():
    world = World()
    client = world.client40(b"x", V1)
    state = client.open()
    with pytest.raises(ClientInUse) as caught:
        setclientid(world, principal="1:99")
    assert (caught.value.netid, caught.value.address) == ("tcp", CALLBACK.address)
    world.engine.opens.close(state)
    setclientid(world, principal="1:99")


def test_a_confirmation_ends_no_state_of_another_principal():
    """Whose client has come to the address since the new name was taken (RFC 7530 section 16.34.5)."""
    world = World()
    clientid, verifier = world.engine.clients.setclientid(
        owner=b"x", verifier=V2, principal="1:99", callback=CALLBACK, host="shared"
    )
    client = world.client40(b"x", V1)
    client.open()
    world.engine.clients.meet(client.record, "shared")
    with failing(p.NFS4ERR_CLID_INUSE):
        confirm(world, clientid, verifier, principal="1:99")
    assert world.engine.clients.lookup(client.clientid) is client.record


def test_renew_tells_stale_from_expired():
    world = World()
    client = world.client40()
    client.renew()
    with failing(p.NFS4ERR_STALE_CLIENTID):
        world.engine.clients.renew(0x1234)
    with failing(p.NFS4ERR_STALE_CLIENTID):
        world.engine.clients.renew(client.clientid + 1000)
    world.engine.expire_client(client.record)
    with failing(p.NFS4ERR_EXPIRED):
        client.renew()


def test_minor_versions_do_not_share_clientids():
    world = World()
    new, old = world.client41(b"x"), world.client40(b"x")
    with failing(p.NFS4ERR_STALE_CLIENTID):
        world.engine.clients.client40(new.clientid)
    with failing(p.NFS4ERR_STALE_CLIENTID):
        world.engine.clients.destroy_clientid(old.clientid)


# -- v4.1 (RFC 8881 section 18.35.4) --------------------------------------------------------------------------------
def test_case_1_new_owner():
    world = World()
    made = exchange(world)
    assert made.sequenceid == 1
    assert made.flags == RESULT_FLAGS


def test_case_2_confirmed_record_is_returned_unchanged():
    world = World()
    client = world.client41(b"x", V1)
    again = exchange(world)
    assert again.clientid == client.clientid
    assert again.flags == RESULT_FLAGS | p.EXCHGID4_FLAG_CONFIRMED_R
    assert again.sequenceid == 2


def test_case_3_collision():
    world = World()
    client = world.client41(b"x", V1)
    state = client.open()
    with failing(p.NFS4ERR_CLID_INUSE):
        exchange(world, principal="1:99")
    world.engine.opens.close(state)
    with failing(p.NFS4ERR_CLID_INUSE):
        exchange(world, principal="1:99")  # it would lose its session
    world.engine.sessions.destroy_session(client.sessionid, connection=client.connection, own=None)
    assert exchange(world, principal="1:99").clientid != client.clientid
    assert client.record.expired


def test_case_3_collision_with_an_expired_lease():
    world = World()
    client = world.client41(b"x", V1)
    client.open()
    world.pass_time(world.limits.lease + 1)
    assert client.record.courtesy
    exchange(world, principal="1:99")
    assert client.record.expired


def test_case_4_unconfirmed_record_is_replaced():
    world = World()
    first = exchange(world)
    assert exchange(world, verifier=V2).clientid != first.clientid
    assert world.engine.clients.lookup(first.clientid) is None


def test_case_5_restart_keeps_the_old_record_until_create_session():
    world = World()
    old = world.client41(b"x", V1)
    old.open()
    made = exchange(world, verifier=V2)
    assert made.clientid != old.clientid
    assert not made.flags & p.EXCHGID4_FLAG_CONFIRMED_R
    old.renew()
    new = world.client41(b"x", V2)
    assert old.record.expired
    with failing(p.NFS4ERR_BADSESSION):
        old.renew()
    new.open(access=READ, deny=3)


def test_cases_6_to_9_updates():
    world = World()
    with failing(p.NFS4ERR_NOENT):
        exchange(world, flags=UPDATE)
    exchange(world)
    with failing(p.NFS4ERR_NOENT):
        exchange(world, flags=UPDATE)
    client = world.client41(b"x", V1)
    assert exchange(world, flags=UPDATE).clientid == client.clientid
    with failing(p.NFS4ERR_NOT_SAME):
        exchange(world, flags=UPDATE, verifier=V2)
    with failing(p.NFS4ERR_PERM):
        exchange(world, flags=UPDATE, principal="1:99")


@pytest.mark.parametrize("flags", [0x80000000, 0x8, 0x1000])
def test_unknown_exchange_flags(flags):
    with failing(p.NFS4ERR_INVAL):
        exchange(World(), flags=flags)


def test_destroy_clientid_needs_an_idle_client():
    world = World()
    client = world.client41()
    with failing(p.NFS4ERR_CLIENTID_BUSY):
        world.engine.clients.destroy_clientid(client.clientid)
    world.engine.sessions.destroy_session(client.sessionid, connection=client.connection, own=None)
    world.engine.clients.destroy_clientid(client.clientid)
    with failing(p.NFS4ERR_STALE_CLIENTID):
        world.engine.clients.destroy_clientid(client.clientid)


def test_reclaim_complete_once():
    world = World()
    client = world.client41(ready=False)
    with failing(p.NFS4ERR_GRACE):
        client.open()
    world.engine.clients.reclaim_complete(client.record, one_fs=True)
    with failing(p.NFS4ERR_GRACE):
        client.open()
    world.engine.clients.reclaim_complete(client.record, one_fs=False)
    client.open()
    with failing(p.NFS4ERR_COMPLETE_ALREADY):
        world.engine.clients.reclaim_complete(client.record, one_fs=False)


# -- leases ---------------------------------------------------------------------------------------------------------
def test_lease_runs_out_into_courtesy_and_comes_back():
    world = World()
    client = world.client41()
    state = client.open(deny=3)
    world.pass_time(world.limits.lease - 1)
    client.renew()
    world.pass_time(world.limits.lease - 1)
    assert not client.record.courtesy
    world.pass_time(3)
    assert client.record.courtesy
    client.renew()
    assert not client.record.courtesy
    assert world.engine.stateids.check_io(state.stateid, client.record, b"f", write=True) is state


def test_a_lease_renewed_out_of_courtesy_runs_out_again():
    world = World()
    client = world.client40()
    world.pass_time(world.limits.lease + 2)
    assert client.record.courtesy
    world.engine.clients.renew(client.clientid)
    world.pass_time(world.limits.lease - 1)
    assert not client.record.courtesy
    world.pass_time(3)
    assert client.record.courtesy


def test_courtesy_client_gives_way_to_a_conflicting_open():
    world = World()
    away, other = world.client41(b"away"), world.client41(b"other")
    away.open(deny=3).opened = "descriptor"
    with failing(p.NFS4ERR_SHARE_DENIED):
        other.open()
    for _ in range(3):
        world.pass_time(40)
        other.renew()
    assert away.record.courtesy
    world.store()
    other.open()
    assert away.record.expired
    assert world.released == ["descriptor"]
    assert not world.engine.stable, "the record must go before the grant is answered (RFC 8881 section 8.4.3)"
    world.store()
    assert (1, b"away") not in world.records
    assert (1, b"other") in world.records


def test_courtesy_is_bounded_in_time():
    world = World(Limits(courtesy=1000.0))
    client = world.client40()
    client.open()
    world.pass_time(world.limits.lease + 990)
    assert client.record.courtesy
    world.pass_time(12)
    assert client.record.expired
    assert world.engine.get_timer() is None


def test_without_courtesy_a_lease_ends_everything():
    world = World(Limits(courtesy=0.0))
    client = world.client40()
    client.open()
    world.pass_time(world.limits.lease + 2)
    assert client.record.expired


def test_lease_does_not_run_out_while_a_request_executes():
    world = World(Limits(courtesy=0.0))
    client = world.client41()
    _, slot, _ = world.engine.sessions.sequence(client.connection, client.sessionid, 1, 0, 0, False)
    world.pass_time(10 * world.limits.lease)
    assert not client.record.expired
    slot.finish(None)
    world.pass_time(2 * world.limits.lease + 2)
    assert client.record.expired


def test_unconfirmed_records_go_after_a_lease_and_are_bounded():
    world = World(Limits(unconfirmed_clients=3))
    made = [exchange(world, name=bytes([index])) for index in range(5)]
    alive = [world.engine.clients.lookup(one.clientid) is not None for one in made]
    assert alive == [False, False, True, True, True]
    world.pass_time(world.limits.lease + 2)
    assert world.engine.clients.all() == []


def test_full_table_prefers_clients_that_are_away():
    world = World(Limits(clients=2))
    first = world.client41(b"1")
    world.pass_time(world.limits.lease + 2)
    second = world.client41(b"2")
    third = world.client41(b"3")
    assert first.record.expired
    assert not second.record.expired
    with failing(p.NFS4ERR_DELAY):
        exchange(world, name=b"4")
    third.renew()


def test_client_names_are_bounded():
    with failing(p.NFS4ERR_INVAL):
        exchange(World(), name=bytes(1025))
