"""Delegations of directories (RFC 8881 sections 10.9, 18.39): given, recalled for others' changes, returned, lost."""

import asyncio

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import ClientRecord, Limits, Recovered
from nfsd.v4 import name_errands
from nfsd.vfs.types import Time
from tests.support.delegations import READ, WRITE, Holder, LoopbackTransport, holder, until, with_two
from tests.support.directories import (
    ANONYMOUS,
    ASKING,
    CHANGES,
    KINDS,
    back,
    carried_out,
    created,
    given,
    picture,
    populated,
    refused,
)
from tests.support.nfs4 import Client4, Failed, mode, wanted

MINORS = [1, 2]


@pytest.mark.parametrize("minor", MINORS)
def test_a_directory_is_delegated_once_to_a_client_and_returned(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        places = server.service.shares.in_use
        stateid = await given(one)
        inode = server.service.nodes.find(one.handles["/0/d"]).inode
        assert (server.engine.delegations.count, inode.delegated) == (1, 1)
        assert server.service.shares.in_use == places + 1
        assert await refused(one)  # it has it (section 18.39.3)
        other = await given(two)
        assert server.engine.delegations.count == 2
        await back(one, stateid)
        await back(two, other)
        assert (server.engine.delegations.count, inode.delegated, inode.holder) == (0, 0, None)
        assert server.service.shares.in_use == places
        assert (one.end.recalls, two.end.recalls) == (0, 0)

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("leases", [True, False])
def test_a_directory_that_is_removed_meanwhile_is_not_delegated(tmp_path, monkeypatch, leases):
    async def test(server, export, one, two):
        (export / "d").mkdir()
        access = server.service.access

        async def removed(*args):
            allowed = await access(*args)
            monkeypatch.undo()
            await asyncio.ensure_future(two.run(*two.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"d"))))
            return allowed

        monkeypatch.setattr(server.service, "access", removed)
        with pytest.raises(Failed, match="NFS4ERR_STALE"):
            await given(one)
        assert server.engine.delegations.count == 0

    with_two(tmp_path, 1, test, leases=leases)


@pytest.mark.parametrize("leases", [True, False])
@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("change", CHANGES)
def test_the_holders_own_changes_recall_nothing(tmp_path, minor, change, leases):
    @populated
    async def test(server, export, one, two):
        stateid = await given(one)
        assert await one.status(*CHANGES[change](one)) == p.NFS4_OK
        await asyncio.sleep(0.05)  # whatever the kernel may have to say of it
        assert (one.end.recalls, server.engine.delegations.recalled) == (0, 0)
        await back(one, stateid)

    with_two(tmp_path, minor, test, leases=leases)


def test_the_holders_own_changes_go_the_short_way(tmp_path, monkeypatch):
    """They are made natively, as if nobody had a delegation; others' wait for its return, and are errands."""
    errands = []

    def noted(name):
        real = getattr(name_errands, name)

        def run(*args):
            errands.append(name)
            return real(*args)

        return run

    for name in ("create", "remove", "rename", "link"):
        monkeypatch.setattr(name_errands, name, noted(name))

    @populated
    async def test(server, export, one, two):
        await given(one)
        for name in ("RENAME onto", "REMOVE", "CREATE of a directory", "REMOVE of a directory"):
            await one.run(*CHANGES[name](one))
        assert errands == []
        await carried_out(two, *created(two, KINDS.NF4DIR, b"newer"))
        assert set(errands) == {"create"}

    with_two(tmp_path, 1, test)


