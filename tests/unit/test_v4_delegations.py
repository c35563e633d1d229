"""Delegations given with OPEN, recalled for what conflicts, returned, revoked (RFC 8881 section 10.4)."""

import asyncio

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
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
    until,
    with_two,
)
from tests.support.nfs4 import Failed, mode, values, wanted

MINORS = [0, 1, 2]
ANONYMOUS = p.stateid4(0, bytes(12))


@pytest.mark.parametrize("minor", MINORS)
def test_who_reads_gets_a_read_delegation_and_who_writes_a_write_delegation(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        opened = await delegated(one)
        assert opened.delegation.delegation_type == READ_DELEGATION
        assert not opened.delegation.read.recall
        (export / "g").write_bytes(b"")
        opened = await delegated(one, b"g", BOTH)
        assert opened.delegation.delegation_type == WRITE_DELEGATION
        assert server.engine.delegations.count == 2

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_the_files_record_says_how_it_is_delegated(tmp_path, minor):
    """Native operations of NFSv3 look there, and nowhere else."""

    @prepared
    async def test(server, export, one, two):
        (export / "g").write_bytes(b"")
        for name, access, expected in ((b"f", READ, 1), (b"g", BOTH, 2)):
            stateid = stateid_of(await delegated(one, name, access))
            inode = server.service.nodes.find(one.handles[name]).inode
            assert inode.delegated == expected
            await one.on(one.handles[name], (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid)))
            assert inode.delegated == 0

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_readers_share_read_delegations(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        for client in (one, two):
            assert (await delegated(client)).delegation.delegation_type == READ_DELEGATION
        assert (one.end.recalls, two.end.recalls) == (0, 0)

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_recalled_delegation_that_comes_back_at_once_delays_nobody(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        server.nfs4.recalls.patience = 20.0
        first = stateid_of(await delegated(one))
        opened = await two.opening(b"f", WRITE)
        assert opened.delegation.delegation_type == NONE
        assert one.end.executed == [(p.OP_CB_RECALL, p.CB_RECALL4args(first, False, one.handles[b"f"]))]
        assert server.engine.delegations.count == 0
        # The file is shared: nobody is given it for a while.
        assert (await one.opening(b"f", READ, owner=b"other")).delegation.delegation_type == NONE

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_an_open_waits_for_a_write_delegation_whatever_its_access(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        await delegated(one, access=BOTH)
        one.end.keep = True
        assert await two.open_status(b"f", READ) == p.NFS4ERR_DELAY
        assert one.end.recalls == 1
        args = one.end.executed[0][1]
        await one.give_back(args.stateid, args.fh)
        await two.opening(b"f", READ)
        assert one.end.recalls == 1

    with_two(tmp_path, minor, test)


CHANGES = {
    "WRITE": lambda c, h: (h, (p.OP_WRITE, p.WRITE4args(ANONYMOUS, 0, p.stable_how4.FILE_SYNC4, b"x"))),
    "SETATTR mode": lambda c, h: (h, (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, mode(0o600)))),
    "SETATTR size": lambda c, h: (
        h,
        (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, p.fattr4([1 << p.FATTR4_SIZE], bytes(8)))),
    ),
    "REMOVE": lambda c, h: (*c.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"f"))),
    "RENAME away": lambda c, h: (*c.path("/0"), p.OP_SAVEFH, (p.OP_RENAME, p.RENAME4args(b"f", b"n"))),
    "RENAME onto": lambda c, h: (*c.path("/0"), p.OP_SAVEFH, (p.OP_RENAME, p.RENAME4args(b"old", b"f"))),
    "LINK": lambda c, h: (h, p.OP_SAVEFH, *c.path("/0"), (p.OP_LINK, p.LINK4args(b"n"))),
    "OPEN to write": lambda c, h: (*c.path("/0"), (p.OP_OPEN, c.open_args(b"f", access=WRITE))),
    "OPEN that truncates": lambda c, h: (
        *c.path("/0"), (p.OP_OPEN, c.open_args(b"f", access=READ, create=mode(0o644, size=0))),
    ),
    "OPEN that denies reading": lambda c, h: (*c.path("/0"), (p.OP_OPEN, c.open_args(b"f", access=READ, deny=1))),
}  # fmt: skip
CHANGES_42 = {
    "SETXATTR": lambda c, h: (
        h, (p.OP_SETXATTR, p.SETXATTR4args(p.setxattr_option4.SETXATTR4_EITHER, b"k", b"v")),
    ),
    "REMOVEXATTR": lambda c, h: (h, (p.OP_REMOVEXATTR, p.REMOVEXATTR4args(b"k"))),
    "ALLOCATE": lambda c, h: (h, (p.OP_ALLOCATE, p.ALLOCATE4args(ANONYMOUS, 0, 100))),
    "DEALLOCATE": lambda c, h: (h, (p.OP_DEALLOCATE, p.DEALLOCATE4args(ANONYMOUS, 0, 100))),
}  # fmt: skip


