"""CREATE_SESSION and its reply cache, channel negotiation, bound connections, the end of a session."""

from dataclasses import replace

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, StateEngine
from nfsd.state.types import ChannelAttributes

from .state_support import BACK, FORE, World, failing

FORE_DIR, BACK_DIR = p.channel_dir_from_client4.CDFC4_FORE, p.channel_dir_from_client4.CDFC4_BACK
EITHER = p.channel_dir_from_client4.CDFC4_FORE_OR_BOTH


def create(world, clientid, sequenceid, **changes):
    given = {
        "clientid": clientid,
        "sequenceid": sequenceid,
        "flags": 0,
        "fore": FORE,
        "back": BACK,
        "cb_program": 1,
        "cb_credentials": (),
        "principal": "1:0",
        "connection": "connection",
    }
    return world.engine.sessions.create_session(**(given | changes))


def exchanged(world, verifier=b"v" * 8):
    return world.engine.clients.exchange_id(owner=b"x", verifier=verifier, flags=0, principal="1:0")


def test_create_session_is_replayed_by_its_own_sequence():
    world = World()
    made = exchanged(world)
    with failing(p.NFS4ERR_STALE_CLIENTID):
        create(world, made.clientid + 1, 1)
    with failing(p.NFS4ERR_SEQ_MISORDERED):
        create(world, made.clientid, 0)  # the contrived result before the first
    with failing(p.NFS4ERR_SEQ_MISORDERED):
        create(world, made.clientid, 2)
    first = create(world, made.clientid, 1)
    assert create(world, made.clientid, 1) == first
    assert len(world.engine.clients.lookup(made.clientid).sessions) == 1
    second = create(world, made.clientid, 2)
    assert second.sessionid != first.sessionid
    with failing(p.NFS4ERR_SEQ_MISORDERED):
        create(world, made.clientid, 1)
    assert exchanged(world).sequenceid == 3


def test_failure_of_create_session_is_replayed_as_failure():
    world = World(Limits(sessions=1))
    made = exchanged(world)
    first = create(world, made.clientid, 1)
    with failing(p.NFS4ERR_NOSPC):
        create(world, made.clientid, 2)
    world.engine.sessions.destroy_session(first.sessionid, connection="connection", own=None)
    with failing(p.NFS4ERR_NOSPC):
        create(world, made.clientid, 2)
    create(world, made.clientid, 3)


@pytest.mark.parametrize("principal", ["1:99", "1:0", "6:bob@EXAMPLE.ORG"])
def test_another_principal_makes_no_session_and_uses_up_no_sequence(principal):
    """Its client is not to be told of a failure that is not its own."""
    world = World()
    who = "6:ann@EXAMPLE.ORG"
    made = world.engine.clients.exchange_id(owner=b"x", verifier=b"v" * 8, flags=0, principal=who)
    for number in (0, 1, 2):
        with failing(p.NFS4ERR_CLID_INUSE):
            create(world, made.clientid, number, principal=principal)
    first = create(world, made.clientid, 1, principal=who)
    with failing(p.NFS4ERR_CLID_INUSE):
        create(world, made.clientid, 1, principal=principal)
    with failing(p.NFS4ERR_CLID_INUSE):
        create(world, made.clientid, 2, principal=principal)
    assert create(world, made.clientid, 1, principal=who) == first
    create(world, made.clientid, 2, principal=who)


def test_replay_of_create_session_binds_the_new_connection():
    world = World()
    made = exchanged(world)
    result = create(world, made.clientid, 1, flags=2)
    world.engine.connection_closed("connection")
    create(world, made.clientid, 1, flags=2, connection="again")
    session = world.engine.clients.lookup(made.clientid).sessions[result.sessionid]
    assert session.connections == {"again"}
    assert session.backchannel.connections == ["again"]


def test_fore_channel_is_never_granted_more_than_asked_or_allowed():
    world = World(Limits(slots=16, operations=50, cached_reply_octets=2048, response_octets=100000))
    made = exchanged(world)
    asked = ChannelAttributes(64, 1 << 30, 1 << 30, 1 << 30, 1000, 1000)
    result = create(world, made.clientid, 1, fore=asked)
    assert result.fore == ChannelAttributes(0, world.limits.request_octets, 100000, 2048, 50, 16)
    modest = ChannelAttributes(0, 5000, 6000, 0, 8, 3)
    assert create(world, made.clientid, 2, fore=modest).fore == modest