@pytest.mark.parametrize("minor", [0, *MINORS])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_by_another_client_recalls_it_first(tmp_path, minor, change):
    @populated
    async def test(server, export, one, two):
        other = two
        if not minor:
            other = Client4(server, 0, name=b"old")
            await other.connect()
            opened = await other.run(*other.path("/0"), (p.OP_OPEN, other.open_args(b"g", access=READ)), p.OP_GETFH)
            confirm = p.OPEN_CONFIRM4args(opened[-2].resok4.stateid, other.seqid(b"owner"))
            await other.on(opened[-1].resok4.object, (p.OP_OPEN_CONFIRM, confirm))
        stateid = await given(one)
        one.end.keep = True
        before = picture(export / "d")
        assert await other.status(*CHANGES[change](other)) == p.NFS4ERR_DELAY
        await until(lambda: one.end.recalls)
        assert one.end.executed == [(p.OP_CB_RECALL, p.CB_RECALL4args(stateid, False, one.handles["/0/d"]))]
        assert picture(export / "d") == before
        await one.give_back(stateid, one.handles["/0/d"])
        assert one.give_back_statuses == [p.NFS4_OK]
        assert await other.status(*CHANGES[change](other)) == p.NFS4_OK
        # It is shared: nobody is given it for a while.
        assert await refused(one, "/0/new" if "own" in change else "/0/d")

    with_two(tmp_path, minor or 1, test)


