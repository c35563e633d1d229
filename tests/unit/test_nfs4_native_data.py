"""READ, WRITE and COMMIT natively where they are rare: special stateids, other callers, nothing to do, no arguments."""

import os

import pytest

from nfsd.exports import Export
from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from tests.support.delegations import BOTH, READ, delegated, holder
from tests.support.nfs4 import Client4, mode
from tests.support.nfs4_native import BothRdma, handle_of, run
from tests.unit import vfs_support
from tests.unit.test_nfs4_native import ANONYMOUS, BYPASS, CURRENT, OF_CONTENT, getattr_, on, putfh, read, write

OWNER, FRIEND, STRANGER = (1001, 1001), (1002, 1002), (1003, 1003)
OFFSET_MAX = (1 << 63) - 1
WHOLE = b"0123456789"


def commit(offset=0, count=0):
    return (p.OP_COMMIT, p.COMMIT4args(offset, count))


def file_of(both, name="a", content=WHOLE, bits=0o640, owner=OWNER):
    path = both.path / name
    path.write_bytes(content)
    os.chown(path, owner[0], FRIEND[1])
    path.chmod(bits)
    return path


async def natively(both, *operations, **how):
    """The status and the last result of a COMPOUND that is answered where it was received."""
    answered = both.answered
    reply = await both.native.call(None, both.message(0, *operations, **how))
    status, results = Client4.parse(reply)
    assert both.answered == answered + 1, p.nfsstat4(status).name
    return status, results[-1][1]


def content(outcome):
    """What a READ has got."""
    status, result = outcome
    assert status == 0, p.nfsstat4(status).name
    return bytes(result.resok4.data), result.resok4.eof


def test_special_stateids_read_and_write_as_the_caller(kind, tmp_path, minor):
    async def scenario(both):
        path = file_of(both)
        handle = putfh(await handle_of(both, b"a"))
        for stateid in (ANONYMOUS, BYPASS):
            path.write_bytes(WHOLE)
            for caller in (OWNER, FRIEND):
                assert content(await natively(both, handle, read(stateid, 2, 4), caller=caller)) == (b"2345", False)
            status, _ = await natively(both, handle, read(stateid, 2, 4), caller=STRANGER)
            assert status == p.NFS4ERR_ACCESS
            for caller in (FRIEND, STRANGER):
                status, _ = await natively(both, handle, write(stateid, 0, b"x"), caller=caller)
                assert status == p.NFS4ERR_ACCESS
            for data, stable in ((b"once", 0), (b"more", 2)):
                status, written = await natively(both, handle, write(stateid, 0, data, stable), caller=OWNER)
                assert (status, written.resok4.count) == (0, 4)
                assert path.read_bytes() == data + WHOLE[4:]
        # What was allowed is not allowed any more, and the server has the file open still.
        os.chmod(path, 0o600)
        status, _ = await natively(both, handle, read(ANONYMOUS, 0, 4), caller=FRIEND)
        assert status == p.NFS4ERR_ACCESS
        assert content(await natively(both, handle, read(ANONYMOUS, 0, 4), caller=OWNER)) == (b"more", False)

    on(kind, tmp_path, minor, scenario)


def test_a_stateid_in_another_callers_hands_gives_it_no_permission(kind, tmp_path, minor):
    async def scenario(both):
        path = file_of(both)
        both.client.credential = (*OWNER, ())
        stateid, handle = await both.client.open("/0", b"a", access=3)
        handle = putfh(handle)
        assert content(await natively(both, handle, read(stateid, 0, 4), caller=OWNER)) == (b"0123", False)
        assert content(await natively(both, handle, read(stateid, 0, 4), caller=FRIEND)) == (b"0123", False)
        for caller, operation in (
            (STRANGER, read(stateid, 0, 4)),
            (STRANGER, write(stateid, 0, b"x")),
            (FRIEND, write(stateid, 0, b"x")),
        ):
            status, _ = await natively(both, handle, operation, caller=caller)
            assert status == p.NFS4ERR_ACCESS
        assert path.read_bytes() == WHOLE
        # Whoever has opened it keeps what it has been given.
        os.chmod(path, 0)
        os.chown(path, 0, 0)
        assert (await natively(both, handle, write(stateid, 0, b"held"), caller=OWNER))[0] == 0
        assert content(await natively(both, handle, read(stateid, 0, 4), caller=OWNER)) == (b"held", False)

    on(kind, tmp_path, minor, scenario)


