"""Asynchronous COPY, OFFLOAD_STATUS, OFFLOAD_CANCEL and CB_OFFLOAD (RFC 7862 sections 4.8, 15.2, 15.8, 15.9, 16.1)."""

import asyncio
import errno
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.v4 import copies
from nfsd.v4.copies import Turns
from nfsd.v4.ops import copy as copy_operations
from nfsd.vfs import copying
from tests.support.delegations import NONE, READ_DELEGATION, with_two
from tests.support.nfs4 import LoopbackTransport, wanted
from tests.unit.v42_support import ANONYMOUS, content, handle_of, offloads, status_on, two_files, with_clients

PIECE = 10_000
SIZE = 95_000


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An export with a file that takes ten pieces to copy, and an empty one."""
    monkeypatch.setattr(copying, "_PIECE", PIECE)
    monkeypatch.setattr(copy_operations, "MOST_AT_ONCE", PIECE)
    monkeypatch.setattr(copies, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(copies, "_PATIENCE", 0.2)
    export = tmp_path / "export"
    export.mkdir()
    (export / "source").write_bytes(os.urandom(SIZE))
    (export / "target").write_bytes(b"")
    for path in (export, export / "source", export / "target"):
        path.chmod(0o777)
    return export


class Pieces:
    """Lets copies go on piece by piece, and can make one fail."""

    def __init__(self, monkeypatch, *, go=0):
        self.allowed = asyncio.Semaphore(go)
        self.begun = 0
        self.fail_at = {}
        """Number of the piece: errno."""
        original = copying.Copying.copy_by_kernel

        async def piece(operations, *where):
            await self.allowed.acquire()
            self.begun += 1
            if self.begun in self.fail_at:
                raise OSError(self.fail_at[self.begun], "made up")
            return await original(operations, *where)

        monkeypatch.setattr(copying.Copying, "copy_by_kernel", piece)

    def go(self, count):
        for _ in range(count):
            self.allowed.release()


async def offload(client, source="source", target="target", *, stateids=(ANONYMOUS, ANONYMOUS), **how):
    """COPY that may be asynchronous: (the copy's stateid or None, COPY4resok)."""
    one, other = await handle_of(client, source), await handle_of(client, target)
    args = p.COPY4args(
        *stateids, how.get("offset", 0), how.get("to", 0), how.get("count", 0), True, how.get("synchronous", False), []
    )
    *_, result = await client.run(*two_files(one, other), (p.OP_COPY, args))
    made = result.cr_resok4
    ids = list(made.cr_response.wr_callback_id)
    return (ids[0] if ids else None), made


async def progress(client, stateid, target="target"):
    """OFFLOAD_STATUS: (octets, [status])."""
    handle = await handle_of(client, target)
    [shown] = await client.on(handle, (p.OP_OFFLOAD_STATUS, p.OFFLOAD_STATUS4args(stateid)))
    return shown.osr_resok4.osr_count, list(shown.osr_resok4.osr_complete)


async def status_status(client, stateid, target="target"):
    """The status of OFFLOAD_STATUS."""
    return await status_on(
        client, await handle_of(client, target), (p.OP_OFFLOAD_STATUS, p.OFFLOAD_STATUS4args(stateid))
    )


async def cancel(client, stateid, target="target"):
    """The status of OFFLOAD_CANCEL."""
    return await status_on(
        client, await handle_of(client, target), (p.OP_OFFLOAD_CANCEL, p.OFFLOAD_CANCEL4args(stateid))
    )


async def until(condition):
    """Let others run until it holds."""
    end = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it never came about"
        await asyncio.sleep(0.001)


def descriptors(server):
    """Open files somebody has a count of."""
    return sum(opened.count for opened in server.service.open_files._all_opens)


def test_a_long_copy_is_answered_at_once_and_told_about_at_its_end(place, tmp_path, monkeypatch):
    async def test(server, client):
        pieces = Pieces(monkeypatch)
        stateid, made = await offload(client)
        assert stateid.seqid == 1
        assert made.cr_response.wr_count == 0
        assert made.cr_requirements == p.copy_requirements4(cr_consecutive=True, cr_synchronous=False)
        assert await progress(client, stateid) == (0, [])
        pieces.go(3)
        await until(lambda: os.stat(f"{place}/target").st_size == 3 * PIECE)
        await until(lambda: server.nfs4.copies.counters.octets == 3 * PIECE)
        assert await progress(client, stateid) == (3 * PIECE, [])
        [line] = server.nfs4.copies.in_flight()
        assert f"{client.clientid:016x}: {3 * PIECE} octets" in line
        assert offloads(client) == []
        pieces.go(100)
        await until(lambda: offloads(client))
        [told] = offloads(client)
        assert (told.coa_fh, told.coa_stateid) == (await handle_of(client, "target"), stateid)
        done = told.coa_offload_info.coa_resok4
        assert (told.coa_offload_info.coa_status, done.wr_count, list(done.wr_callback_id)) == (p.NFS4_OK, SIZE, [])
        assert done.wr_committed == p.stable_how4.UNSTABLE4
        assert content(f"{place}/target") == content(f"{place}/source")
        [committed] = await client.on(told.coa_fh, (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        assert committed.resok4.writeverf == done.wr_writeverf == made.cr_response.wr_writeverf
        await until(lambda: len(server.engine.copies) == 0)
        assert await status_status(client, stateid) == p.NFS4ERR_BAD_STATEID
        assert await cancel(client, stateid) == p.NFS4ERR_BAD_STATEID
        counters = server.nfs4.copies.counters
        assert (counters.started, counters.completed, counters.acknowledged, counters.octets) == (1, 1, 1, SIZE)
        assert descriptors(server) == 0

    with_clients(place, tmp_path, test, backchannel=True)


def test_what_is_short_or_asked_for_at_once_is_copied_at_once(place, tmp_path):
    async def test(server, client):
        for how in ({"count": PIECE}, {"offset": SIZE - 1}, {"synchronous": True}):
            os.truncate(f"{place}/target", 0)
            stateid, made = await offload(client, **how)
            assert stateid is None
            assert made.cr_requirements == p.copy_requirements4(cr_consecutive=True, cr_synchronous=True)
            assert made.cr_response.wr_count == os.stat(f"{place}/target").st_size > 0
        assert server.nfs4.copies.counters.started == 0

    with_clients(place, tmp_path, test, backchannel=True)


def test_who_takes_no_callbacks_is_not_kept_waiting_for_one(place, tmp_path):
    async def test(server, client):
        stateid, made = await offload(client)
        assert (stateid, made.cr_response.wr_count) == (None, SIZE)

    with_clients(place, tmp_path, test)


def test_a_copy_outlives_the_files_being_closed_and_removed(place, tmp_path, monkeypatch):
    data = content(f"{place}/source")

    async def test(server, client):
        pieces = Pieces(monkeypatch)
        reading, source = await client.open("/0", b"source", access=1)
        writing, target = await client.open("/0", b"target", access=2, owner=b"other")
        await offload(client, stateids=(reading, writing))
        pieces.go(1)
        await client.close(reading, source)
        await client.close(writing, target, b"other")
        await client.run(*client.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"source")))
        pieces.go(100)
        await until(lambda: offloads(client))
        assert offloads(client)[0].coa_offload_info.coa_resok4.wr_count == SIZE
        assert content(f"{place}/target") == data
        await until(lambda: descriptors(server) == 0)

    with_clients(place, tmp_path, test, backchannel=True)


def test_the_target_is_not_delegated_while_it_is_copied_to(place, tmp_path, monkeypatch):
    """The copying client may have closed it; who reads it meanwhile must not be told that nobody writes."""

    async def test(server, export, client, reader):
        pieces = Pieces(monkeypatch)
        reading, source = await client.open("/0", b"source", access=1)
        wanting = p.OPEN4_SHARE_ACCESS_WRITE | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG
        writing, target = await client.open("/0", b"target", access=wanting, owner=b"other")
        await offload(client, stateids=(reading, writing))
        await client.close(reading, source)
        await client.close(writing, target, b"other")
        opened = await reader.opening(b"target")
        assert opened.delegation.delegation_type == NONE
        await reader.close(opened.stateid, target)
        pieces.go(100)
        await until(lambda: offloads(client))
        opened = await reader.opening(b"target")
        assert opened.delegation.delegation_type == READ_DELEGATION

    with_two(tmp_path, 2, test, place=place)


def test_a_cancelled_copy_writes_nothing_more_and_is_not_told_about(place, tmp_path, monkeypatch):
    async def test(server, client):
        pieces = Pieces(monkeypatch)
        stateid, _ = await offload(client)
        pieces.go(2)
        await until(lambda: os.stat(f"{place}/target").st_size == 2 * PIECE)
        assert await cancel(client, stateid) == p.NFS4_OK
        assert descriptors(server) == 0
        pieces.go(100)
        assert await cancel(client, stateid) == p.NFS4ERR_BAD_STATEID
        assert await status_status(client, stateid) == p.NFS4ERR_BAD_STATEID
        assert os.stat(f"{place}/target").st_size == 2 * PIECE
        assert offloads(client) == []
        assert server.nfs4.copies.counters.cancelled == 1

    with_clients(place, tmp_path, test, backchannel=True)


def test_only_the_stateid_of_this_copy_to_this_file_by_this_client_names_it(place, tmp_path, monkeypatch):
    async def test(server, client, other):
        Pieces(monkeypatch)
        stateid, _ = await offload(client)
        wrong = p.stateid4(1, stateid.other[:-1] + b"\xff")
        for one in (p.stateid4(0, stateid.other), p.stateid4(2, stateid.other), wrong, ANONYMOUS):
            assert await status_status(client, one) == p.NFS4ERR_BAD_STATEID
            assert await cancel(client, one) == p.NFS4ERR_BAD_STATEID
        assert await status_status(client, stateid, "source") == p.NFS4ERR_BAD_STATEID
        assert await cancel(client, stateid, "source") == p.NFS4ERR_BAD_STATEID
        assert await cancel(other, stateid) == p.NFS4ERR_BAD_STATEID
        opened, handle = await client.open("/0", b"target")
        assert await cancel(client, opened) == p.NFS4ERR_BAD_STATEID
        write = p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, b"x")
        assert await status_on(client, handle, (p.OP_WRITE, write)) == p.NFS4ERR_BAD_STATEID
        client.credential = (1000, 1000, ())
        assert await cancel(client, stateid) == p.NFS4ERR_BAD_STATEID
        assert await progress(client, stateid) == (0, [])

    with_clients(place, tmp_path, test, uids=(0, 0), backchannel=True)


