"""NFSv4.0 answered natively: clients are told by stateids and owners, retransmissions by the RPC replay cache."""

import asyncio
import os

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.v4.unguarded import unguarded
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, LoopbackTransport, wanted
from tests.support.nfs4_native import handle_of, run
from tests.unit import vfs_support
from tests.unit.test_nfs4_native import (
    LINUX,
    OF_CONTENT,
    OPERATIONS_AT,
    access,
    getattr_,
    lookup,
    on,
    putfh,
    read,
    write,
)
from tests.unit.test_nfs4_native_changes import remove
from tests.unit.test_nfs4_native_opens import closing, next_seqid, opening
from tests.unit.test_waiting_calls import stalled, until


def v40(tmp_path, scenario, kind="memory", **options):
    with vfs_support.directory_on(kind, tmp_path) as path:
        return run(path, tmp_path, 0, scenario, **options)


async def opened(both, name=b"a", share=3):
    """A file that the client has open, whose owner has confirmed itself: (stateid, handle)."""
    (both.path / os.fsdecode(name)).write_bytes(b"content")
    return await both.client.open("/0", name, access=share, owner=b"owner")


async def changeable(both):
    """The export's root, open to be synchronised."""
    root = await handle_of(both)
    (both.path / "first").touch()
    await both.general.call(None, both.message(1, putfh(root), remove(b"first")))
    return root


def status_of(reply):
    return Client4.parse(reply)[0]