@pytest.mark.parametrize("minor", [1, 2])
def test_the_current_stateid_is_the_opens(kind, tmp_path, minor):
    async def scenario(both):
        file_of(both)
        root, other = putfh(await handle_of(both)), putfh(await handle_of(both, b"a"))
        status, result = await natively(
            both, root, (p.OP_OPEN, both.client.open_args(b"new", access=3, create=mode(0o600))),
            write(CURRENT, 0, b"data"), read(CURRENT, 1, 10),
        )  # fmt: skip
        assert content((status, result)) == (b"ata", True)
        assert (both.path / "new").read_bytes() == b"data"
        # There is none where another file has been made the current one.
        creating = (p.OP_OPEN, both.client.open_args(b"newer", access=3, create=mode(0o600)))
        for operation in (read(CURRENT, 0, 10), write(CURRENT, 0, b"x")):
            status, _ = await natively(both, other, operation)
            assert status == p.NFS4ERR_BAD_STATEID
        status, _ = await natively(both, root, creating, other, read(CURRENT, 0, 10))
        assert status == p.NFS4ERR_BAD_STATEID

    on(kind, tmp_path, minor, scenario)


def test_nothing_is_read_and_nothing_is_written(kind, tmp_path, minor):
    async def scenario(both):
        path = file_of(both)
        both.client.credential = (*OWNER, ())
        stateid, handle = await both.client.open("/0", b"a", access=3)
        handle = putfh(handle)
        for state in (stateid, ANONYMOUS):
            for offset, count, eof in (
                (0, 0, False), (10, 0, True), (11, 0, True), (OFFSET_MAX, 5, True), (OFFSET_MAX - 2, 1 << 20, True),
                (1 << 63, 5, True), ((1 << 64) - 1, (1 << 32) - 1, True),
            ):  # fmt: skip
                assert content(await natively(both, handle, read(state, offset, count), caller=OWNER)) == (b"", eof)
            before = path.stat().st_mtime_ns
            for stable in (0, 2):
                status, written = await natively(both, handle, write(state, 5, b"", stable), caller=OWNER)
                assert (status, written.resok4.count) == (0, 0)
                assert written.resok4.committed >= stable
            assert path.stat().st_mtime_ns == before
        for operation in (read(ANONYMOUS, 0, 0), write(ANONYMOUS, 0, b"")):
            assert (await natively(both, handle, operation, caller=STRANGER))[0] == p.NFS4ERR_ACCESS
        assert path.read_bytes() == WHOLE

    on(kind, tmp_path, minor, scenario)


def test_more_than_may_be_written_at_once_is_written_in_part(kind, tmp_path, minor):
    most = 4096

    async def scenario(both):
        stateid, handle = await both.client.open("/more", b"a", create=mode(0o600))
        data = os.urandom(most - 1) + b"-" + os.urandom(4093)
        status, written = await natively(both, putfh(handle), write(stateid, 3, data))
        assert (status, written.resok4.count) == (0, most)
        assert (both.path / "a").read_bytes() == bytes(3) + data[:most]

    with vfs_support.directory_on(kind, tmp_path) as path:
        export = Export(7, str(path), "/more", squash="none", max_write=most)
        run(path, tmp_path, minor, scenario, more=(export,))


def test_arguments_that_are_cut_short_or_out_of_range(tmp_path, minor):
    async def scenario(both):
        path = file_of(both)
        handle = putfh(await handle_of(both, b"a"))
        for operation, cut in (
            (read(ANONYMOUS, 0, 4), 4), (write(ANONYMOUS, 0, b"data"), 4), (write(ANONYMOUS, 0, b"data"), 12),
            (commit(), 4),
        ):  # fmt: skip
            answered = both.answered
            reply = await both.native.call(None, both.message(0, handle, operation)[:-cut])
            status, results = Client4.parse(reply)
            assert (status, len(results)) == (p.NFS4ERR_BADXDR, 2 + (minor > 0))
            assert both.answered == answered + 1
        message = bytearray(both.message(0, handle, write(ANONYMOUS, 0, b"data", 2)))
        assert message[-12:-8] == bytes([0, 0, 0, 2])
        message[-9] = 3  # there is no such stability
        assert Client4.parse(await both.native.call(None, bytes(message)))[0] == p.NFS4ERR_BADXDR
        assert path.read_bytes() == WHOLE

    on("memory", tmp_path, minor, scenario)


