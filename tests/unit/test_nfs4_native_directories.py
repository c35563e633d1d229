"""READDIR, PUTROOTFH, GET_DIR_DELEGATION and DELEGRETURN are answered where the call was received, and by one body."""

import asyncio
import os
import random

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.v4 import directories, listing_errands
from nfsd.v4.attributes import words_of
from rpcrdma.memory import OutOfMemory
from rpcrdma.server.tcp_connection import TcpConnection
from tests.support.callbacks import CallbackListener
from tests.support.delegations import WRITE_DELEGATION, ReturningEnd, holder, stateid_of, until
from tests.support.directories import ASKING
from tests.support.nfs4 import Client4
from tests.support.nfs4_native import BothRdma, handle_of, run
from tests.unit import vfs_support
from tests.unit.test_nfs4_native import SESSIONS, getattr_, lookup, on, putfh, read
from tests.unit.test_waiting_calls import stalled

OK = p.NFS4_OK


def words(*numbers):
    """A bitmap of attributes."""
    return words_of(sum(1 << number for number in numbers))


LINUX = words(1, 3, 4, 8, 11, 19, 20, 33, 35, 36, 37, 41, 45, 47, 50, 52, 53, 55)
"""What Linux asks of entries."""
OURS = {"READDIR", "PUTROOTFH", "PUTPUBFH", "GET_DIR_DELEGATION", "DELEGRETURN"}
NO_GRACE = Limits(grace=0)


def declined(both):
    """What was declined of the operations that this is about: operation and reason."""
    return [(what[2], why) for what, why, _ in both.dispatcher.declined() if what[2] in OURS]


def readdir(cookie=0, dircount=8170, maxcount=32680, asked=LINUX):
    return (p.OP_READDIR, p.READDIR4args(cookie, bytes(8), dircount, maxcount, asked))


def returning(stateid):
    return (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid))


def populate(path, number):
    path.mkdir()
    for count in range(number):
        (path / f"entry {count:04}").touch()


async def sent(both, *operations, slot=0, **how):
    """The status, and the last result, of a COMPOUND on the native way."""
    status, results = Client4.parse(await both.native.call(None, both.message(slot, *operations, **how)))
    return status, results[-1][1] if results else None


async def with_callbacks(both):
    """Have the COMPOUNDs of both ways be those of a client that can be called back."""
    both.client, both.sequences = await holder(both.server, both.minor), {}


@pytest.mark.parametrize("minor", SESSIONS)
def test_directories_are_delegated_and_returned_where_the_call_was_received(tmp_path, kind, minor):
    async def scenario(both):
        for name in ("d", "e"):
            (both.path / name).mkdir()
        (both.path / "f").touch()
        await with_callbacks(both)
        table = both.server.engine.delegations
        handle, elsewhere, file = [await handle_of(both, name) for name in (b"d", b"e", b"f")]
        before = both.answered
        status, answer = await sent(both, putfh(handle), ASKING)
        told = answer.gddr_res_non_fatal4
        assert (status, told.gddrnf_status, table.count) == (OK, p.gddrnf4_status.GDD4_OK, 1)
        stateid = told.gddrnf_resok4.gddr_stateid
        for there, outcome in ((handle, OK), (file, p.NFS4ERR_NOTDIR)):
            status, answer = await sent(both, putfh(there), ASKING)
            assert status == outcome
            if outcome == OK:  # the client has it (RFC 8881 section 18.39.3)
                assert answer.gddr_res_non_fatal4.gddrnf_status == p.gddrnf4_status.GDD4_UNAVAIL
        for wrong, there in (
            (p.stateid4(stateid.seqid + 1, stateid.other), handle), (p.stateid4(1, b"none of ours"), handle),
            (p.stateid4(0, bytes(12)), handle), (p.stateid4(2**32 - 1, b"\xff" * 12), handle), (stateid, elsewhere),
            (p.stateid4(1, bytes(12)), handle),
        ):  # fmt: skip
            assert (await sent(both, putfh(there), returning(wrong)))[0] == p.NFS4ERR_BAD_STATEID
        assert table.count == 1
        assert (await sent(both, putfh(handle), returning(p.stateid4(0, stateid.other)), getattr_()))[0] == OK
        assert (table.count, table.returned) == (0, 1)
        assert (await sent(both, putfh(handle), returning(stateid)))[0] == p.NFS4ERR_BAD_STATEID
        assert (both.answered - before, declined(both)) == (11, [])

    on(kind, tmp_path, minor, scenario, limits=NO_GRACE)


