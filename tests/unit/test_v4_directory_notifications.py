"""Holders of a directory's delegation who are told what others change there, in place of a recall (RFC 8881 section
20.4; draft-ietf-nfsv4-rfc8881bis section 16.2.13)."""

import asyncio
import errno

import pytest

from nfsd.protocol import nfs3 as v3
from nfsd.protocol import nfs4 as p
from nfsd.v4 import notifying
from nfsd.v4.notifying import ADD, CFLAG_ORDER, GFLAG_EXTEND, REMOVE, RENAME
from rpcrdma.xdr import Decoder, pack
from tests.nfs3_client import attributes as attributes3
from tests.support.delegations import until, with_two
from tests.support.directories import CHANGES, KINDS, back, created, in_two, populated
from tests.support.nfs4 import Client4
from tests.unit.test_nfs3_delegations import diropargs, nfs3_client
from tests.unit.test_vfs_leases import shell

MINORS = [1, 2]
ALL = 1 << ADD | 1 << REMOVE | 1 << RENAME | 1 << GFLAG_EXTEND
SHAPES = {ADD: p.notify_add4, REMOVE: p.notify_remove4, RENAME: p.notify_rename4}

TOLD = {
    "OPEN that creates": [("add", b"new")],
    "OPEN that creates exclusively": [("add", b"new")],
    "CREATE of a directory": [("add", b"new")],
    "CREATE of a link": [("add", b"new")],
    "CREATE of a FIFO": [("add", b"new")],
    "REMOVE": [("remove", b"f")],
    "REMOVE of a directory": [("remove", b"sub")],
    "RENAME within": [("rename", b"f", b"new")],
    "RENAME into": [("add", b"new")],
    "RENAME onto": [("add", b"f", b"f")],
    "RENAME out of": [("remove", b"f")],
    "LINK": [("add", b"new")],
}


async def watching(client, asked=ALL, promised=None, path="/0/d"):
    """GET_DIR_DELEGATION with notifications: the stateid. ``promised``: those that are given, if not all."""
    asking = p.GET_DIR_DELEGATION4args(False, [asked], p.nfstime4(0, 0), p.nfstime4(0, 0), [], [])
    *_, found, answer = await client.run(*client.path(path), p.OP_GETFH, (p.OP_GET_DIR_DELEGATION, asking))
    client.handles[path] = found.resok4.object
    resok = answer.gddr_res_non_fatal4.gddrnf_resok4
    assert sum(resok.gddr_notification) == (asked if promised is None else promised)
    assert not resok.gddr_child_attributes + resok.gddr_dir_attributes
    return resok.gddr_stateid


def words(kind, value):
    """An event as in TOLD; what is not known must not be claimed."""
    if kind == REMOVE:
        assert value.nrm_old_entry_cookie == 0
        return ("remove", value.nrm_old_entry.ne_file)
    added = value if kind == ADD else value.nrn_new_entry
    assert (added.nad_new_entry_cookie, added.nad_prev_entry, added.nad_last_entry) == ([], [], False)
    over = tuple(one.nrm_old_entry.ne_file for one in added.nad_old_entry)
    if kind == ADD:
        return ("add", added.nad_new_entry.ne_file, *over)
    return ("rename", value.nrn_old_entry.nrm_old_entry.ne_file, added.nad_new_entry.ne_file, *over)


def told(client, stateid, path="/0/d"):
    """What the client has been told, in order."""
    events = []
    for number, args in client.end.executed:
        if number == p.OP_CB_NOTIFY:
            assert (args.cna_stateid, args.cna_fh) == (stateid, client.handles[path])
            for change in args.cna_changes:
                (kind,) = (bit for bit in SHAPES if change.notify_mask == [1 << bit])
                decoder = Decoder(change.notify_vals)
                events.append(words(kind, decoder.decode(SHAPES[kind])))
                decoder.finish(strict=True)
    return events


def octets(server, client):
    """What the host of both clients has the server remember."""
    return server.engine.clients.lookup(client.clientid).account.octets


@pytest.mark.parametrize("leases", [True, False])
@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("change", TOLD)
def test_the_holder_is_told_of_others_changes(tmp_path, minor, change, leases):
    @populated
    async def test(server, export, one, two):
        stateid = await watching(one)
        assert await two.status(*CHANGES[change](two)) == p.NFS4_OK
        await until(lambda: told(one, stateid))
        assert told(one, stateid) == TOLD[change]
        assert server.engine.delegations.recalled == 0
        await back(one, stateid)

    with_two(tmp_path, minor, test, leases=leases)