@pytest.mark.parametrize(
    ("minor", "change"), [*((minor, change) for minor in MINORS for change in CHANGES), *((2, c) for c in CHANGES_42)]
)
@pytest.mark.parametrize("access", [READ, BOTH])
def test_every_change_by_another_client_recalls_a_delegation_first(tmp_path, minor, change, access):
    @prepared
    async def test(server, export, one, two):
        (export / "old").write_bytes(b"")
        opened = await delegated(one, access=access)
        await one.close(opened.stateid, one.handles[b"f"])  # the delegation outlives its open
        one.end.keep = True
        found = (p.OP_PUTFH, p.PUTFH4args(one.handles[b"f"]))
        made = {**CHANGES, **CHANGES_42}[change](two, found)
        before = (export / "f").stat()
        assert await two.status(*made) == p.NFS4ERR_DELAY
        await until(lambda: one.end.recalls == 1)
        after = (export / "f").stat()
        assert (before.st_ino, before.st_ctime_ns, before.st_size) == (after.st_ino, after.st_ctime_ns, after.st_size)

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_reading_without_an_open_recalls_a_write_delegation_only(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        reading = (p.OP_READ, p.READ4args(ANONYMOUS, 0, 100))
        await delegated(one)
        assert (await two.on(one.handles[b"f"], reading))[0].resok4.data == b"content"
        assert one.end.recalls == 0
        (export / "g").write_bytes(b"more")
        await delegated(one, b"g", BOTH)
        assert (await two.on(one.handles[b"g"], reading))[0].resok4.data == b"more"
        assert one.end.recalls == 1

    with_two(tmp_path, minor, test)


def test_a_40_holders_own_attributes_recall_nothing(tmp_path):
    @prepared
    async def test(server, export, one, two):
        await delegated(one, access=BOTH)
        handle = one.handles[b"f"]
        await one.on(handle, (p.OP_GETATTR, wanted(p.FATTR4_CHANGE, p.FATTR4_SIZE)))
        await one.on(handle, (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, mode(0o600))))
        assert one.end.executed == []
        # Two clients on one connection cannot be told apart.
        two.transport = one.transport
        await two.opening(b"confirmed", READ)
        one.end.keep = True
        changing = (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, mode(0o644)))
        assert await two.status((p.OP_PUTFH, p.PUTFH4args(handle)), changing) == p.NFS4ERR_DELAY

    with_two(tmp_path, 0, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_the_holders_own_operations_recall_nothing(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        opened = await delegated(one, access=BOTH)
        handle = one.handles[b"f"]
        found = (p.OP_PUTFH, p.PUTFH4args(handle))
        await one.opening(b"f", BOTH, owner=b"another")
        await one.on(handle, (p.OP_WRITE, p.WRITE4args(ANONYMOUS, 0, p.stable_how4.UNSTABLE4, b"x")))
        await one.on(handle, (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, mode(0o600))))
        await one.run(found, p.OP_SAVEFH, *one.path("/0"), (p.OP_LINK, p.LINK4args(b"n")))
        await one.run(*one.path("/0"), p.OP_SAVEFH, (p.OP_RENAME, p.RENAME4args(b"n", b"m")))
        await one.run(*one.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"m")))
        assert one.end.recalls == 0
        assert server.engine.delegations.count == 1
        # Its file may even go: the delegation comes back all the same.
        await one.run(*one.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"f")))
        await one.give_back(stateid_of(opened), handle)
        assert one.give_back_statuses == [0]

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_io_and_truncation_under_a_delegations_stateid(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        opened = await delegated(one, access=BOTH)
        handle, stateid = one.handles[b"f"], stateid_of(opened)
        await one.close(opened.stateid, handle)
        writing = (p.OP_WRITE, p.WRITE4args(stateid, 7, p.stable_how4.FILE_SYNC4, b" more"))
        cutting = (p.OP_SETATTR, p.SETATTR4args(stateid, p.fattr4([1 << p.FATTR4_SIZE], (9).to_bytes(8, "big"))))
        await one.on(handle, writing, cutting)
        assert (await one.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 99))))[0].resok4.data == b"content m"
        assert one.end.recalls == 0
        (export / "g").write_bytes(b"")
        reading = stateid_of(await delegated(one, b"g", READ))
        writing = (p.OP_WRITE, p.WRITE4args(reading, 0, p.stable_how4.FILE_SYNC4, b"x"))
        with pytest.raises(Failed) as failed:
            await one.on(one.handles[b"g"], writing)
        assert failed.value.status == p.NFS4ERR_OPENMODE
        with pytest.raises(Failed) as failed:  # a stateid of another file
            await one.on(handle, (p.OP_READ, p.READ4args(reading, 0, 9)))
        assert failed.value.status == p.NFS4ERR_BAD_STATEID

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_opens_made_under_a_delegation_are_claimed_while_it_is_recalled(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        opened = await delegated(one, access=BOTH)
        handle, stateid = one.handles[b"f"], stateid_of(opened)
        await one.close(opened.stateid, handle)
        one.end.keep = True
        assert await two.open_status(b"f", WRITE) == p.NFS4ERR_DELAY
        claim = p.open_claim4(
            p.open_claim_type4.CLAIM_DELEGATE_CUR, delegate_cur_info=p.open_claim_delegate_cur4(stateid, b"f")
        )
        claimed = await one.opening(b"f", BOTH, claim=claim)
        assert claimed.delegation.delegation_type in (NONE, NONE_EXT)
        writing = (p.OP_WRITE, p.WRITE4args(claimed.stateid, 0, p.stable_how4.FILE_SYNC4, b"C"))
        await one.on(handle, writing)
        await one.give_back(stateid, handle)
        await two.opening(b"f", WRITE)
        assert (export / "f").read_bytes() == b"Content"

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_claims_on_delegations_that_the_client_does_not_have(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        stateid = stateid_of(await delegated(one))
        kinds = p.open_claim_type4
        args = two.open_args(b"f", access=READ)

        async def status(client, claim, access=READ):
            here = (p.OP_PUTFH, p.PUTFH4args(one.handles[b"f"]))
            opening = p.OPEN4args(0, access, 0, p.open_owner4(client.clientid, b"o"), args.openhow, claim)
            return await client.status(here, (p.OP_OPEN, opening))

        current = p.open_claim4(kinds.CLAIM_DELEG_CUR_FH, oc_delegate_stateid=stateid)
        assert await status(two, current) == p.NFS4ERR_BAD_STATEID
        assert await status(one, current, WRITE) == p.NFS4ERR_OPENMODE
        assert await status(one, current) == p.NFS4_OK
        assert await status(one, p.open_claim4(kinds.CLAIM_DELEG_PREV_FH)) == p.NFS4ERR_NOTSUPP

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_what_is_not_returned_in_time_is_revoked(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        stateid = stateid_of(await delegated(one))
        one.end.keep = True
        await until(lambda: two.opens(b"f", WRITE))
        assert server.engine.delegations.revoked == 1
        one.sequence += 1
        lone = (p.OP_SEQUENCE, p.SEQUENCE4args(one.session, one.sequence, 0, 0, False))
        _, [(_, result)] = await one.raw(lone)
        assert result.sr_resok4.sr_status_flags == p.SEQ4_STATUS_RECALLABLE_STATE_REVOKED
        (tested,) = await one.run((p.OP_TEST_STATEID, p.TEST_STATEID4args([stateid])))
        assert tested.tsr_resok4.tsr_status_codes == [p.NFS4ERR_DELEG_REVOKED]
        await one.give_back(stateid, one.handles[b"f"])
        assert one.give_back_statuses == [p.NFS4ERR_DELEG_REVOKED]
        await one.run((p.OP_FREE_STATEID, p.FREE_STATEID4args(stateid)))
        one.sequence += 1
        _, [(_, result)] = await one.raw((p.OP_SEQUENCE, p.SEQUENCE4args(one.session, one.sequence, 0, 0, False)))
        assert result.sr_resok4.sr_status_flags == 0

    with_two(tmp_path, minor, test, limits=Limits(grace=0, recall=0.2))


def test_a_revoked_delegation_of_v40_is_a_bad_stateid(tmp_path):
    @prepared
    async def test(server, export, one, two):
        stateid = stateid_of(await delegated(one))
        one.end.keep = True
        await until(lambda: two.opens(b"f", WRITE))
        with pytest.raises(Failed) as failed:
            await one.give_back(stateid, one.handles[b"f"])
        assert failed.value.status == p.NFS4ERR_BAD_STATEID

    with_two(tmp_path, 0, test, limits=Limits(grace=0, recall=0.2))


@pytest.mark.parametrize("minor", MINORS)
def test_a_client_that_cannot_be_called_back_gets_none(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        one.transport.close()
        one.transport.closed = False
        if not minor:
            one.callback_address = b"tcp", b"127.0.0.1.0.1"
            one.name = b"unreachable"
            await one.connect()
            one.seqids.clear()
            await one.opening(b"confirmed", BOTH, create=mode(0o644))
        opened = await one.opening(b"f", READ)
        assert opened.delegation.delegation_type == NONE

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_a_client_that_has_not_seen_the_opens_reply_is_asked_again(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        stateid = stateid_of(await delegated(one))
        one.end.answers[p.OP_CB_RECALL] = [p.CB_RECALL4res(p.nfsstat4.NFS4ERR_BAD_STATEID)] * 2
        one.end.keep = True
        assert await two.open_status(b"f", WRITE) == p.NFS4ERR_DELAY
        await one.end.arrival(3)
        assert [operations[0][1].stateid for _, _, operations, *_ in one.end.received] == [stateid] * 3
        # And it is told which reply it should wait for (section 2.10.6.3).
        (lists,) = one.end.received[0].sequence.csa_referring_call_lists
        assert lists.rcl_sessionid == one.session
        assert [(call.rc_slotid, call.rc_sequenceid) for call in lists.rcl_referring_calls] == [(0, one.sequence)]

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_a_delegation_the_client_denies_to_have_is_given_up(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        await delegated(one)
        one.end.answers[p.OP_CB_RECALL] = [p.CB_RECALL4res(p.nfsstat4.NFS4ERR_BAD_STATEID)] * 100
        one.end.keep = True
        await until(lambda: two.opens(b"f", WRITE))
        assert server.engine.delegations.revoked == 0

    with_two(tmp_path, minor, test, limits=Limits(grace=0, recall=1.5))


def attributes(fattr):
    d = values(fattr)
    return d.uint64(), d.uint64()


@pytest.mark.parametrize("minor", [1, 2])
def test_others_see_what_the_holder_has_not_written_yet(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        await delegated(one, access=BOTH)
        handle = one.handles[b"f"]
        asking = (p.OP_GETATTR, wanted(p.FATTR4_CHANGE, p.FATTR4_SIZE))

        def told(change, size):
            octets = change.to_bytes(8, "big") + size.to_bytes(8, "big")
            fattr = p.fattr4([1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE], octets)
            one.end.answers[p.OP_CB_GETATTR] = [p.CB_GETATTR4res(p.nfsstat4.NFS4_OK, p.CB_GETATTR4resok(fattr))]

        async def ask(client):
            (result,) = await client.on(handle, asking)
            return attributes(result.resok4.obj_attributes)

        first = await ask(one)
        assert p.OP_CB_GETATTR not in one.end.operations
        told(*first)
        assert await ask(two) == first
        told(first[0] + 1, 1000)
        changed, size = await ask(two)
        assert changed > first[0]
        assert size == 1000
        told(first[0] + 1, 1000)
        assert (await ask(two))[0] > changed
        assert one.end.operations == [p.OP_CB_GETATTR] * 3
        assert one.end.recalls == 0

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_holder_that_does_not_tell_its_attributes_is_recalled(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        await delegated(one, access=BOTH)
        one.end.answers[p.OP_CB_GETATTR] = [p.CB_GETATTR4res(p.nfsstat4.NFS4ERR_BADHANDLE)]
        asking = (p.OP_GETATTR, wanted(p.FATTR4_SIZE))
        found = (p.OP_PUTFH, p.PUTFH4args(one.handles[b"f"]))
        assert await two.status(found, asking) == p.NFS4ERR_DELAY
        await until(lambda: server.engine.delegations.count == 0)
        assert await two.status(found, asking) == p.NFS4_OK
        assert one.end.recalls == 1

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_the_getattr_behind_an_open_does_not_ask_the_opener(tmp_path, minor):
    """It has not heard of the delegation yet and would deny to have it; it would be given up here, and used there."""

    @prepared
    async def test(server, export, one, two):
        await one.opening(b"confirmed", access=BOTH, create=mode(0o644))
        one.end.answers[p.OP_CB_GETATTR] = [p.CB_GETATTR4res(p.nfsstat4.NFS4ERR_BADHANDLE)]
        opening = (p.OP_OPEN, one.open_args(b"f", access=BOTH))
        *_, opened, _ = await one.run(*one.path("/0"), opening, (p.OP_GETATTR, wanted(p.FATTR4_SIZE)))
        assert opened.resok4.delegation.delegation_type == WRITE_DELEGATION
        assert one.end.executed == []
        assert server.engine.delegations.count > 0

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_wishes_are_answered_with_reasons(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        why = p.why_no_delegation4

        async def reason(client, name, access, want, owner=b"o"):
            opened = await client.opening(name, access, want=want, owner=owner)
            assert opened.delegation.delegation_type == NONE_EXT
            return opened.delegation.od_whynone.ond_why

        assert await reason(one, b"f", READ, p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG) == why.WND4_NOT_WANTED
        assert await reason(one, b"f", READ, p.OPEN4_SHARE_ACCESS_WANT_CANCEL) == why.WND4_CANCELLED
        opened = await one.opening(b"f", READ, want=p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG)
        assert opened.delegation.delegation_type == READ_DELEGATION
        assert await reason(one, b"f", BOTH, p.OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG) == why.WND4_NOT_SUPP_UPGRADE
        await two.opening(b"f", WRITE)
        assert await reason(one, b"f", READ, p.OPEN4_SHARE_ACCESS_WANT_ANY_DELEG) == why.WND4_CONTENTION

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_a_delegation_can_be_asked_for_without_an_open(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        *_, found = await one.run(*one.path("/0/f"), p.OP_GETFH)
        handle = found.resok4.object
        claim = p.deleg_claim4(p.open_claim_type4.CLAIM_FH)
        want = (p.OP_WANT_DELEGATION, p.WANT_DELEGATION4args(p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG, claim))
        given = (await one.on(handle, want))[0].wdr_resok4
        assert given.delegation_type == READ_DELEGATION
        data = (await one.on(handle, (p.OP_READ, p.READ4args(given.read.stateid, 0, 99))))[0].resok4.data
        assert data == b"content"
        assert (await one.on(handle, want))[0].wdr_resok4.delegation_type == NONE_EXT
        await one.give_back(given.read.stateid, handle)
        assert one.give_back_statuses == [0]
        nothing = (p.OP_WANT_DELEGATION, p.WANT_DELEGATION4args(0, claim))
        assert await one.status((p.OP_PUTFH, p.PUTFH4args(handle)), nothing) == p.NFS4ERR_INVAL

    with_two(tmp_path, minor, test)


def test_a_40_client_whose_path_is_down_hears_of_it_from_renew(tmp_path):
    @prepared
    async def test(server, export, one, two):
        await delegated(one)
        renewing = (p.OP_RENEW, p.RENEW4args(one.clientid))
        assert await one.status(renewing) == p.NFS4_OK
        one.end.gate = asyncio.Event()  # it answers nothing any more
        assert await two.open_status(b"f", WRITE) == p.NFS4ERR_DELAY
        await until(lambda: server.nfs4.callbacks.callback_path_down(server.engine.clients.lookup(one.clientid)))
        assert await one.status(renewing) == p.NFS4ERR_CB_PATH_DOWN
        recall = one.end.executed[0][1]
        await one.give_back(recall.stateid, recall.fh)
        assert await one.status(renewing) == p.NFS4_OK

    with_two(tmp_path, 0, test, limits=Limits(grace=0, lease=3))


@pytest.mark.parametrize("minor", [1, 2])
def test_what_open_takes_is_an_attribute(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        *_, found = await one.run(*one.path("/0/f"), (p.OP_GETATTR, wanted(p.FATTR4_OPEN_ARGUMENTS)))
        arguments = values(found.resok4.obj_attributes).decode(p.open_arguments4)
        assert arguments == p.open_arguments4([0b1110], [0b1111], [0b111000 | 3 << 20], [0b110111], [0b1111])

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("more", [True, False])
def test_attributes_the_holder_was_not_asked_for_are_passed_over(tmp_path, more):
    @prepared
    async def test(server, export, one, two):
        await delegated(one, access=BOTH)
        change_and_size = (77).to_bytes(8, "big") + (1000).to_bytes(8, "big")
        if more:  # behind those asked for
            mask = 1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE | 1 << p.FATTR4_LEASE_TIME
            fattr = p.fattr4([mask], change_and_size + bytes(4))
        else:  # and one of those is missing
            fattr = p.fattr4([1 << p.FATTR4_CHANGE | 1 << p.FATTR4_LEASE_TIME], change_and_size[:12])
        one.end.answers[p.OP_CB_GETATTR] = [p.CB_GETATTR4res(p.nfsstat4.NFS4_OK, p.CB_GETATTR4resok(fattr))]
        asking = (p.OP_GETATTR, wanted(p.FATTR4_SIZE))
        status, results = await two.raw(*two.in_session((p.OP_PUTFH, p.PUTFH4args(one.handles[b"f"])), asking))
        if more:
            assert values(results[-1][1].resok4.obj_attributes).uint64() == 1000
        else:
            assert status == p.NFS4ERR_DELAY

    with_two(tmp_path, 1, test)
