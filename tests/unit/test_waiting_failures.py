"""Native calls that wait in vain go to the general path, with calls that joined them, or get SYSTEM_ERR. Either
way they give back everything that they held."""

import asyncio
import gc
import os
import struct
import warnings

import pytest

from nfsd.protocol.nfs3 import createmode3, nfsstat3
from rpcrdma.rpc.messages import accept_stat
from rpcrdma.server.tcp_connection import TcpConnection
from tests.support.nfs4_native import Both as Both4
from tests.unit import test_waiting_compounds as compounds
from tests.unit.rdma_native_support import run as run_rdma
from tests.unit.test_nfs3_native import COMMIT, WRITE, handle
from tests.unit.test_nfs3_native_names import CREATE, creation
from tests.unit.test_waiting_calls import SUCCESS, on_disk, stalled, until, waiting, write_arguments

SYSTEM_ERR = struct.pack(">I", accept_stat.SYSTEM_ERR)
EXISTS = struct.pack(">I", nfsstat3.NFS3ERR_EXIST)


@pytest.mark.parametrize("gone", [False, True], ids=["connected", "gone"])
@pytest.mark.parametrize("how", [createmode3.GUARDED, createmode3.UNCHECKED])
def test_who_has_joined_a_call_that_is_declined_gets_its_outcome(how, gone, tmp_path):
    async def scenario(both):
        arguments = creation(both.root, b"b", how=how)
        await both.call(0, CREATE, creation(both.root, b"a"))
        replay = both.dispatcher.replay
        async with stalled(both.service, both.root, tmp_path):
            first = asyncio.ensure_future(both.call(0, CREATE, arguments, xid=99))
            await until(lambda: waiting(both) == 1)
            other = await both.connect(both.listeners[0])
            mine, both.peers[0] = both.peers[0], other
            again = asyncio.ensure_future(both.call(0, CREATE, arguments, xid=99))
            await until(lambda: replay.hits)
            if gone:
                mine.endpoint.close(abort=True)
                await until(lambda: len(both.servers[0].connections) == 1)
            # A local process is faster.
            with open(os.path.join(both.path, "b"), "w") as file:
                file.write("theirs")
        joined = await again
        assert joined[4][16:20] == SUCCESS
        assert joined[4][20:24] == (EXISTS if how == createmode3.GUARDED else SUCCESS)
        if gone:
            first.cancel()
        else:
            assert (await first)[4] == joined[4]
        assert not waiting(both)
        # It is kept: who asks once more is given the same.
        assert (await both.call(0, CREATE, arguments, xid=99))[4] == joined[4]
        assert (await both.call(0, CREATE, creation(both.root, b"c")))[4][20:24] == SUCCESS
        mine.endpoint.close(abort=True)

    run_rdma("disk", tmp_path, scenario)


def test_a_call_that_fails_when_its_connection_has_gone_is_over_all_the_same(tmp_path):
    """Its reply is kept for its retransmission."""

    async def scenario(both, node):
        await both.native.call(CREATE, creation(both.root, b"first"))
        replay = both.dispatcher.replay
        known = len(replay)
        async with stalled(both.service, both.root, tmp_path):
            both.native.send(CREATE, creation(both.root, b"b"))
            await until(lambda: waiting(both) == 1)
            assert len(replay) == known + 1
            for connection in list(both.listeners[0].connections):
                connection.close()
            os.mkdir(os.path.join(both.path, "b"))
        await until(lambda: not waiting(both) and not both.dispatcher.running)
        assert len(replay) == known + 1
        assert (both.answered(CREATE), both.declined()) == (2, 0)

    on_disk(tmp_path, scenario)


class NotStarted(Exception):
    pass


def keep_from_workers(monkeypatch):
    """From now on nothing can be handed to workers, until the list that is returned is not empty."""
    loop, refused = asyncio.get_running_loop(), []
    call_soon = loop.call_soon

    def refuse(callback, *arguments, **how):
        if arguments and getattr(arguments[-1], "__name__", "") == "flush" and not refused:
            refused.append(arguments)
            raise NotStarted
        return call_soon(callback, *arguments, **how)

    monkeypatch.setattr(loop, "call_soon", refuse)
    return refused