def test_changes_by_clients_of_nfs4_0_are_told(tmp_path):
    @populated
    async def test(server, export, one, two):
        old = Client4(server, 0, name=b"old")
        await old.connect()
        stateid = await watching(one)
        assert await old.status(*CHANGES["REMOVE"](old)) == p.NFS4_OK
        await until(lambda: told(one, stateid) == [("remove", b"f")])
        assert server.engine.delegations.recalled == 0

    with_two(tmp_path, 1, test)


@pytest.mark.parametrize(
    ("asked", "promised", "change"),
    [
        (ALL & ~(1 << GFLAG_EXTEND), 0, "REMOVE"),
        (ALL | 1 << CFLAG_ORDER, 0, "REMOVE"),
        (1 << GFLAG_EXTEND, 0, "REMOVE"),
        (1 << ADD | 1 << GFLAG_EXTEND, None, "REMOVE"),
        (1 << ADD | 1 << GFLAG_EXTEND, None, "RENAME within"),
        (1 << RENAME | 1 << GFLAG_EXTEND, None, "RENAME into"),
        (ALL | 0b11, ALL, "SETATTR"),
        (ALL, None, "its own RENAME"),
    ],
)
def test_of_what_is_not_promised_a_recall_comes_first(tmp_path, asked, promised, change):
    @populated
    async def test(server, export, one, two):
        stateid = await watching(one, asked, promised)
        one.end.keep = True
        assert await two.status(*CHANGES[change](two)) == p.NFS4ERR_DELAY
        await until(lambda: one.end.recalls)
        # Who is being recalled is told nothing any more.
        assert await two.status(*CHANGES["CREATE of a FIFO"](two)) == p.NFS4ERR_DELAY
        assert told(one, stateid) == []

    with_two(tmp_path, 1, test)


def test_changes_by_nfs3_recall(tmp_path):
    @populated
    async def test(server, export, one, two):
        await watching(one)
        one.end.keep = True
        async with nfs3_client(server) as (client, _):
            args = v3.MKDIR3args(diropargs(one.handles["/0/d"], b"new"), attributes3())
            await client.call(9, pack(v3.MKDIR3args, args))
        await until(lambda: one.end.recalls)

    with_two(tmp_path, 1, test)


def test_changes_by_local_processes_recall(tmp_path):
    @populated
    async def test(server, export, one, two):
        await watching(one)
        await shell(f"touch {export}/d/new")
        await until(lambda: one.end.recalls)

    with_two(tmp_path, 1, test, leases=True)


def test_nobody_is_told_of_his_own_changes(tmp_path):
    @populated
    async def test(server, export, one, two):
        first, second = await watching(one), await watching(two)
        await two.run(*CHANGES["REMOVE"](two))
        await one.run(*created(one, KINDS.NF4DIR, b"mine"))
        await until(lambda: told(one, first) and told(two, second))
        assert (told(one, first), told(two, second)) == ([("remove", b"f")], [("add", b"mine")])
        assert server.engine.delegations.recalled == 0

    with_two(tmp_path, 1, test)


def test_what_fails_and_what_changes_nothing_is_not_told(tmp_path):
    @populated
    async def test(server, export, one, two):
        (export / "d/link").hardlink_to(export / "d/f")
        stateid = await watching(one)
        assert await two.status(*created(two, KINDS.NF4DIR, b"sub")) == p.NFS4ERR_EXIST
        missing = (*two.path("/0/d"), (p.OP_REMOVE, p.REMOVE4args(b"missing")))
        assert await two.status(*missing) == p.NFS4ERR_NOENT
        same = in_two(two, "/0/d", "/0/d", (p.OP_RENAME, p.RENAME4args(b"f", b"link")))
        assert await two.status(*same) == p.NFS4_OK
        await two.run(*created(two, KINDS.NF4DIR, b"new"))
        await until(lambda: told(one, stateid))
        assert told(one, stateid) == [("add", b"new")]
        assert server.engine.delegations.recalled == 0

    with_two(tmp_path, 1, test)


def test_a_change_of_unknown_outcome_recalls(tmp_path, monkeypatch):
    @populated
    async def test(server, export, one, two):
        await watching(one)
        mkdir = server.service.mkdir

        async def fails_behind(*args):
            await mkdir(*args)
            raise OSError(errno.EIO, "the directory could not be synchronised")

        monkeypatch.setattr(server.service, "mkdir", fails_behind)
        assert await two.status(*created(two, KINDS.NF4DIR, b"new")) == p.NFS4ERR_IO
        assert (export / "d/new").is_dir()
        await until(lambda: one.end.recalls)

    with_two(tmp_path, 1, test)