def test_backchannel_is_what_the_client_offered():
    """Linux refuses a reply that raises, or for responses lowers, what it offered (RFC 8881 section 18.36.3)."""
    world = World()
    made = exchanged(world)
    offered = ChannelAttributes(16, 4068, 4068, 0, 2, 16, (8,))
    assert create(world, made.clientid, 1, back=offered, flags=2).back == replace(offered, headerpadsize=0, rdma_ird=())


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"fore": replace(FORE, maxresponsesize=20)}, p.NFS4ERR_TOOSMALL),
        ({"fore": replace(FORE, maxrequestsize=20)}, p.NFS4ERR_TOOSMALL),
        ({"fore": replace(FORE, maxoperations=0)}, p.NFS4ERR_TOOSMALL),
        ({"fore": replace(FORE, maxrequests=0)}, p.NFS4ERR_INVAL),
        ({"fore": replace(FORE, rdma_ird=(1, 2))}, p.NFS4ERR_INVAL),
        ({"back": replace(BACK, maxrequestsize=10)}, p.NFS4ERR_TOOSMALL),
        ({"back": replace(BACK, maxoperations=1)}, p.NFS4ERR_TOOSMALL),
        ({"flags": 8}, p.NFS4ERR_INVAL),
    ],
)
def test_impossible_sessions_are_refused_without_using_up_the_sequence(changes, status):
    world = World()
    made = exchanged(world)
    with failing(status):
        create(world, made.clientid, 1, **changes)
    create(world, made.clientid, 1)


def test_flags_granted():
    world = World()
    made = exchanged(world)
    assert create(world, made.clientid, 1, flags=7).flags == p.CREATE_SESSION4_FLAG_CONN_BACK_CHAN
    assert create(world, made.clientid, 2, flags=0).flags == 0
    assert create(world, made.clientid, 3, flags=2, callbacks=False).flags == 0


def test_sessions_and_their_cache_are_bounded_per_client():
    world = World(Limits(sessions=3, client_cached_octets=10 * 4096))
    made = exchanged(world)
    granted = [create(world, made.clientid, number).fore.maxrequests for number in (1, 2, 3)]
    assert granted == [8, 2, 1]
    with failing(p.NFS4ERR_NOSPC):
        create(world, made.clientid, 4)
    client = world.engine.clients.lookup(made.clientid)
    for sessionid in list(client.sessions):
        world.engine.sessions.destroy_session(sessionid, connection="connection", own=None)
    assert client.cached_octets == 0
    assert create(world, made.clientid, 5).fore.maxrequests == 8


def test_lost_backchannel_shows_in_the_status_until_bound_again():
    world = World()
    client = world.client41()
    session = client.record.sessions[client.sessionid]
    assert session.status_flags() == 0
    world.engine.connection_closed(client.connection)
    assert session.status_flags() == p.SEQ4_STATUS_CB_PATH_DOWN | p.SEQ4_STATUS_CB_PATH_DOWN_SESSION
    client.connection = object()
    client.renew()
    assert session.status_flags(), "SEQUENCE binds the fore channel only"
    bound = world.engine.sessions.bind_connection(client.connection, client.sessionid, EITHER, False)
    assert bound == (p.channel_dir_from_server4.CDFS4_BOTH, False)
    assert session.status_flags() == 0


def test_session_without_backchannel_has_no_path_to_be_down():
    world = World()
    made = exchanged(world)
    result = create(world, made.clientid, 1)
    session = world.engine.clients.lookup(made.clientid).sessions[result.sessionid]
    assert session.status_flags() == 0


def test_another_sessions_backchannel_keeps_the_clients_path_up():
    world = World()
    client = world.client41()
    create(world, client.clientid, 2, flags=2, connection="second")
    world.engine.connection_closed(client.connection)
    session = client.record.sessions[client.sessionid]
    assert session.status_flags() == p.SEQ4_STATUS_CB_PATH_DOWN_SESSION