@pytest.mark.parametrize("minor", MINORS)
def test_one_that_comes_back_at_once_delays_nobody(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        await given(one)
        await carried_out(two, *created(two, KINDS.NF4DIR, b"new"))
        assert one.end.recalls == 1
        assert server.engine.delegations.returned == 1

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_of_two_holders_the_one_that_changes_something_keeps_it(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        await given(one)
        await given(two)
        await carried_out(two, *created(two, KINDS.NF4DIR, b"new"))
        assert (one.end.recalls, two.end.recalls) == (1, 0)
        await two.run(*created(two, KINDS.NF4DIR, b"newer"))
        assert (one.end.recalls, two.end.recalls) == (1, 0)

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_what_changes_no_name_recalls_nothing(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        await given(one)
        opened = await two.run(*two.path("/0/d"), (p.OP_OPEN, two.open_args(b"f", create=mode(0o644))), p.OP_GETFH)
        handle = opened[-1].resok4.object
        await two.on(handle, (p.OP_WRITE, p.WRITE4args(ANONYMOUS, 0, p.stable_how4.FILE_SYNC4, b"x")))
        await two.on(handle, (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, mode(0o600))))
        await two.run(*two.path("/0/d/f"), (p.OP_GETATTR, wanted(p.FATTR4_SIZE)))
        reading = p.READDIR4args(0, bytes(8), 4096, 4096, [1 << p.FATTR4_TYPE])
        await two.run(*two.path("/0/d"), (p.OP_READDIR, reading))
        elsewhere = (p.OP_CREATE, p.CREATE4args(p.createtype4(KINDS.NF4DIR), b"x", mode(0o755)))
        await two.run(*two.path("/0/e"), elsewhere)
        await two.run(*two.path("/0/d/sub"), elsewhere)
        assert server.engine.delegations.recalled == 0

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_who_may_not_change_names_recalls_nothing(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        (export / "d").chmod(0o755)
        await given(one)
        stranger = Client4(server, minor, name=b"stranger", uid=1000, gid=1000)
        await stranger.connect()
        for change in CHANGES:
            if "own" not in change and "SETATTR" not in change:
                assert await stranger.status(*CHANGES[change](stranger)) == p.NFS4ERR_ACCESS, change
        # Nor is who may not list it given one.
        (export / "e").chmod(0o711)
        watching = Holder(server, minor, name=b"w", uid=1000, gid=1000, transport=LoopbackTransport(callbacks=two.end))
        watching.handles = {}
        await watching.connect()
        assert await refused(watching, "/0/e")
        assert (server.engine.delegations.recalled, one.end.recalls) == (0, 0)

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_directory_that_is_removed(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        stateid = await given(one, "/0/d/sub")
        await one.run(*one.path("/0/d"), (p.OP_REMOVE, p.REMOVE4args(b"sub")))
        await back(one, stateid, "/0/d/sub")
        stateid = await given(one, "/0/e")
        one.end.keep = True
        removing = (*two.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"e")))
        assert await two.status(*removing) == p.NFS4ERR_DELAY
        await back(one, stateid, "/0/e")
        assert await two.status(*removing) == p.NFS4_OK
        assert server.engine.delegations.count == 0

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_what_is_not_returned_in_time_is_revoked_like_a_files(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        stateid = await given(one)
        inode = server.service.nodes.find(one.handles["/0/d"]).inode
        (delegation,) = server.engine.opens.file(inode.key).delegations.values()
        share = delegation.opened._share
        places = share.in_use
        one.end.keep = True

        async def made():
            return await two.status(*created(two, KINDS.NF4DIR, b"new")) == p.NFS4_OK

        await until(made)
        assert server.engine.delegations.revoked == 1
        assert (share.in_use, inode.delegated, inode.holder) == (places - 1, 0, None)
        one.sequence += 1
        _, [(_, result)] = await one.raw((p.OP_SEQUENCE, p.SEQUENCE4args(one.session, one.sequence, 0, 0, False)))
        assert result.sr_resok4.sr_status_flags == p.SEQ4_STATUS_RECALLABLE_STATE_REVOKED
        (tested,) = await one.run((p.OP_TEST_STATEID, p.TEST_STATEID4args([stateid])))
        assert tested.tsr_resok4.tsr_status_codes == [p.NFS4ERR_DELEG_REVOKED]
        await one.give_back(stateid, one.handles["/0/d"])
        assert one.give_back_statuses == [p.NFS4ERR_DELEG_REVOKED]
        await one.run((p.OP_FREE_STATEID, p.FREE_STATEID4args(stateid)))
        one.sequence += 1
        _, [(_, result)] = await one.raw((p.OP_SEQUENCE, p.SEQUENCE4args(one.session, one.sequence, 0, 0, False)))
        assert result.sr_resok4.sr_status_flags == 0

    with_two(tmp_path, minor, test, limits=Limits(grace=0, recall=0.2))


def test_who_cannot_be_called_back_gets_none(tmp_path):
    @populated
    async def test(server, export, one, two):
        deaf = Client4(server, 1, name=b"deaf")
        deaf.handles = {}
        await deaf.connect()
        assert await refused(deaf)

    with_two(tmp_path, 1, test)


def test_in_the_grace_period_there_is_none(tmp_path):
    @populated
    async def test(server, export, one, two):
        assert await refused(one)

    recovered = Recovered(epoch=7, records=(ClientRecord(1, b"away", "1:0", 6),))
    with_two(tmp_path, 1, test, limits=Limits(grace=3600), recovered=recovered)


@pytest.mark.parametrize("minor", MINORS)
def test_what_is_no_directory_of_an_export(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        assert await one.status(*one.path("/0/d/f"), ASKING) == p.NFS4ERR_NOTDIR
        assert await one.status(ASKING) == p.NFS4ERR_NOFILEHANDLE
        assert await refused(one, "/")
        old = Client4(server, 0, name=b"old")
        assert await old.status(*old.path("/0/d"), ASKING) == p.NFS4ERR_OP_ILLEGAL

    with_two(tmp_path, minor, test)


def test_it_goes_with_its_export_and_with_its_client(tmp_path):
    @populated
    async def test(server, export, one, two):
        places = server.service.shares.in_use
        await given(one)
        assert server.nfs4.exports_changed({1}, Time(0, 0)) == 1
        assert (server.engine.delegations.count, server.service.shares.in_use) == (0, places)
        await given(two, "/0/e")
        third = await holder(server, 1, b"third")
        await given(third, "/0/e")
        server.engine.expire_client(server.engine.clients.lookup(third.clientid))
        assert server.engine.delegations.count == 1
        assert server.service.nodes.find(two.handles["/0/e"]).inode.holder.owner == b"two"

    with_two(tmp_path, 1, test)


def test_a_change_that_is_under_way_goes_first(tmp_path):
    @populated
    async def test(server, export, one, two):
        *_, found = await one.run(*one.path("/0/d"), p.OP_GETFH)
        inode = server.service.nodes.find(found.resok4.object).inode
        await inode.serial.acquire()
        assert await refused(one)
        inode.serial.release()
        with server.nfs4.recalls.hold(inode.key):
            assert await refused(one)
        assert not await refused(one)
        assert await two.open_status(b"g", WRITE) == p.NFS4_OK

    with_two(tmp_path, 1, test)