def test_many_changes_are_told_in_their_order_and_few_callbacks(tmp_path):
    @populated
    async def test(server, export, one, two):
        stateid = await watching(one)
        before = octets(server, one)
        one.end.gate = asyncio.Event()
        wanted = []
        for number in range(15):
            name = b"%03d" % number
            await two.run(*created(two, KINDS.NF4DIR, name))
            await two.run(*two.path("/0/d"), (p.OP_REMOVE, p.REMOVE4args(name)))
            wanted += [("add", name), ("remove", name)]
        assert octets(server, one) > before
        one.end.gate.set()
        await until(lambda: len(told(one, stateid)) >= len(wanted))
        assert told(one, stateid) == wanted
        assert one.end.operations.count(p.OP_CB_NOTIFY) < len(wanted) / 2
        assert all(received.octets < 4000 for received in one.end.received)
        await until(lambda: octets(server, one) <= before)

    with_two(tmp_path, 1, test)


def test_more_than_may_wait_is_recalled(tmp_path, monkeypatch):
    monkeypatch.setattr(notifying, "WAITING", 3)

    @populated
    async def test(server, export, one, two):
        account = server.engine.clients.lookup(one.clientid).account
        before = account.octets
        await watching(one)
        one.end.gate = asyncio.Event()
        for number in range(4):
            await two.run(*created(two, KINDS.NF4DIR, b"%d" % number))
        assert server.engine.delegations.recalled == 1
        assert await two.status(*created(two, KINDS.NF4DIR, b"more")) == p.NFS4ERR_DELAY
        one.end.gate.set()
        await until(lambda: not server.engine.delegations.count)
        await until(lambda: account.octets <= before)
        assert await two.status(*created(two, KINDS.NF4DIR, b"more")) == p.NFS4_OK

    with_two(tmp_path, 1, test)


def test_no_room_for_what_waits_is_a_recall(tmp_path, monkeypatch):
    @populated
    async def test(server, export, one, two):
        await watching(one)
        monkeypatch.setattr(server.engine.ledger, "fits", lambda account, octets: False)
        await two.run(*created(two, KINDS.NF4DIR, b"new"))
        await until(lambda: one.end.recalls)
        assert p.OP_CB_NOTIFY not in one.end.operations

    with_two(tmp_path, 1, test)


def test_who_does_not_take_a_notification_is_recalled(tmp_path):
    @populated
    async def test(server, export, one, two):
        await watching(one)
        before = octets(server, one)
        one.end.answers[p.OP_CB_NOTIFY] = [p.CB_NOTIFY4res(p.nfsstat4.NFS4ERR_SERVERFAULT)]
        await two.run(*created(two, KINDS.NF4DIR, b"new"))
        await until(lambda: one.end.recalls)
        await until(lambda: not server.engine.delegations.count)
        assert octets(server, one) < before

    with_two(tmp_path, 1, test)


def test_after_its_return_nothing_is_told(tmp_path):
    @populated
    async def test(server, export, one, two):
        stateid = await watching(one)
        one.end.gate = asyncio.Event()
        for number in range(3):
            await two.run(*created(two, KINDS.NF4DIR, b"%d" % number))
        await until(lambda: told(one, stateid))
        seen = told(one, stateid)
        await back(one, stateid)
        one.end.gate.set()
        await two.run(*created(two, KINDS.NF4DIR, b"new"))
        await asyncio.sleep(0.05)  # whatever would come
        assert told(one, stateid) == seen
        assert server.nfs4.recalls.notifications._queues == {}

    with_two(tmp_path, 1, test)


def test_changes_that_meet_are_told_in_their_order(tmp_path, monkeypatch):
    """The first is made, and not over yet, when the second comes."""

    @populated
    async def test(server, export, one, two):
        old = Client4(server, 0, name=b"old")
        await old.connect()
        stateid = await watching(one)
        mkdir, over = server.service.mkdir, asyncio.Event()

        async def slow(*args):
            made = await mkdir(*args)
            await over.wait()
            return made

        monkeypatch.setattr(server.service, "mkdir", slow)
        first = asyncio.ensure_future(two.status(*created(two, KINDS.NF4DIR, b"new")))
        await until((export / "d/new").is_dir)
        removing = (*old.path("/0/d"), (p.OP_REMOVE, p.REMOVE4args(b"new")))
        second = asyncio.ensure_future(old.status(*removing))
        await asyncio.sleep(0.1)  # it could be done by now
        over.set()
        assert await first == await second == p.NFS4_OK
        await until(lambda: len(told(one, stateid)) == 2)
        assert told(one, stateid) == [("add", b"new"), ("remove", b"new")]

    with_two(tmp_path, 1, test)
