"""SP4_MACH_CRED in the state engine: what only the machine's credential may do (RFC 8881 sections 2.10.8.3, 18.35)."""

from __future__ import annotations

from typing import Any

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.protection import Protection, granted
from nfsd.state.types import CallbackCredential
from tests.unit.state_support import BACK, FORE, World, failing

MACHINE, OTHER = "6:host/client@EXAMPLE.ORG", "6:host/other@EXAMPLE.ORG"
SESSION_OPS = (
    1 << p.OP_EXCHANGE_ID
    | 1 << p.OP_CREATE_SESSION
    | 1 << p.OP_DESTROY_SESSION
    | 1 << p.OP_BIND_CONN_TO_SESSION
    | 1 << p.OP_DESTROY_CLIENTID
)


def exchange(
    world: World, *, machine: str = MACHINE, principal: str = MACHINE, verifier: bytes = b"v" * 8, **more: Any
):
    return world.engine.clients.exchange_id(
        owner=b"x", verifier=verifier, flags=more.pop("flags", 0), principal=principal, machine=machine, **more
    )


def create(world: World, made: Any, connection: Any, machine: str = MACHINE, principal: str = MACHINE):
    return world.engine.sessions.create_session(
        clientid=made.clientid, sequenceid=made.sequenceid, flags=2, fore=FORE, back=BACK, cb_program=1,
        cb_credentials=(CallbackCredential(0),), principal=principal, machine=machine, connection=connection,
    )  # fmt: skip


@pytest.fixture
def protected() -> tuple[World, Any, Any]:
    """A world with a protected client, what its EXCHANGE_ID has brought, and its session."""
    world = World()
    made = exchange(world, protection=granted(SESSION_OPS, 0, MACHINE))
    return world, made, create(world, made, "connection")


def test_what_is_granted_is_what_is_asked_for_as_far_as_it_is_done() -> None:
    everything = (1 << 80) - 1
    allowed = (
        p.OP_CLOSE, p.OP_OPEN_DOWNGRADE, p.OP_LOCKU, p.OP_DELEGRETURN, p.OP_COMMIT, p.OP_TEST_STATEID,
        p.OP_FREE_STATEID,
    )  # fmt: skip
    assert granted(SESSION_OPS, 0, MACHINE) == Protection(SESSION_OPS, 0)
    assert granted(everything, everything, MACHINE) == Protection(
        SESSION_OPS | 1 << p.OP_BACKCHANNEL_CTL | 1 << p.OP_DELEGPURGE, sum(1 << number for number in allowed)
    )
    with failing(p.NFS4ERR_INVAL):
        granted(SESSION_OPS, 0, "")


def test_the_properties_are_told_again_and_are_not_changed(protected: Any) -> None:
    world, made, _ = protected
    again = exchange(world)
    assert (again.clientid, again.protection) == (made.clientid, Protection(SESSION_OPS, 0))
    assert exchange(world, protection=Protection(0, 0)).protection == Protection(SESSION_OPS, 0)
    updated = exchange(world, flags=p.EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, protection=Protection(0, 0))
    assert updated.protection == Protection(SESSION_OPS, 0)


@pytest.mark.parametrize("machine", ["", OTHER])
def test_nobody_else_ends_what_the_client_has(protected: Any, machine: str) -> None:
    """``""``: the same principal in a call without integrity, or whoever."""
    world, made, session = protected
    sessions, clients = world.engine.sessions, world.engine.clients
    with failing(p.NFS4ERR_WRONG_CRED):
        sessions.destroy_session(session.sessionid, connection="connection", own=None, machine=machine)
    with failing(p.NFS4ERR_WRONG_CRED):
        sessions.bind_connection("elsewhere", session.sessionid, p.channel_dir_from_client4.CDFC4_BACK, False)
    with failing(p.NFS4ERR_WRONG_CRED):
        create(world, made._replace(sequenceid=made.sequenceid + 1), "elsewhere", machine=machine)
    with failing(p.NFS4ERR_WRONG_CRED):
        exchange(world, machine=machine, flags=p.EXCHGID4_FLAG_UPD_CONFIRMED_REC_A)
    with failing(p.NFS4ERR_CLID_INUSE):
        exchange(world, machine=machine)
    with failing(p.NFS4ERR_CLID_INUSE):
        exchange(world, machine=machine, verifier=b"restart!")
    assert session.sessionid in sessions.by_id
    sessions.destroy_session(session.sessionid, connection="connection", own=None, machine=MACHINE)
    with failing(p.NFS4ERR_WRONG_CRED):
        clients.destroy_clientid(made.clientid, machine=machine)
    clients.destroy_clientid(made.clientid, machine=MACHINE)
    assert clients.lookup(made.clientid) is None


