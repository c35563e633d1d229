"""Delegations reclaimed after a restart of the server (RFC 8881 section 10.2.1, RFC 7530 section 10.2.1)."""

import asyncio

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import ClientRecord, Limits, Recovered
from tests.support.delegations import (
    BOTH,
    NONE,
    NONE_EXT,
    READ,
    READ_DELEGATION,
    WRITE,
    WRITE_DELEGATION,
    delegated,
    prepared,
    stateid_of,
    with_two,
)
from tests.support.nfs4 import Failed

from .test_v4_locks import locking

MINORS = [0, 1, 2]


def restarted(*names, minor):
    """What a server starts from that these clients had state on."""
    return Recovered(epoch=7, records=tuple(ClientRecord(min(minor, 1), name, "1:0", 6) for name in names))


async def reclaiming(client, kind, wish=0):
    """Reclaim the open of ``f`` with a delegation: OPEN4resok."""
    claim = p.open_claim4(p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=kind)
    how = p.openflag4(p.opentype4.OPEN4_NOCREATE)
    access = BOTH if kind == WRITE_DELEGATION else READ
    seqid = 0 if client.minor else client.seqid(b"owner")
    args = p.OPEN4args(seqid, access | wish, 0, p.open_owner4(client.clientid, b"owner"), how, claim)
    return (await client.on(client.handles[b"f"], (p.OP_OPEN, args)))[0].resok4


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("kind", [READ_DELEGATION, WRITE_DELEGATION])
@pytest.mark.parametrize("leases", [False, True])
def test_delegations_are_reclaimed_after_a_restart(tmp_path, minor, kind, leases):
    handles = {}

    @prepared
    async def before(server, export, one, two):
        *_, found = await one.run(*one.path("/0/f"), p.OP_GETFH)
        handles[b"f"] = found.resok4.object

    async def after(server, export, one, two):
        one.handles.update(handles)
        opened = await reclaiming(one, kind)
        assert opened.delegation.delegation_type == kind
        stateid = stateid_of(opened)
        (result,) = await one.on(handles[b"f"], (p.OP_READ, p.READ4args(stateid, 0, 99)))
        assert result.resok4.data == b"content"
        if minor:
            for client in (one, two):
                await client.run((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))
        else:
            server.engine.end_grace()
        server.nfs4.recalls.patience = 20.0
        await two.opening(b"f", WRITE)
        assert one.end.recalls == 1
        assert server.engine.delegations.count == 0

    with_two(tmp_path, minor, before)
    how = {"limits": Limits(lease=30, grace=30), "recovered": restarted(b"one", b"two", minor=minor)}
    with_two(tmp_path, minor, after, reclaim_complete=False, leases=leases, **how)


@pytest.mark.parametrize("kind", [READ_DELEGATION, WRITE_DELEGATION])
@pytest.mark.parametrize(
    "wish", [p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG, p.OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS], ids=["none", "times"]
)
def test_a_client_has_again_what_it_had_whatever_it_wishes(tmp_path, kind, wish):
    handles = {}

    @prepared
    async def before(server, export, one, two):
        *_, found = await one.run(*one.path("/0/f"), p.OP_GETFH)
        handles[b"f"] = found.resok4.object

    async def after(server, export, one, two):
        one.handles.update(handles)
        assert (await reclaiming(one, kind, wish)).delegation.delegation_type == kind

    with_two(tmp_path, 1, before)
    how = {"limits": Limits(lease=30, grace=30), "recovered": restarted(b"one", b"two", minor=1)}
    with_two(tmp_path, 1, after, reclaim_complete=False, **how)


@pytest.mark.parametrize("minor", MINORS)
def test_a_delegation_reclaimed_without_a_way_back_is_recalled_with_the_reply(tmp_path, minor):
    """RFC 8881 section 10.2.1: it is given, with ``recall`` set."""
    handles = {}

    @prepared
    async def before(server, export, one, two):
        *_, found = await one.run(*one.path("/0/f"), p.OP_GETFH)
        handles[b"f"] = found.resok4.object

    async def after(server, export, one, two):
        one.handles.update(handles)
        if minor:
            server.engine.connection_closed(one.transport)
        else:
            one.callback_address = b"tcp", b"127.0.0.1.0.1"
            await one.connect(reclaim_complete=False)
        opened = await reclaiming(one, READ_DELEGATION)
        assert opened.delegation.delegation_type == READ_DELEGATION
        assert opened.delegation.read.recall

    with_two(tmp_path, minor, before)
    how = {"limits": Limits(lease=30, grace=30), "recovered": restarted(b"one", b"two", minor=minor)}
    with_two(tmp_path, minor, after, reclaim_complete=False, **how)