def test_who_may_have_a_file_synchronised(kind, tmp_path, minor):
    async def scenario(both):
        path = file_of(both, bits=0o660)
        both.client.credential = (*FRIEND, ())
        stateid, opened = await both.client.open("/0", b"a", access=3)
        handle = putfh(opened)
        os.chmod(path, 0o600)
        for caller, status in ((OWNER, 0), ((0, 0), 0), (STRANGER, p.NFS4ERR_ACCESS), (FRIEND, 0)):
            assert (await natively(both, handle, commit(), caller=caller))[0] == status
        both.client.credential = (*FRIEND, ())
        await both.client.close(stateid, opened)
        assert (await natively(both, handle, commit(), caller=FRIEND))[0] == p.NFS4ERR_ACCESS

    on(kind, tmp_path, minor, scenario)


def test_an_export_that_need_not_be_synchronised(tmp_path, minor):
    async def scenario(both):
        file_of(both, "../more/a", bits=0o666)
        *_, found = await both.client.run(*both.client.path("/more/a"), p.OP_GETFH)
        handle = putfh(found.resok4.object)
        assert both.server.service.exports.by_id[7].asynchronous
        for caller in (OWNER, STRANGER):
            status, written = await natively(both, handle, write(ANONYMOUS, 0, b"data", 2), caller=caller)
            assert (status, written.resok4.committed) == (0, 2)
            status, committed = await natively(both, handle, commit(), caller=caller)
            assert (status, committed.resok4.writeverf) == (0, written.resok4.writeverf)

    (tmp_path / "more").mkdir()
    export = Export(7, str(tmp_path / "more"), "/more", squash="none", asynchronous=True)
    with vfs_support.directory_on("disk", tmp_path) as path:
        run(path, tmp_path, minor, scenario, more=(export,))


@pytest.mark.parametrize("minor", [1, 2])
def test_writes_that_fail_with_their_data_in_a_read_chunk(tmp_path, minor):
    async def scenario(both):
        path = file_of(both)
        reading, handle = await both.client.open("/0", b"a", access=1)
        data = b"a payload of thirty-one octets."
        for operation, status in (
            (write(reading, 0, data), p.NFS4ERR_OPENMODE),
            (write(p.stateid4(1, b"none of ours"), 0, data), p.NFS4ERR_BAD_STATEID),
            (write(ANONYMOUS, OFFSET_MAX, data), p.NFS4ERR_FBIG),
        ):
            answered = both.answered
            outcome = await both.call(0, 0, putfh(handle), operation, getattr_(OF_CONTENT), data=data)
            assert int.from_bytes(outcome[4][20:24], "big") == status
            assert both.answered == answered + 1
        assert path.read_bytes() == WHOLE
        # An item that needs padding, in a chunk without it.
        answered = both.answered
        outcome = await both.call(0, 0, putfh(handle), write(ANONYMOUS, 0, data), getattr_(OF_CONTENT), data=data)
        assert int.from_bytes(outcome[4][20:24], "big") == 0
        assert both.answered == answered + 1
        assert path.read_bytes() == data

    with vfs_support.directory_on("memory", tmp_path) as directory:
        run(directory, tmp_path, minor, scenario, BothRdma)


@pytest.mark.parametrize("minor", [1, 2])
def test_delegations_are_recalled_for_who_has_nothing_open(kind, tmp_path, minor):
    async def scenario(both):
        one = await holder(both.server, minor)
        for name, access, operation, recalls in (
            (b"read", READ, read(ANONYMOUS, 0, 4), 0),
            (b"written", READ, write(ANONYMOUS, 0, b"x"), 1),
            (b"own", BOTH, read(BYPASS, 0, 4), 1),
            (b"kept", BOTH, read(BYPASS, 0, 4), 1),
        ):
            file_of(both, name.decode(), bits=0o666)
            await delegated(one, name, access)
            handle, recalled = putfh(await handle_of(both, name)), one.end.recalls
            one.end.keep = name == b"kept"
            status, _ = await natively(both, handle, operation, caller=STRANGER)
            assert status == (p.NFS4ERR_DELAY if one.end.keep else 0)
            assert one.end.recalls == recalled + recalls

    on(kind, tmp_path, minor, scenario, limits=Limits(grace=0))
