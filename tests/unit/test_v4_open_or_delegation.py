"""OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION: a delegation in the place of an open stateid (RFC 9754 section 4)."""

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from tests.support.delegations import (
    BOTH,
    NONE,
    READ,
    READ_DELEGATION,
    WRITE,
    WRITE_DELEGATION,
    prepared,
    stateid_of,
    until,
    with_two,
)
from tests.support.nfs4 import mode

EITHER = p.OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION
NOTHING = p.stateid4(0, bytes(12))
CURRENT = p.stateid4(1, bytes(12))


def without_stateid(opened):
    """Whether an OPEN was answered without an open stateid."""
    missing = bool(opened.rflags & p.OPEN4_RESULT_NO_OPEN_STATEID)
    assert (opened.stateid == NOTHING) == missing
    return missing


def opens_of(server, client, name):
    """Open states of a file."""
    file = server.engine.opens.file(server.service.nodes.find(client.handles[name]).key)
    return len(file.opens)


def claiming(client, stateid, access):
    """CLAIM_DELEG_CUR_FH."""
    claim = p.open_claim4(p.open_claim_type4.CLAIM_DELEG_CUR_FH, oc_delegate_stateid=stateid)
    owner, flag = p.open_owner4(client.clientid, b"claimer"), p.openflag4(p.opentype4.OPEN4_NOCREATE)
    return p.OP_OPEN, p.OPEN4args(0, access, 0, owner, flag, claim)


@pytest.mark.parametrize("leases", [False, True])
@pytest.mark.parametrize("minor", [1, 2])
@pytest.mark.parametrize(("access", "kind"), [(READ, READ_DELEGATION), (BOTH, WRITE_DELEGATION)])
def test_a_delegation_takes_the_place_of_an_open(tmp_path, minor, access, kind, leases):
    @prepared
    async def test(server, export, one, two):
        opened = await one.opening(b"f", access, want=EITHER)
        assert without_stateid(opened)
        assert opened.delegation.delegation_type == kind
        assert (opens_of(server, one, b"f"), server.engine.delegations.count) == (0, 1)
        stateid, handle = stateid_of(opened), one.handles[b"f"]
        (read,) = await one.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 99)))
        assert read.resok4.data == b"content"
        if access == BOTH:
            await one.on(handle, (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"CON")))
        await one.on(handle, (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid)))
        assert server.engine.delegations.count == 0
        # Not before: this thread, which is the server's, would wait for its own lease.
        assert (export / "f").read_bytes() == (b"CONtent" if access == BOTH else b"content")

    with_two(tmp_path, minor, test, leases=leases)


@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("minor", [1, 2])
def test_it_is_an_open_again_when_it_is_recalled(tmp_path, minor, created):
    @prepared
    async def test(server, export, one, two):
        how = {"create": mode(0o666)} if created else {}
        name = b"new" if created else b"f"
        opened = await one.opening(name, BOTH, want=EITHER, **how)
        assert without_stateid(opened)
        one.end.keep = True
        assert await two.open_status(name, READ) == p.NFS4ERR_DELAY
        stateid, handle = stateid_of(opened), one.handles[name]
        (claimed,) = await one.on(handle, claiming(one, stateid, BOTH))
        assert not without_stateid(claimed.resok4)
        await one.give_back(stateid, handle)
        assert one.give_back_statuses == [p.NFS4_OK]
        writing = p.WRITE4args(claimed.resok4.stateid, 0, p.stable_how4.FILE_SYNC4, b"x")
        await one.on(handle, (p.OP_WRITE, writing))
        assert (await two.opening(name, READ, want=EITHER)).delegation.delegation_type == NONE

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_who_denies_what_the_delegation_stands_for_recalls_it(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        assert without_stateid(await one.opening(b"f", READ, want=EITHER))
        one.end.keep = True
        assert await two.open_status(b"f", READ, deny=p.OPEN4_SHARE_DENY_READ) == p.NFS4ERR_DELAY
        await until(lambda: one.end.recalls == 1)

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_without_a_delegation_there_is_an_open(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        await two.opening(b"f", WRITE)
        opened = await one.opening(b"f", READ, want=EITHER)
        assert not without_stateid(opened)
        assert opened.delegation.delegation_type == NONE
        refused = await one.opening(
            b"f", READ, want=EITHER | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG, owner=b"who wants none"
        )
        assert not without_stateid(refused)

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_an_open_that_is_there_keeps_its_stateid(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        first = await one.opening(b"f", READ, want=p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG)
        second = await one.opening(b"f", READ, want=EITHER)
        assert second.delegation.delegation_type == READ_DELEGATION
        assert not without_stateid(second)
        assert second.stateid == p.stateid4(2, first.stateid.other)
        # Nor is an open replaced whose client has a delegation already.
        third = await one.opening(b"f", READ, want=EITHER, owner=b"another")
        assert not without_stateid(third)
        assert opens_of(server, one, b"f") == 2

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_there_is_no_current_stateid_behind_it(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        opening = (p.OP_OPEN, one.open_args(b"f", access=READ | EITHER))
        reading = (p.OP_READ, p.READ4args(CURRENT, 0, 9))
        assert await one.status(*one.path("/0"), opening, reading) == p.NFS4ERR_BAD_STATEID
        assert server.engine.delegations.count == 1

    with_two(tmp_path, minor, test)


def test_a_holder_that_never_answers_loses_file_and_all(tmp_path):
    @prepared
    async def test(server, export, one, two):
        stateid = stateid_of(await one.opening(b"f", BOTH, want=EITHER))
        handle = one.handles[b"f"]
        one.end.keep = True
        await until(lambda: two.opens(b"f", WRITE))
        writing = (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"x"))
        assert await one.status((p.OP_PUTFH, p.PUTFH4args(handle)), writing) == p.NFS4ERR_DELEG_REVOKED
        assert await one.status((p.OP_PUTFH, p.PUTFH4args(handle)), claiming(one, stateid, READ)) in (
            p.NFS4ERR_DELEG_REVOKED, p.NFS4ERR_BAD_STATEID,
        )  # fmt: skip

    with_two(tmp_path, 1, test, limits=Limits(grace=0, recall=0.2))
