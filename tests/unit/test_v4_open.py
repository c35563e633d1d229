"""OPEN, CLOSE, OPEN_DOWNGRADE, OPEN_CONFIRM: what may be opened, by whom, and in which order refusals come."""

import asyncio
import dataclasses
import os

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, Recovered
from nfsd.state.recovery import ClientRecord
from tests.support.nfs4 import Client4, Failed, LoopbackTransport, mode, serving, with_client

MINORS = [0, 1, 2]
READ, WRITE = p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_ACCESS_WRITE


async def refused(opening) -> int:
    """The status an OPEN fails with."""
    with pytest.raises(Failed) as failed:
        await opening
    return failed.value.status


@pytest.mark.parametrize("minor", MINORS)
def test_only_regular_files_can_be_opened(tmp_path, minor):
    async def test(client, export, server):
        (export / "directory").mkdir()
        (export / "link").symlink_to("directory")
        os.mkfifo(export / "fifo")
        special = p.NFS4ERR_WRONG_TYPE if minor else p.NFS4ERR_SYMLINK
        for name, status in ((b"directory", p.NFS4ERR_ISDIR), (b"link", p.NFS4ERR_SYMLINK), (b"fifo", special)):
            assert await refused(client.open("/0", name, access=READ)) == status, name

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_an_owners_own_deny_refuses_its_next_open(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", access=3, deny=p.OPEN4_SHARE_DENY_READ, create=mode(0o644))
        assert await refused(client.open("/0", b"f", access=READ)) == p.NFS4ERR_SHARE_DENIED
        await client.close(stateid, handle)
        await client.open("/0", b"f", access=READ)

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_who_may_not_open_a_file_is_not_told_of_its_shares(tmp_path, minor):
    async def test(client, export, server):
        await client.open("/0", b"f", deny=p.OPEN4_SHARE_DENY_BOTH, create=mode(0o700))
        other = await Client4(server, minor, uid=1000, gid=1000, name=b"o", transport=LoopbackTransport()).connect()
        assert await refused(other.open("/0", b"f", access=READ)) == p.NFS4ERR_ACCESS
        (export / "f").chmod(0o644)
        assert await refused(other.open("/0", b"f", access=READ)) == p.NFS4ERR_SHARE_DENIED

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_another_callers_stateid_gives_no_access(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o600))
        writing = (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"data"))
        reading = (p.OP_READ, p.READ4args(stateid, 0, 10))
        cutting = (p.OP_SETATTR, p.SETATTR4args(stateid, p.fattr4([1 << p.FATTR4_SIZE], bytes(8))))
        await client.on(handle, writing)
        client.credential = (1000, 1000, ())
        for operation in (writing, reading, cutting):
            assert await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), operation) == p.NFS4ERR_ACCESS
        (export / "f").chmod(0o644)
        assert (await client.on(handle, reading))[0].resok4.data == b"data"
        assert await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), writing) == p.NFS4ERR_ACCESS

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_the_opener_goes_on_when_the_mode_forbids_it(tmp_path, minor):
    async def test(client, export, server):
        user = await Client4(server, minor, uid=1000, gid=1000, name=b"u", transport=LoopbackTransport()).connect()
        stateid, handle = await user.open("/0", b"f", create=mode(0o000))
        written, read = await user.on(
            handle,
            (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"data")),
            (p.OP_READ, p.READ4args(stateid, 0, 10)),
        )
        assert (written.resok4.count, read.resok4.data) == (4, b"data")

    with_client(tmp_path, minor, test)


def test_an_open_sent_again_is_answered_again_and_a_stray_one_refused(tmp_path):
    async def test(client, export, server):
        await client.open("/0", b"f", create=mode(0o644))
        args = client.open_args(b"f", access=READ)
        first = await client.run(*client.path("/0"), (p.OP_OPEN, args), p.OP_GETFH)
        again = await client.run(*client.path("/0"), (p.OP_OPEN, args), p.OP_GETFH)
        assert again[-2:] == first[-2:]
        assert again[-2].resok4.stateid.seqid == 3  # OPEN, OPEN_CONFIRM and this one
        for seqid in (args.seqid - 1, args.seqid + 2):
            stray = p.OPEN4args(seqid, args.share_access, 0, args.owner, args.openhow, args.claim)
            assert await client.status(*client.path("/0"), (p.OP_OPEN, stray)) == p.NFS4ERR_BAD_SEQID

    with_client(tmp_path, 0, test)