def test_delegations_of_files_are_returned_where_the_call_was_received(tmp_path, minor):
    async def scenario(both):
        async with CallbackListener(ReturningEnd()) as listener:
            for name in ("a", "b"):
                (both.path / name).write_bytes(b"content")
            other = await holder(both.server, minor, b"other", None if minor else listener)
            await other.opening(b"a", 1)  # by which NFSv4.0's owner is confirmed
            given = await other.opening(b"b", 3)
            assert given.delegation.delegation_type == WRITE_DELEGATION
            table, handle = both.server.engine.delegations, other.handles[b"b"]
            inode = both.server.service.nodes.find(handle).inode
            if minor:
                # Another client's it is not to be given back.
                assert (await sent(both, putfh(handle), returning(stateid_of(given))))[0] == p.NFS4ERR_BAD_STATEID
                assert inode.delegated == 2
                both.client, both.sequences = other, {}
            before = [getattr_()] if minor else []  # the holder of NFSv4.0 is not known by its call
            assert (await sent(both, putfh(handle), *before, returning(stateid_of(given))))[0] == OK
            assert (table.returned, inode.delegated, declined(both)) == (1, 0, [])

    on("memory", tmp_path, minor, scenario, limits=NO_GRACE)


@pytest.mark.parametrize("minor", SESSIONS)
def test_a_retransmission_gives_the_delegation_again_that_was_given_and_returns_it_once(tmp_path, minor):
    async def scenario(both):
        (both.path / "d").mkdir()
        await with_callbacks(both)
        table, handle = both.server.engine.delegations, await handle_of(both, b"d")
        message = both.message(0, putfh(handle), ASKING)
        replies = [await both.native.call(None, message) for _ in range(2)]
        assert (replies[0], table.count, table.granted_directories) == (replies[1], 1, 1)
        answer = Client4.parse(replies[0])[1][-1][1].gddr_res_non_fatal4
        message = both.message(0, putfh(handle), returning(answer.gddrnf_resok4.gddr_stateid))
        replies = [await both.native.call(None, message) for _ in range(2)]
        assert (replies[0], Client4.parse(replies[1])[0]) == (replies[1], OK)
        assert (table.count, table.returned) == (0, 1)

    on("memory", tmp_path, minor, scenario, limits=NO_GRACE)