def test_copy_stateids_in_test_stateid_and_free_stateid(place, tmp_path, monkeypatch):
    async def test(server, client):
        async def tested(stateid):
            [result] = await client.run((p.OP_TEST_STATEID, p.TEST_STATEID4args([stateid])))
            return result.tsr_resok4.tsr_status_codes[0]

        pieces = Pieces(monkeypatch)
        client.transport.callbacks.gate = asyncio.Event()
        stateid, _ = await offload(client)
        assert await tested(stateid) == p.NFS4_OK
        free = (p.OP_FREE_STATEID, p.FREE_STATEID4args(stateid))
        assert await client.status(free) == p.NFS4ERR_LOCKS_HELD
        pieces.go(100)
        await until(lambda: offloads(client))
        assert await tested(stateid) == p.NFS4_OK
        assert await client.status(free) == p.NFS4_OK
        assert await tested(stateid) == p.NFS4ERR_BAD_STATEID
        assert len(server.engine.copies) == 0

    with_clients(place, tmp_path, test, backchannel=True)


def test_an_unanswered_callback_is_repeated_and_the_result_kept(place, tmp_path):
    async def test(server, client):
        client.transport.callbacks.gate = asyncio.Event()
        stateid, _ = await offload(client)
        await until(lambda: len(offloads(client)) >= 3)
        assert await progress(client, stateid) == (SIZE, [p.NFS4_OK])
        assert descriptors(server) == 0
        client.transport.callbacks.gate.set()
        await until(lambda: len(server.engine.copies) == 0)
        assert len({bytes(told.coa_stateid.other) for told in offloads(client)}) == 1

    with_clients(place, tmp_path, test, backchannel=True)