def test_what_linux_sends_most_is_answered_natively(tmp_path):
    async def scenario(both):
        stateid, handle = await opened(both)
        root = await changeable(both)
        before = both.answered

        async def natively(*operations):
            nonlocal before
            status, results = Client4.parse(await both.native.call(None, both.message(0, *operations)))
            assert (status, both.answered) == (0, before + 1)
            before += 1
            return [result for _, result in results]

        await natively(putfh(handle), getattr_())
        await natively(putfh(handle), read(stateid, 0, 4096))
        await natively(putfh(handle), write(stateid, 0, b"data"), getattr_(wanted(3, 4, 52, 53)))
        await natively(putfh(root), lookup(b"a"), p.OP_GETFH, getattr_())
        await natively(putfh(handle), access(0x1F), getattr_())
        await natively(putfh(handle), (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        await natively((p.OP_RENEW, p.RENEW4args(both.client.clientid)))
        seqid = next_seqid(both, b"owner")
        opening_again = opening(both, b"a", share=1, owner=b"owner", seqid=seqid)
        *_, again, _, _, _ = await natively(putfh(root), opening_again, p.OP_GETFH, access(0x2D), getattr_())
        assert again.resok4.stateid.other == stateid.other
        assert not again.resok4.rflags & p.OPEN4_RESULT_CONFIRM
        closed = (await natively(putfh(handle), closing(again.resok4.stateid, seqid + 1)))[-1]
        assert closed.open_stateid.seqid == again.resok4.stateid.seqid + 1
        await natively(putfh(root), remove(b"a"), getattr_(OF_CONTENT))

    v40(tmp_path, scenario)


def test_a_retransmission_is_answered_from_the_replay_cache(tmp_path):
    async def scenario(both):
        stateid, handle = await opened(both)
        root = await changeable(both)
        seqid = next_seqid(both, b"owner")
        (both.path / "b").touch()
        opening_and_more = opening(both, b"a", owner=b"owner", seqid=seqid), putfh(root), remove(b"b")
        for message, again in (
            (
                both.message(0, putfh(handle), write(stateid, 0, b"AAAA")),
                lambda: (both.path / "a").write_bytes(b"more"),
            ),
            (both.message(0, putfh(root), *opening_and_more), (both.path / "b").touch),
            (both.message(0, putfh(root), remove(b"a")), (both.path / "a").touch),
        ):
            answered = both.answered
            replied = await both.native.call(None, message)
            assert (status_of(replied), both.answered) == (0, answered + 1)
            again()
            assert await both.native.call(None, message) == replied
            assert both.answered == answered + 1
        assert (both.path / "a").exists()
        assert (both.path / "b").exists()
        assert next_seqid(both, b"owner") == seqid + 1

    v40(tmp_path, scenario)


@pytest.mark.parametrize("size", [100, 100_000])
def test_data_read_before_a_change_come_again_with_a_retransmission(tmp_path, size):
    """Whatever READ's data stand beside natively, the reply that the replay cache has of such a COMPOUND is whole."""

    async def scenario(both):
        stateid, handle = await opened(both)
        (both.path / "a").write_bytes(os.urandom(200_000))
        message = both.message(0, putfh(handle), read(stateid, 0, size), write(stateid, 0, b"other data"))
        first = await both.native.call(None, message)
        assert status_of(first) == 0
        assert len(first) > size
        assert await both.native.call(None, message) == first

    v40(tmp_path, scenario)


def test_what_changes_nothing_is_not_remembered(tmp_path):
    async def scenario(both):
        stateid, handle = await opened(both)
        root, cache = await handle_of(both), both.dispatcher.replay
        before, answered = len(cache), both.answered
        for operations in (
            [putfh(handle), read(stateid, 0, 100), getattr_()],
            [putfh(handle), (p.OP_COMMIT, p.COMMIT4args(0, 0))],
            [putfh(root), lookup(b"a"), p.OP_GETFH, access(0x1F), getattr_()],
            [(p.OP_RENEW, p.RENEW4args(both.client.clientid))],
        ):
            await both.native.call(None, both.message(0, *operations))
        assert (len(cache), both.answered) == (before, answered + 4)
        await both.native.call(None, both.message(0, putfh(handle), write(stateid, 0, b"data")))
        assert (len(cache), both.answered) == (before + 1, answered + 5)

    v40(tmp_path, scenario)


def test_what_an_owner_remembers_the_replay_cache_does_not(tmp_path):
    async def scenario(both):
        await opened(both)
        root, cache = await handle_of(both), both.dispatcher.replay
        seqid, before = next_seqid(both, b"owner"), len(cache)
        asked = putfh(root), opening(both, b"a", owner=b"owner", seqid=seqid), p.OP_GETFH, access(0x2D), getattr_()
        message = both.message(0, *asked)
        replied = await both.native.call(None, message)
        _, results = Client4.parse(replied)
        stateid, handle = results[1][1].resok4.stateid, results[2][1].resok4.object
        assert await both.native.call(None, message) == replied
        message = both.message(0, putfh(handle), getattr_(), closing(stateid, seqid + 1))
        replied = await both.native.call(None, message)
        assert status_of(replied) == 0
        assert await both.native.call(None, message) == replied
        assert (len(cache), next_seqid(both, b"owner")) == (before, seqid + 2)
        # Of two such operations their owner has but one result.
        twice = [opening(both, b"a", owner=b"owner", seqid=seqid + number) for number in (2, 3)]
        message = both.message(0, putfh(root), twice[0], putfh(root), twice[1])
        replied = await both.native.call(None, message)
        assert (status_of(replied), len(cache)) == (0, before + 1)
        assert await both.native.call(None, message) == replied

    v40(tmp_path, scenario)


def test_a_retransmission_meets_an_open_that_waits(tmp_path):
    async def scenario(both):
        await opened(both)
        handle = await handle_of(both)
        (both.path / "b").write_bytes(b"content")
        await handle_of(both, b"b")
        seqid, root = next_seqid(both, b"owner"), await both.server.service.root(both.server.service.exports.exports[0])
        async with stalled(both.server.service, root, tmp_path):
            message = both.message(0, putfh(handle), opening(both, b"b", owner=b"owner", seqid=seqid))
            both.native.send(message)
            await until(lambda: len(both.dispatcher.held) == 1)
            both.native.send(message)
            both.native.send(both.message(0, putfh(handle), getattr_(LINUX)))
            await asyncio.sleep(0)
        replies = [await both.native.reply(), await both.native.reply()]
        assert [status_of(reply) for reply in replies] == [0, 0]
        assert replies[0][:4] != replies[1][:4]  # the retransmission finds the call under way, on its own connection
        assert next_seqid(both, b"owner") == seqid + 1
        assert await both.native.call(None, message) in replies

    v40(tmp_path, scenario, "disk")


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_retransmission_may_have_to_wait_as_well(tmp_path, place):
    async def scenario(both):
        stateid, _ = await opened(both)
        way = p.OP_PUTROOTFH, (p.OP_LOOKUP, p.LOOKUP4args(b"0"))  # into an export: this waits each time
        seqid = next_seqid(both, b"owner")
        for message, status in (
            (both.message(0, *way, opening(both, b"nothing", owner=b"owner", seqid=seqid)), p.NFS4ERR_NOENT),
            (both.message(0, *way, opening(both, b"nothing", owner=b"new", seqid=0)), p.NFS4ERR_NOENT),
            (both.message(0, *way, lookup(b"a"), closing(stateid, seqid + 1)), p.NFS4_OK),
        ):
            replied = await both.native.call(None, message)
            assert status_of(replied) == status
            for _ in range(3):
                assert await both.native.call(None, message) == replied
        assert next_seqid(both, b"owner") == seqid + 2

    v40(tmp_path, scenario, place)


def test_which_compounds_the_replay_cache_protects():
    client = Client4(None, 0)
    listing = p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 32768, (2, 1))
    harmless = [
        p.OP_PUTROOTFH,
        p.OP_LOOKUPP,
        p.OP_SAVEFH,
        listing,
        p.OP_RESTOREFH,
        p.OP_READLINK,
        putfh(b"handle"),
        lookup(b"name"),
        getattr_(),
        access(1),
        read(p.stateid4(0, bytes(12)), 0, 1),
        p.OP_GETFH,
    ]
    changing = write(p.stateid4(0, bytes(12)), 0, b"data")
    args = p.OPEN4args(
        1, 1, 0, p.open_owner4(7, b"owner"), p.openflag4(p.opentype4.OPEN4_NOCREATE),
        p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=b"name"),
    )  # fmt: skip
    for minor in (0, 1, 2):
        client.minor = minor
        for tag in (b"", b"tag", b"x" * 1000):
            for operations, may_change in (
                (harmless, False),
                ([*harmless, changing], True),
                ([changing], True),
                ([p.OP_LOOKUPP, listing, changing], True),
                ([*harmless, (p.OP_OPEN, args), *harmless], True),
                ([*harmless, closing(p.stateid4(0, bytes(12)), 1), *harmless], True),
            ):
                message = memoryview(client.message(*operations, tag=tag))[OPERATIONS_AT - 12 :]
                assert unguarded(message) == (may_change and minor == 0)
                for cut in range(0, len(message), 3):
                    unguarded(message[:cut])