def test_a_reclaim_waits_for_the_word_on_the_callback_path(tmp_path):
    handles = {}

    @prepared
    async def before(server, export, one, two):
        *_, found = await one.run(*one.path("/0/f"), p.OP_GETFH)
        handles[b"f"] = found.resok4.object

    async def after(server, export, one, two):
        one.handles.update(handles)
        arrived, answered, at_once = asyncio.Event(), asyncio.Event(), one.end.answer

        async def answer(message, connection):
            arrived.set()
            await answered.wait()
            return await at_once(message, connection)

        one.end.answer = answer
        callbacks = server.nfs4.callbacks
        callbacks._path(server.engine.clients.lookup(one.clientid)).up = None  # as after SETCLIENTID_CONFIRM
        reclaim = asyncio.ensure_future(reclaiming(one, READ_DELEGATION))
        await arrived.wait()
        assert not reclaim.done()
        answered.set()
        opened = await reclaim
        assert opened.delegation.delegation_type == READ_DELEGATION
        assert not opened.delegation.read.recall

    with_two(tmp_path, 0, before)
    how = {"limits": Limits(lease=30, grace=30), "recovered": restarted(b"one", b"two", minor=0)}
    with_two(tmp_path, 0, after, reclaim_complete=False, **how)


@pytest.mark.parametrize(("minor", "by_name"), [(0, True), (1, True), (1, False), (2, False)])
def test_what_a_delegation_covers_is_granted_while_another_servers_clients_reclaim(tmp_path, minor, by_name):
    """Who is to give the delegation back opens and locks here first what it has opened and locked under it (RFC 8881
    section 10.4.4)."""

    @prepared
    async def test(server, export, one, two):
        stateid = stateid_of(await delegated(one, access=BOTH))
        handle, kinds = one.handles[b"f"], p.open_claim_type4
        server.engine.grace.elsewhere = True
        if by_name:
            info = p.open_claim_delegate_cur4(stateid, b"f")
            claim = p.open_claim4(kinds.CLAIM_DELEGATE_CUR, delegate_cur_info=info)
            claimed = await one.opening(b"f", BOTH, claim=claim)
        else:
            claim = p.open_claim4(kinds.CLAIM_DELEG_CUR_FH, oc_delegate_stateid=stateid)
            asked = p.OPEN4args(0, BOTH, 0, p.open_owner4(one.clientid, b"owner"), p.openflag4(0), claim)
            [opened] = await one.on(handle, (p.OP_OPEN, asked))
            claimed = opened.resok4
        assert claimed.delegation.delegation_type in (NONE, NONE_EXT)
        await one.on(handle, locking(one, claimed.stateid, 0, 3))
        assert await two.open_status(b"f", READ) == p.NFS4ERR_GRACE
        await one.give_back(stateid, handle)
        assert not server.engine.delegations.count
        # It has these opens and locks now; others are as new as anybody's.
        with pytest.raises(Failed) as failed:
            await one.on(handle, locking(one, claimed.stateid, 5, 3, owner=b"another"))
        assert failed.value.status == p.NFS4ERR_GRACE

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_what_a_delegation_does_not_cover_waits_for_another_servers_clients(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        stateid = stateid_of(await delegated(one))
        handle, kinds = one.handles[b"f"], p.open_claim_type4
        other = stateid_of(await delegated(two))
        server.engine.grace.elsewhere = True

        async def status(deny, whose=stateid):
            claim = p.open_claim4(kinds.CLAIM_DELEG_CUR_FH, oc_delegate_stateid=whose)
            owner = p.open_owner4(one.clientid, b"new")
            asked = p.OPEN4args(0, READ, deny, owner, p.openflag4(0), claim)
            return await one.status((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_OPEN, asked))

        assert await status(p.OPEN4_SHARE_DENY_READ) == p.NFS4ERR_GRACE
        assert await status(0, whose=other) == p.NFS4ERR_BAD_STATEID
        assert await status(0) == p.NFS4_OK
        assert await one.open_status(b"f", WRITE) == p.NFS4ERR_GRACE

    with_two(tmp_path, minor, test)