@pytest.mark.parametrize("minor", SESSIONS)
def test_a_delegation_that_is_returned_natively_lets_an_open_go_on(tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        other = await holder(both.server, minor, b"other")
        given = await other.opening(b"a", 3)
        other.end.keep = True
        opener = await holder(both.server, minor, b"opener")
        waiting = asyncio.ensure_future(opener.opening(b"a", 1))
        await until(lambda: other.end.recalls)
        both.client, both.sequences = other, {}
        assert (await sent(both, putfh(other.handles[b"a"]), returning(stateid_of(given))))[0] == OK
        assert (await waiting).stateid.seqid == 1

    on("memory", tmp_path, minor, scenario, limits=NO_GRACE)


def test_malformed_arguments_are_told(tmp_path):
    async def scenario(both):
        handle = await handle_of(both)
        for number, arguments in (
            (p.OP_DELEGRETURN, bytes(12)), (p.OP_READDIR, bytes(24)), (p.OP_READDIR, bytes(24) + b"\0\0\1\0"),
            (p.OP_GET_DIR_DELEGATION, b"\0\0\0\2" + bytes(36)), (p.OP_GET_DIR_DELEGATION, bytes(36)),
            (p.OP_GET_DIR_DELEGATION, bytes(4) + b"\xff" * 4 + bytes(32)),
        ):  # fmt: skip
            message = both.message(0, putfh(handle), p.OP_GETFH)
            reply = await both.native.call(None, message[:-4] + number.to_bytes(4, "big") + arguments)
            assert Client4.parse(reply)[0] == p.NFS4ERR_BADXDR, number

    on("memory", tmp_path, 1, scenario)


def test_the_root_of_the_name_space_is_gone_to_natively(tmp_path, minor):
    async def scenario(both):
        for number in (p.OP_PUTROOTFH, p.OP_PUTPUBFH):
            await both.same(number, p.OP_GETFH, getattr_())
            await both.same(number, lookup(b"0"), p.OP_GETFH, readdir())
            await both.same(number, readdir())
            await both.same(number, readdir(cookie=3))
            await both.same(number, ASKING if both.minor else p.OP_GETFH)
        assert declined(both) == []

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("number", [0, 1, 30, 90, 1500])
def test_listings_of_all_lengths_leave_from_where_the_call_was_received(tmp_path, kind, minor, number):
    async def scenario(both):
        populate(both.path / "d", number)
        handle = await handle_of(both, b"d")
        found, cookie = [], 0
        while True:
            status, answer = await sent(both, putfh(handle), readdir(cookie, maxcount=1 << 20, dircount=1 << 16))
            assert status == OK
            for entry in answer.resok4.reply.entries:
                found.append(bytes(entry.name))
                cookie = entry.cookie
            if answer.resok4.reply.eof:
                break
        assert sorted(found) == [b"entry %04d" % count for count in range(number)]
        # What NFSv4.0's replay cache keeps stands in one piece, so a long one is a general call's.
        assert minor == 0 or declined(both) == []

    on(kind, tmp_path, minor, scenario)


def test_listings_are_the_same_on_both_ways(tmp_path, kind, minor):
    rng = random.Random(minor)

    async def scenario(both):
        populate(both.path / "d", 200)
        (both.path / "d" / "file").write_bytes(rng.randbytes(10_000))
        os.symlink("file", both.path / "d" / "link")
        (both.path / "shut").mkdir(mode=0o700)
        handles = [await handle_of(both, name) for name in (b"d", b"d", b"d", b"shut", b"d/file")]
        _, answer = await sent(both, putfh(handles[0]), readdir(maxcount=20_000), slot=3)
        cookies = [entry.cookie for entry in answer.resok4.reply.entries]
        for _ in range(60):
            listing = readdir(
                rng.choice((0, 1, 2, 3, 0, 0, *rng.sample(cookies, 4))), rng.choice((0, 1, 100, 8192)),
                rng.choice((0, 15, 16, 200, 4096, 9000, 17_000, 40_000, 1 << 20)),
                rng.choice((LINUX, LINUX, [], words(0, 11), words(1, 12), words(20, 59), words(48), [0, 0, 1 << 31])),
            )  # fmt: skip
            behind = rng.choice(
                ([], [], [getattr_()], [p.OP_GETFH, getattr_()], [p.OP_LOOKUPP], [listing], [lookup(b"file")])
            )
            caller = rng.choice(((0, 0), (0, 0), (1001, 1001)))
            await both.same(putfh(rng.choice(handles)), listing, *behind, caller=caller, cache=rng.random() < 0.1)

    on(kind, tmp_path, minor, scenario)


def test_a_listing_from_memory_is_what_the_kernel_says(tmp_path, kind, minor):
    """Handles and change attributes too, by which a client tells whether what it has cached is good."""

    async def scenario(both):
        populate(both.path / "d", 200)
        handle = await handle_of(both, b"d")
        recent = both.server.service.listings.recent
        await asyncio.sleep(0.1)  # from then on the directory's ctime tells of every change
        _, first = await sent(both, putfh(handle), readdir(maxcount=1 << 20))
        while recent.recalled < 400:
            _, again = await sent(both, putfh(handle), readdir(maxcount=1 << 20))
            assert again == first
        rng = random.Random(minor)
        for entry in rng.sample(first.resok4.reply.entries, 20):
            path = both.path / "d" / bytes(entry.name).decode()
            path.write_bytes(rng.randbytes(1 + rng.randrange(9000)))
            _, again = await sent(both, putfh(handle), readdir(maxcount=1 << 20, asked=LINUX))
            (told,) = [each.attrs for each in again.resok4.reply.entries if each.name == entry.name]
            _, answer = await sent(both, putfh(handle), lookup(bytes(entry.name)), getattr_(p.GETATTR4args(LINUX)))
            assert answer.resok4.obj_attributes == told
            assert told != entry.attrs

    on(kind, tmp_path, minor, scenario)


@pytest.mark.parametrize("minor", SESSIONS)
def test_listings_are_the_same_over_rdma(tmp_path, minor):
    """Inline and in the Reply chunk. A Write chunk is for data, and stays empty (RFC 8267 section 6.4.1)."""
    rng = random.Random(minor)

    async def scenario(both):
        populate(both.path / "d", 300)
        (both.path / "d" / "file").write_bytes(rng.randbytes(10_000))
        handle = await handle_of(both, b"d")
        sizes = (100, 2000, 3700, 3900, 4096, 8192, 15_000, 17_000, 40_000, 100_000)
        for _ in range(80):
            listing = readdir(0, rng.choice((0, 0, 8192)), rng.choice(sizes))
            reading = [lookup(b"file"), read(p.stateid4(0, bytes(12)), 0, 500)]
            behind = rng.choice(([], [], [getattr_()], [p.OP_LOOKUPP], reading))
            reply = rng.choice((None, 4096, 1 << 17, *range(3900, 4000, 8)))
            room = rng.choice((None, None, None, 4096, 1 << 16))
            await both.same(putfh(handle), listing, *behind, reply=reply, room=room, cache=rng.random() < 0.1)
        before = len(declined(both))
        for size in sizes[1:]:
            await both.same(putfh(handle), readdir(0, 0, size), reply=size + 4096)
        assert len(declined(both)) == before
        return both.servers[0].counters.long_replies

    with vfs_support.directory_on("memory", tmp_path) as path:
        assert run(path, tmp_path, minor, scenario, BothRdma) > 10


@pytest.mark.parametrize("minor", SESSIONS)
def test_a_listing_for_which_there_is_no_memory_goes_on_as_a_general_call(tmp_path, minor, monkeypatch):
    """That waits for it before it holds any."""

    async def none(transport, size):
        raise OutOfMemory

    async def scenario(both):
        populate(both.path / "d", 300)
        handle = await handle_of(both, b"d")
        monkeypatch.setattr(listing_errands, "lent_beside", none)
        status, answer = await sent(both, putfh(handle), readdir(0, 0, 1 << 20))
        assert (status, len(answer.resok4.reply.entries), answer.resok4.reply.eof) == (OK, 300, True)
        assert declined(both) == [("READDIR", "size")]

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("number", [3, 300])
def test_a_listing_that_cannot_be_kept_goes_on_as_a_general_call(tmp_path, minor, number, monkeypatch):
    """It has begun by then, and is waited for."""
    begun = []
    original = listing_errands.of_directory

    def of_directory(*arguments):
        begun.append(arguments)
        return original(*arguments)

    async def scenario(both):
        populate(both.path / "d", number)
        handle = await handle_of(both, b"d")
        monkeypatch.setattr(TcpConnection, "begin_held", lambda connection: False)
        status, answer = await sent(both, putfh(handle), readdir(0, 0, 1 << 20))
        assert (status, len(answer.resok4.reply.entries), len(begun)) == (OK, number, 1)
        if minor:
            assert not both.session.slots[1].in_use

    monkeypatch.setattr(directories, "of_directory", of_directory)
    on("disk", tmp_path, minor, scenario)


def test_a_listing_whose_connection_has_gone_is_over(tmp_path, minor):
    async def scenario(both):
        populate(both.path / "d", 300)
        root, handle = await handle_of(both), await handle_of(both, b"d")
        assert (await sent(both, putfh(root)))[0] == OK
        (connection,) = both.listeners[0].connections
        at = await both.server.service.root(both.server.service.exports.exports[0])
        async with stalled(both.server.service, at, tmp_path):
            both.native.send(both.message(0, putfh(handle), readdir(0, 0, 1 << 20)))
            await until(lambda: len(both.dispatcher.held) == 1)
            connection.close()
        await until(lambda: not both.dispatcher.held and not both.dispatcher.running)
        assert not minor or not both.session.slots[1].in_use

    on("disk", tmp_path, minor, scenario)