def test_a_client_that_was_away_at_the_end_is_told_when_it_is_back(place, tmp_path, monkeypatch):
    async def test(server, client):
        pieces = Pieces(monkeypatch)
        stateid, _ = await offload(client)
        away = client.transport
        away.close()
        pieces.go(100)
        await until(lambda: server.nfs4.copies.counters.completed == 1)
        client.transport = LoopbackTransport(callbacks=away.callbacks)
        bind = p.BIND_CONN_TO_SESSION4args(client.session, p.channel_dir_from_client4.CDFC4_BACK_OR_BOTH, False)
        assert (await client.raw((p.OP_BIND_CONN_TO_SESSION, bind)))[0] == p.NFS4_OK
        await until(lambda: len(server.engine.copies) == 0)
        assert [told.coa_stateid for told in offloads(client)] == [stateid]

    with_clients(place, tmp_path, test, backchannel=True)


def test_a_client_that_answers_delay_is_asked_again_and_any_other_error_is_an_answer(place, tmp_path):
    async def test(server, client):
        statuses = (p.NFS4ERR_DELAY, p.NFS4ERR_DELAY, p.NFS4ERR_BAD_STATEID)
        client.transport.callbacks.answers[p.OP_CB_OFFLOAD] = [p.CB_OFFLOAD4res(p.nfsstat4(one)) for one in statuses]
        await offload(client)
        await until(lambda: len(server.engine.copies) == 0)
        assert len(offloads(client)) == 3

    with_clients(place, tmp_path, test, backchannel=True)