def test_an_open_to_be_confirmed_is_good_for_nothing_else(tmp_path):
    async def test(client, export, server):
        args = client.open_args(b"f", create=mode(0o644))
        *_, opened, handle = await client.run(*client.path("/0"), (p.OP_OPEN, args), p.OP_GETFH)
        assert opened.resok4.rflags & p.OPEN4_RESULT_CONFIRM
        stateid, there = opened.resok4.stateid, (p.OP_PUTFH, p.PUTFH4args(handle.resok4.object))
        reading = (p.OP_READ, p.READ4args(stateid, 0, 10))
        assert await client.status(there, reading) == p.NFS4ERR_BAD_STATEID
        closing = (p.OP_CLOSE, p.CLOSE4args(args.seqid + 1, stateid))
        assert await client.status(there, closing) == p.NFS4ERR_BAD_STATEID
        confirming = (p.OP_OPEN_CONFIRM, p.OPEN_CONFIRM4args(stateid, args.seqid + 1))
        _, confirmed = await client.run(there, confirming)
        again = await client.run(there, confirming)
        assert again[1] == confirmed
        stateid = confirmed.resok4.open_stateid
        assert await client.status(there, (p.OP_READ, p.READ4args(stateid, 0, 10))) == p.NFS4_OK
        twice = (p.OP_OPEN_CONFIRM, p.OPEN_CONFIRM4args(stateid, args.seqid + 2))
        assert await client.status(there, twice) == p.NFS4ERR_BAD_STATEID

    with_client(tmp_path, 0, test)


@pytest.mark.parametrize("minor", MINORS)
def test_stateids_bad_old_and_of_another_file(tmp_path, minor):
    async def test(client, export, server):
        first, handle = await client.open("/0", b"f", create=mode(0o644), access=READ)
        second, _ = await client.open("/0", b"f", access=WRITE)
        _, elsewhere = await client.open("/0", b"g", create=mode(0o644), owner=b"2")
        assert (first.other, first.seqid + 1) == (second.other, second.seqid)
        cases = (
            (handle, first, p.NFS4ERR_OLD_STATEID),
            (handle, p.stateid4(second.seqid + 1, second.other), p.NFS4ERR_BAD_STATEID),
            (handle, p.stateid4(1, bytes(11) + b"\1"), p.NFS4ERR_STALE_STATEID if not minor else p.NFS4ERR_BAD_STATEID),
            (elsewhere, second, p.NFS4ERR_BAD_STATEID),
            (handle, second, p.NFS4_OK),
        )
        for where, stateid, status in cases:
            reading = (p.OP_READ, p.READ4args(stateid, 0, 10))
            assert await client.status((p.OP_PUTFH, p.PUTFH4args(where)), reading) == status, stateid

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_reclaimed_open_is_good_without_confirmation(tmp_path, minor):
    """RFC 7530 section 9.1.11: confirmation MUST NOT be required of a reclaim; Linux could not give it."""
    export, state = tmp_path / "export", tmp_path / "state"
    export.mkdir()
    state.mkdir()

    async def main():
        async with serving(export, state_dir=state) as server:
            client = await Client4(server, minor).connect()
            _, handle = await client.open("/0", b"f", create=mode(0o644))
            records = tuple(
                ClientRecord(write.minor, write.owner, write.principal, write.epoch)
                for write in server.store.writes
                if write.action == "record"
            )
        recovered = Recovered(server.engine.epoch + 1, records)
        async with serving(export, state_dir=state, limits=Limits(grace=60), recovered=recovered) as server:
            client = await Client4(server, minor).connect(reclaim_complete=False)
            args = client.open_args(b"", owner=b"owner")
            claim = p.open_claim4(p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=p.open_delegation_type4(0))
            args = dataclasses.replace(args, claim=claim)
            (opened,) = await client.on(handle, (p.OP_OPEN, args))
            assert not opened.resok4.rflags & p.OPEN4_RESULT_CONFIRM
            writing = p.WRITE4args(opened.resok4.stateid, 0, p.stable_how4.FILE_SYNC4, b"data")
            await client.on(handle, (p.OP_WRITE, writing))
        assert (export / "f").read_bytes() == b"data"

    asyncio.run(main())