def test_binding_directions():
    world = World()
    client = world.client41()
    bind = world.engine.sessions.bind_connection
    assert bind("f", client.sessionid, FORE_DIR, False)[0] == p.channel_dir_from_server4.CDFS4_FORE
    assert bind("b", client.sessionid, BACK_DIR, False)[0] == p.channel_dir_from_server4.CDFS4_BACK
    fore_only = bind("n", client.sessionid, EITHER, False, callbacks=False)
    assert fore_only[0] == p.channel_dir_from_server4.CDFS4_FORE
    with failing(p.NFS4ERR_INVAL):
        bind("n", client.sessionid, BACK_DIR, False, callbacks=False)
    with failing(p.NFS4ERR_INVAL):
        bind("n", client.sessionid, 9, False)
    with failing(p.NFS4ERR_BADSESSION):
        bind("n", bytes(16), FORE_DIR, False)
    session = client.record.sessions[client.sessionid]
    assert "b" not in session.connections


BACK_OR_BOTH = p.channel_dir_from_client4.CDFC4_BACK_OR_BOTH
FORE_ONLY, BACK_ONLY, BOTH_WAYS = (
    p.channel_dir_from_server4.CDFS4_FORE,
    p.channel_dir_from_server4.CDFS4_BACK,
    p.channel_dir_from_server4.CDFS4_BOTH,
)


@pytest.mark.parametrize(
    ("first", "then", "granted"),
    [
        (FORE_DIR, FORE_DIR, FORE_ONLY),
        (FORE_DIR, EITHER, BOTH_WAYS),
        (FORE_DIR, BACK_DIR, None),
        (FORE_DIR, BACK_OR_BOTH, None),
        (BACK_DIR, BACK_DIR, BACK_ONLY),
        (BACK_DIR, BACK_OR_BOTH, BOTH_WAYS),
        (BACK_DIR, FORE_DIR, None),
        (BACK_DIR, EITHER, None),
        (EITHER, EITHER, BOTH_WAYS),
        (EITHER, BACK_OR_BOTH, BOTH_WAYS),
        (EITHER, FORE_DIR, None),
        (EITHER, BACK_DIR, None),
    ],
)
def test_a_bound_connection_is_bound_again_but_not_otherwise(first, then, granted):
    """RFC 8881 section 18.34.3: a repetition is fine, a change is INVAL, and what was bound stays bound."""
    world = World()
    client = world.client41()
    bind = world.engine.sessions.bind_connection
    before, _ = bind("c", client.sessionid, first, False)
    if granted is None:
        with failing(p.NFS4ERR_INVAL):
            bind("c", client.sessionid, then, False)
        granted = before
    else:
        assert bind("c", client.sessionid, then, False) == (granted, False)
    session = client.record.sessions[client.sessionid]
    assert ("c" in session.connections) == bool(granted & FORE_ONLY)
    assert ("c" in session.backchannel.connections) == bool(granted & BACK_ONLY)


def test_destroy_session_from_a_bound_connection():
    world = World()
    client = world.client41()
    destroy = world.engine.sessions.destroy_session
    with failing(p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION):
        destroy(client.sessionid, connection="stranger", own=None)
    destroy(client.sessionid, connection=client.connection, own=None)
    with failing(p.NFS4ERR_BADSESSION):
        destroy(client.sessionid, connection=client.connection, own=None)
    assert client.clientid == client.record.clientid
    assert not client.record.expired, "the client and its state stay (RFC 8881 section 18.37.3)"


def test_orphaned_session_is_destroyed_over_a_new_connection():
    world = World()
    client = world.client41()
    world.engine.connection_closed(client.connection)
    world.engine.sessions.destroy_session(client.sessionid, connection="new", own=None)
    world.engine.clients.destroy_clientid(client.clientid)


def test_destroy_session_waits_for_other_slots():
    world = World()
    client = world.client41()
    sequence, destroy = world.engine.sessions.sequence, world.engine.sessions.destroy_session
    own, _, _ = sequence(client.connection, client.sessionid, 1, 0, 1, False)
    _, other, _ = sequence(client.connection, client.sessionid, 1, 1, 1, False)
    with failing(p.NFS4ERR_DELAY):
        destroy(client.sessionid, connection=client.connection, own=own)
    other.finish(None)
    destroy(client.sessionid, connection=client.connection, own=own)


def test_nothing_remembers_a_connection_after_its_sessions():
    world = World()
    client = world.client41()
    world.engine.expire_client(client.record)
    assert isinstance(world.engine, StateEngine)
    assert world.engine.sessions._bound == {}
    assert world.engine.sessions.by_id == {}