@pytest.mark.parametrize("piece", [1, 4])
def test_an_error_is_told_if_nothing_was_copied_and_otherwise_met_by_who_goes_on(place, tmp_path, monkeypatch, piece):
    async def test(server, client):
        Pieces(monkeypatch, go=100).fail_at = {piece: errno.ENOSPC}
        await offload(client)
        await until(lambda: offloads(client))
        info = offloads(client)[0].coa_offload_info
        if piece == 1:
            assert (info.coa_status, info.coa_bytes_copied) == (p.NFS4ERR_NOSPC, 0)
            assert server.nfs4.copies.counters.failed == 1
        else:
            assert (info.coa_status, info.coa_resok4.wr_count) == (p.NFS4_OK, 3 * PIECE)

    with_clients(place, tmp_path, test, backchannel=True)


def test_a_copy_ends_with_its_client(place, tmp_path, monkeypatch):
    async def test(server, client):
        pieces = Pieces(monkeypatch)
        await offload(client)
        pieces.go(1)
        await until(lambda: os.stat(f"{place}/target").st_size == PIECE)
        server.engine.expire_client(server.engine.clients.lookup(client.clientid))
        pieces.go(100)
        await until(lambda: descriptors(server) == 0)
        assert len(server.engine.copies) == 0
        assert os.stat(f"{place}/target").st_size == PIECE
        assert offloads(client) == []

    with_clients(place, tmp_path, test, backchannel=True)


def test_a_stopping_server_stops_copies(place, tmp_path, monkeypatch):
    async def test(server, client):
        Pieces(monkeypatch)
        await offload(client)
        await server.nfs4.copies.close()
        assert descriptors(server) == 0

    with_clients(place, tmp_path, test, backchannel=True)


def test_a_copy_of_the_instance_before_is_unknown(place, tmp_path, monkeypatch):
    stateids = []

    async def before(server, client):
        Pieces(monkeypatch)
        stateids.append((await offload(client))[0])

    async def after(server, client):
        assert await status_status(client, stateids[0]) == p.NFS4ERR_BAD_STATEID
        assert await cancel(client, stateids[0]) == p.NFS4ERR_BAD_STATEID

    with_clients(place, tmp_path, before, backchannel=True)
    with_clients(place, tmp_path, after, backchannel=True)


@pytest.mark.parametrize("limits", [Limits(grace=0, client_copies=2), Limits(grace=0, copies=2)])
def test_copies_beyond_the_bounds_are_made_at_once(place, tmp_path, monkeypatch, limits):
    for name in "abc":
        (place / name).write_bytes(b"")

    async def test(server, client, other):
        gate = asyncio.Event()
        original = copies.Copies._copy

        async def delayed(*args):
            await gate.wait()
            await original(*args)

        monkeypatch.setattr(copies.Copies, "_copy", delayed)
        assert (await offload(client, target="a"))[0] is not None
        assert (await offload(client, target="b"))[0] is not None
        stateid, made = await offload(client, target="c")
        assert (stateid, made.cr_response.wr_count) == (None, SIZE)
        assert ((await offload(other, target="target"))[0] is None) == (limits.copies == 2)
        gate.set()
        await until(lambda: len(server.engine.copies) == 0)
        assert content(f"{place}/a") == content(f"{place}/b") == content(f"{place}/c") == content(f"{place}/source")

    with_clients(place, tmp_path, test, uids=(0, 0), limits=limits, backchannel=True)


def test_the_callback_does_not_overtake_the_reply(place, tmp_path):
    order = []

    async def test(server, client):
        look, call_back = server.service.attributes, client.transport.call_back

        async def slow_look(node):
            await until(lambda: server.nfs4.copies.counters.completed == server.nfs4.copies.counters.started)
            return await look(node)

        async def noting(message):
            order.append("callback")
            return await call_back(message)

        server.service.attributes, client.transport.call_back = slow_look, noting
        files = two_files(await handle_of(client, "source"), await handle_of(client, "target"))
        copy = (p.OP_COPY, p.COPY4args(ANONYMOUS, ANONYMOUS, 0, 0, 0, True, False, []))
        empty = p.fattr4(wanted(p.FATTR4_SIZE).attr_request, bytes(8))
        call = client.message(*client.in_session(*files, copy, (p.OP_NVERIFY, p.NVERIFY4args(empty))))
        replied = asyncio.get_running_loop().create_future()

        def done(reply):
            replied.set_result(order.append("reply") or reply)

        server.dispatcher.dispatch(client.transport, memoryview(call), (), [], done)
        (await replied).release()
        assert server.nfs4.copies.counters.completed == 1
        await until(lambda: "callback" in order)
        assert order == ["reply", "callback"]
        asked = p.referring_call4(client.sequence, 0)
        told = client.transport.callbacks.received[0].sequence.csa_referring_call_lists
        assert told == [p.referring_call_list4(client.session, [asked])]

    with_clients(place, tmp_path, test, backchannel=True)