def test_an_operation_sent_again_in_another_call_has_its_first_result(tmp_path):
    """RFC 7530 section 9.1.9: the owner keeps its last result, whoever has answered."""

    async def scenario(both):
        await opened(both)
        root, owner = await handle_of(both), b"owner"
        seqid = next_seqid(both, owner)
        asked = [putfh(root), opening(both, b"a", share=1, owner=owner, seqid=seqid), p.OP_GETFH]
        answered = both.answered
        first = await both.native.call(None, both.message(0, *asked))
        again = await both.native.call(None, both.message(0, *asked))
        assert first[4:] == again[4:]
        _, results = Client4.parse(first)
        stateid, handle = results[1][1].resok4.stateid, results[2][1].resok4.object
        close = [putfh(handle), closing(stateid, seqid + 1)]
        first = await both.native.call(None, both.message(0, *close))
        assert (status_of(first), both.answered) == (0, answered + 3)
        assert (await both.native.call(None, both.message(0, *close)))[4:] == first[4:]
        late = [putfh(handle), closing(stateid, seqid + 3)]
        assert status_of(await both.native.call(None, both.message(0, *late))) == p.NFS4ERR_BAD_SEQID
        assert both.answered == answered + 5

    v40(tmp_path, scenario)


def test_an_open_that_is_not_confirmed_is_good_for_nothing_else(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        root, owner = await handle_of(both), b"new"
        asked = [putfh(root), opening(both, b"a", share=3, owner=owner, seqid=1), p.OP_GETFH]
        _, results = Client4.parse(await both.native.call(None, both.message(0, *asked)))
        opened, handle = results[1][1].resok4, results[2][1].resok4.object
        assert opened.rflags & p.OPEN4_RESULT_CONFIRM
        for operation in (read(opened.stateid, 0, 9), write(opened.stateid, 0, b"lost"), closing(opened.stateid, 2)):
            reply = await both.native.call(None, both.message(0, putfh(handle), operation))
            assert status_of(reply) == p.NFS4ERR_BAD_STATEID
        assert both.answered == 4  # the OPEN, and these failures
        assert (both.path / "a").read_bytes() == b"content"

    v40(tmp_path, scenario)


def test_the_lease_is_renewed_by_whatever_names_the_client(tmp_path):
    async def scenario(both):
        stateid, handle = await opened(both)
        client = both.server.engine.clients.lookup(both.client.clientid)
        for operation in (read(stateid, 0, 9), write(stateid, 0, b"data"), (p.OP_RENEW, p.RENEW4args(client.clientid))):
            client.lease_end, answered = 0.0, both.answered
            assert status_of(await both.native.call(None, both.message(0, putfh(handle), operation))) == 0
            assert client.lease_end > both.server.engine.now()
            assert both.answered == answered + 1
        client.courtesy, client.lease_end = True, 0.0
        assert status_of(await both.native.call(None, both.message(0, putfh(handle), read(stateid, 0, 9)))) == 0
        assert not client.courtesy
        assert client.lease_end > both.server.engine.now()

    v40(tmp_path, scenario)


def test_a_client_heard_of_again_is_on_record_when_it_is_told_so(tmp_path):
    """Others have had locks since the grace period; from this reply on it may reclaim its own after a restart."""

    async def scenario(both):
        _, handle = await opened(both)
        client, engine = both.server.engine.clients.lookup(both.client.clientid), both.server.engine
        renewal = (p.OP_RENEW, p.RENEW4args(client.clientid))
        for way in (both.general, both.native):
            for compound in ([renewal], [putfh(handle), renewal]):
                engine.forget_claims(client)
                await both.server.store.flush(engine)
                client.unheard = True
                issued = engine.writes_issued
                assert status_of(await way.call(None, both.message(0, *compound))) == 0
                assert (client.recorded, engine.writes_issued, engine.stable) == (True, issued + 1, True)

    v40(tmp_path, scenario)


def test_a_stateid_of_a_session_is_none_here(tmp_path):
    async def scenario(both):
        _, handle = await opened(both)
        other = await Client4(both.server, 1, name=b"other", transport=LoopbackTransport()).connect()
        theirs, _ = await other.open("/0", b"a", access=3)
        for operation in (read(theirs, 0, 7), write(theirs, 0, b"lost"), closing(theirs, next_seqid(both, b"owner"))):
            reply = await both.native.call(None, both.message(0, putfh(handle), operation))
            assert status_of(reply) == p.NFS4ERR_BAD_STATEID
        assert (both.path / "a").read_bytes() == b"content"

    v40(tmp_path, scenario)


@pytest.mark.parametrize("stable", [0, 2])
def test_a_retransmission_meets_a_write_that_waits(tmp_path, stable):
    async def scenario(both):
        stateid, handle = await opened(both)
        assert status_of(await both.native.call(None, both.message(0, putfh(handle), write(stateid, 0, b"first")))) == 0
        natively = both.answered
        root = await both.server.service.root(both.server.service.exports.exports[0])
        async with stalled(both.server.service, root, tmp_path):
            message = both.message(0, putfh(handle), write(stateid, 0, b"once..", stable), getattr_(OF_CONTENT))
            both.native.send(message)
            await until(lambda: len(both.dispatcher.held) == 1)
            both.native.send(message)
            both.native.send(both.message(0, putfh(handle), getattr_(LINUX)))
        first, second = await both.native.reply(), await both.native.reply()
        assert {status_of(first), status_of(second)} == {0}
        assert first[:4] != second[:4]  # the retransmission finds the call under way, on its own connection
        assert both.answered - natively == 2
        assert (both.path / "a").read_bytes()[:6] == b"once.."

    v40(tmp_path, scenario, "disk")


def test_a_file_that_another_client_writes_under_a_delegation_is_asked_about(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        end = CallbackEnd()
        holder = await Client4(both.server, 1, name=b"holder", transport=LoopbackTransport(callbacks=end)).connect()
        await holder.open("/0", b"a", access=3)
        assert both.server.engine.delegations.count == 1
        answered = both.answered
        await both.native.call(None, both.message(0, putfh(handle), getattr_()))
        assert both.answered == answered + 1
        assert p.OP_CB_GETATTR in end.operations

    v40(tmp_path, scenario, limits=Limits(grace=0))


def test_compounds_without_a_session_are_none_of_the_later_versions(tmp_path):
    async def scenario(both):
        handle = await handle_of(both)
        both.client.minor = 1
        reply = await both.native.call(None, both.message(0, putfh(handle), getattr_()))
        assert (status_of(reply), both.answered) == (p.NFS4ERR_OP_NOT_IN_SESSION, 1)

    on("memory", tmp_path, 0, scenario)