def test_connections_are_bound_by_the_machine_alone(protected: Any) -> None:
    world, _, session = protected
    sessions = world.engine.sessions
    sessions.sequence("connection", session.sessionid, 1, 0, 0, False)[1].finish(b"")
    with failing(p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION):
        sessions.sequence("elsewhere", session.sessionid, 2, 0, 0, False)
    either = p.channel_dir_from_client4.CDFC4_FORE_OR_BOTH
    sessions.bind_connection("elsewhere", session.sessionid, either, False, machine=MACHINE)
    sessions.sequence("elsewhere", session.sessionid, 2, 0, 0, False)[1].finish(b"")


def test_a_client_that_does_not_have_connections_enforced_binds_them_by_using_them() -> None:
    world = World()
    only = 1 << p.OP_EXCHANGE_ID
    session = create(world, exchange(world, protection=granted(only, 0, MACHINE)), "connection")
    world.engine.sessions.sequence("elsewhere", session.sessionid, 1, 0, 0, False)[1].finish(b"")


def test_the_callback_channel_is_changed_by_the_machine_alone_if_that_is_asked_for() -> None:
    for enforced in (False, True):
        world = World()
        asked = SESSION_OPS | enforced << p.OP_BACKCHANNEL_CTL
        made = create(world, exchange(world, protection=granted(asked, 0, MACHINE)), "connection")
        session = world.engine.sessions.by_id[made.sessionid]
        if enforced:
            with failing(p.NFS4ERR_WRONG_CRED):
                world.engine.sessions.backchannel_ctl(session, 7, (), "")
            assert session.backchannel.program == 1
        world.engine.sessions.backchannel_ctl(session, 7, (), MACHINE if enforced else "")
        assert session.backchannel.program == 7


def test_a_restarted_machine_takes_its_place(protected: Any) -> None:
    world, made, session = protected
    again = exchange(world, verifier=b"restart!", protection=granted(SESSION_OPS, 0, MACHINE))
    assert again.clientid != made.clientid
    assert session.sessionid in world.engine.sessions.by_id  # until the new one is confirmed
    create(world, again, "new")
    assert session.sessionid not in world.engine.sessions.by_id


def test_without_protection_none_is_enforced() -> None:
    """RFC 8881 section 18.35.3: with SP4_NONE the server MUST NOT enforce any."""
    world = World()
    made = exchange(world)
    assert made.protection is None
    session = create(world, made, "connection")
    sessions = world.engine.sessions
    sessions.sequence("elsewhere", session.sessionid, 1, 0, 0, False)[1].finish(b"")
    with failing(p.NFS4ERR_CLID_INUSE):
        create(world, made, "connection", principal=OTHER)
    sessions.destroy_session(session.sessionid, connection="connection", own=None)
    world.engine.clients.destroy_clientid(made.clientid)


@pytest.mark.parametrize(
    "principal", ["6:a name with spaces@EXAMPLE.ORG", "6: @R", "1:0", "6:x 192.0.2.1 0011223344556677"]
)
def test_a_principal_may_have_spaces_and_reclaims(principal: str) -> None:
    world = World()
    client = world.client41(principal=principal)
    client.open()
    world.restart()
    again = world.client41(principal=principal, ready=False)
    assert again.record.may_reclaim
    again.open(reclaim=True)


def test_a_principal_that_is_part_of_another_reclaims_nothing() -> None:
    world = World()
    world.client41(principal="6:ann lee@R").open()
    world.restart()
    for other in ("6:ann", "6:ann ", "6:lee@R", "6:ann lee@R "):
        made = world.client41(verifier=other.encode().ljust(8)[:8], principal=other, ready=False)
        assert not made.record.may_reclaim
        with pytest.raises(Nfs4Error):
            made.open(reclaim=True)
        world.engine.expire_client(made.record)