# -- turns ------------------------------------------------------------------------------------------------------------
def test_who_has_many_copies_gets_no_more_turns():
    async def main():
        turns, order = Turns(1), []

        async def copy(who, pieces):
            for _ in range(pieces):
                await turns.take(who)
                order.append(who)
                await asyncio.sleep(0)
                turns.give()

        await asyncio.gather(*(copy("greedy", 10) for _ in range(8)), copy("modest", 5), copy("third", 5))
        first = order[: max(index for index, who in enumerate(order) if who == "modest") + 1]
        assert first.count("greedy") <= 5 + 1
        assert len(order) == 90

    asyncio.run(main())


def test_a_cancelled_wait_loses_no_turn():
    async def main():
        turns = Turns(1)
        await turns.take("a")
        waiting = [asyncio.ensure_future(turns.take(who)) for who in "bcd"]
        await asyncio.sleep(0)
        waiting[0].cancel()
        turns.give()  # to c, which is cancelled before it can go on
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert not waiting[2].cancelled()
        turns.give()
        await asyncio.wait_for(turns.take("e"), 1)

    asyncio.run(main())


# -- random histories -------------------------------------------------------------------------------------------------
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.sampled_from(["cancel", "status", "free"]), st.integers(0, 1), st.integers(0, 7)),
        st.tuples(st.just("go"), st.integers(1, 12), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 1), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_histories_of_copies_end_with_whole_files_and_nothing_left(place, tmp_path, steps):
    """Two clients copy to four files, go on, ask, cancel, free and vanish in any order. A copy known to its client is
    under way or over; one that was told about is whole; in the end nothing is held."""
    data = content(f"{place}/source")
    for number in range(4):
        (place / str(number)).write_bytes(b"")

    async def test(server, *clients):
        with pytest.MonkeyPatch.context() as patch:
            pieces = Pieces(patch)
            known = [[], []]
            """Of each client: [stateid, target, still good]."""
            for step, which, argument in steps:
                if step == "go":
                    pieces.go(which)
                    await asyncio.sleep(0.005)
                    continue
                client = clients[which]
                if step == "copy":
                    stateid, _ = await offload(client, target=str(argument))
                    assert all(stateid.other != one[0].other for both in known for one in both)
                    known[which].append([stateid, str(argument), True])
                elif step == "lose":
                    server.engine.expire_client(server.engine.clients.lookup(client.clientid))
                    await client.connect(os.urandom(8))
                    known[which].clear()
                elif argument < len(known[which]):
                    await ask(server, client, step, known[which][argument])
            pieces.go(1000)
            await until(lambda: len(server.engine.copies) == 0)
            await until(lambda: not server.nfs4.copies._tasks)
        for client in clients:
            for told in offloads(client):
                assert told.coa_offload_info.coa_resok4.wr_count == SIZE
        finished = {bytes(told.coa_fh) for client in clients for told in offloads(client)}
        for number in range(4):
            if await handle_of(clients[0], str(number)) in finished:
                assert content(f"{place}/{number}") == data
        assert descriptors(server) == 0
        counters = server.nfs4.copies.counters
        assert counters.completed >= counters.acknowledged
        assert counters.started == counters.completed + counters.cancelled

    with_clients(place, tmp_path, test, uids=(0, 0), backchannel=True)


async def ask(server, client, step, copy):
    """OFFLOAD_STATUS, OFFLOAD_CANCEL or FREE_STATEID of a copy; what is answered must go with what came before."""
    stateid, target, good = copy
    if step == "status":
        status = await status_status(client, stateid, target)
    elif step == "cancel":
        status = await cancel(client, stateid, target)
    else:
        status = await client.status((p.OP_FREE_STATEID, p.FREE_STATEID4args(stateid)))
    told = any(one.coa_stateid == stateid for one in offloads(client))
    if status == p.NFS4ERR_BAD_STATEID:
        assert told or not good
    elif step == "free" and not told:
        assert status in (p.NFS4ERR_LOCKS_HELD, p.NFS4_OK)
    else:
        assert status == p.NFS4_OK
        assert good
    if step != "status" and status == p.NFS4_OK:
        copy[2] = False