def test_a_write_that_cannot_begin_is_answered_and_gives_everything_back(tmp_path, monkeypatch):
    async def scenario(both, node):
        used, known = node.inode.used_count, len(both.dispatcher.replay)
        refused = keep_from_workers(monkeypatch)
        answer = await both.native.call(WRITE, write_arguments(node, 0, b"never"), xid=5)
        assert refused
        assert answer[16:20] == SYSTEM_ERR
        assert not waiting(both)
        assert not node.inode.serial.busy
        assert node.inode.used_count == used
        assert len(both.dispatcher.replay) == known
        (connection,) = both.listeners[0].connections
        assert connection.calls == 0
        # It is executed when it is sent once more.
        answer = await both.native.call(WRITE, write_arguments(node, 0, b"now.."), xid=5)
        assert answer[16:24] == 2 * SUCCESS
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == b"now.."

    on_disk(tmp_path, scenario)


def test_a_train_that_no_worker_takes_fails_and_lets_the_next_one_go(tmp_path, monkeypatch):
    async def scenario(both, node):
        async with stalled(both.service, both.root, tmp_path):
            both.native.send(WRITE, write_arguments(node, 0, b"early"), xid=101)
            await until(lambda: waiting(both) == 1)
            await asyncio.sleep(0)  # it has departed
            for xid in (102, 103):
                both.native.send(WRITE, write_arguments(node, 0, b"never"), xid=xid)
            await until(lambda: waiting(both) == 3)
            keep_from_workers(monkeypatch)
        replies = {reply[:4]: reply for reply in [await both.native.reply() for _ in range(3)]}
        statuses = [replies[struct.pack(">I", xid)][24:28] for xid in (101, 102, 103)]
        assert statuses == [SUCCESS, *[struct.pack(">I", nfsstat3.NFS3ERR_IO)] * 2]
        assert not waiting(both)
        assert not node.inode.serial.busy
        assert (await both.native.call(WRITE, write_arguments(node, 0, b"again")))[20:24] == SUCCESS

    on_disk(tmp_path, scenario)


def test_an_fsync_that_cannot_begin_is_answered_and_gives_everything_back(tmp_path, monkeypatch):
    async def scenario(both, node):
        refused = keep_from_workers(monkeypatch)
        commit = handle(node) + bytes(12)
        assert (await both.native.call(COMMIT, commit))[16:20] == SYSTEM_ERR
        assert refused
        assert not waiting(both)
        assert (await both.native.call(COMMIT, commit))[16:24] == 2 * SUCCESS

    on_disk(tmp_path, scenario)


def test_a_compound_that_cannot_begin_to_wait_gives_its_slot_back(tmp_path, monkeypatch):
    async def scenario(both):
        file = await compounds.opened(both)
        writing = compounds.write(*file, b"first")
        assert compounds.status(await both.native.call(None, both.message(0, *writing))) == compounds.SUCCESS
        refused = keep_from_workers(monkeypatch)
        reply = await both.native.call(None, both.message(0, *writing))
        assert refused
        assert reply[20:24] == SYSTEM_ERR
        assert not both.session.slots[1].in_use
        assert not waiting(both)
        assert compounds.status(await both.native.call(None, both.message(0, *writing))) == compounds.SUCCESS

    compounds.on_disk(tmp_path, scenario, Both4)


def test_an_fsync_that_is_not_waited_for_is_not_left_behind(tmp_path, monkeypatch):
    async def scenario(both, node):
        monkeypatch.setattr(TcpConnection, "begin_held", lambda connection: False)
        commit = handle(node) + bytes(12)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert (await both.native.call(COMMIT, commit))[16:24] == 2 * SUCCESS
            gc.collect()
        # A socket that an earlier test has left unclosed may be collected here as well: that is a ResourceWarning.
        assert [str(one.message) for one in seen if issubclass(one.category, RuntimeWarning)] == []
        assert not both.answered(COMMIT)

    on_disk(tmp_path, scenario)


def test_what_goes_wrong_with_a_late_reply_costs_its_connection(tmp_path):
    class Tap:
        def record_in(self, *parts):
            pass

        def record_out(self, parts):
            raise NotStarted

    async def scenario(both, node):
        (connection,) = both.listeners[0].connections
        connection.stream.set_tap(Tap())
        both.native.send(WRITE, write_arguments(node, 0, b"shown"))
        with pytest.raises(asyncio.IncompleteReadError):
            await both.native.reply()
        assert not waiting(both)
        assert connection.calls == 0
        assert not node.inode.serial.busy

    on_disk(tmp_path, scenario)
