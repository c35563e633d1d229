"""General calls are answered by the native function of their procedure, however their message came."""

import asyncio
import dataclasses
import os
import struct

import pytest

from nfsd.protocol.nfs3 import NFS_PROGRAM, fattr3, nfsstat3
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.memory import OutOfMemory
from rpcrdma.rpc.dispatch import NO_REPLY, Dispatcher
from rpcrdma.rpc.messages import accept_stat
from rpcrdma.rpc.native import Gate
from rpcrdma.rpc.offers import offers
from rpcrdma.rpc.program import Program, RpcCredential
from rpcrdma.xdr import pack
from tests.support import nfs3_truth
from tests.unit import rdma_native_support as rdma
from tests.unit import vfs_support
from tests.unit.rdma_native_support import GETATTR, READ, WRITE, handle
from tests.unit.rpc_support import FakeTransport, Replies
from tests.unit.test_firewall import inject
from tests.unit.test_waiting_calls import stalled, until

BLOCK = 4096
DATA = os.urandom(16 * BLOCK)


def without_handlers(service, **options):
    """A dispatcher whose procedures of NFSv3 have nothing but their native functions."""
    native = Nfs3Procedures(service)
    procedures = {
        number: dataclasses.replace(each, handler=None) if offers(native, number) else each
        for number, each in nfs3_procedures(service, service.exports).items()
    }
    programs = [Program(NFS_PROGRAM, "nfs", {3: procedures})]
    return Dispatcher(programs, natives={(NFS_PROGRAM, 3): native}, **options)


class Calls:
    """Calls to a dispatcher, from a transport in memory."""

    def __init__(self, service, root, path, **options):
        self.service, self.root, self.path = service, root, path
        self.dispatcher, self.transport, self.replies = without_handlers(service, **options), Transport(), Replies()

    def send(self, xid, procedure, arguments, chunks=(), transport=None, replies=None):
        message = memoryview(rdma.rpc(xid, procedure, arguments))
        chunks = [(len(message), memoryview(chunk)) for chunk in chunks]
        self.dispatcher.dispatch(
            transport or self.transport, message, chunks, [], self.replies if replies is None else replies
        )

    async def reply(self, count=1):
        """Wait until there are so many; the last one's octets, and where in them its payloads belong."""
        await until(lambda: len(self.replies.all) >= count)
        reply = self.replies.all[-1]
        whole, done, cuts = b"", 0, []
        for offset, payload in reply.payloads:
            whole += bytes(reply.head[done:offset])
            cuts.append((len(whole), len(payload)))
            whole, done = whole + bytes(payload.view) + bytes(-len(payload) & 3), offset
        whole += bytes(reply.head[done:])
        reply.release()
        return whole, cuts

    async def file(self, name=b"a"):
        """A file that is open to read and to write, as callers of these tests open it."""
        node = await vfs_support.write_file(self.service, self.root, name, DATA, mode=0o666)
        for access in ({"read": True, "write": False}, {"read": False, "write": True}):
            (await self.service.open(credential(self.service), node, **access)).release()
        return node


class Transport(FakeTransport):
    """One whose memory may have to be waited for."""

    def __init__(self):
        super().__init__("127.0.0.1")
        self.account = self.pool.account(1 << 20)
        self.lends = None

    async def lease(self, size):
        if self.lends is not None:
            await self.lends
        return self.account.lease(size)


def credential(service):
    """What these callers are on the export."""
    found = service.exports.standing(service.exports.exports[0], RpcCredential(1, 0, 0, ()), FakeTransport("127.0.0.1"))
    assert found is not None
    return found[0]


def run(kind, tmp_path, scenario, **options):
    with vfs_support.directory_on(kind, tmp_path) as path:

        async def main(service, root):
            calls = Calls(service, root, path, **options)
            await scenario(calls)
            await calls.dispatcher.drain(30)
            assert not calls.dispatcher.running
            assert calls.transport.pool.in_use == 0

        vfs_support.run(path, tmp_path, main, squash="none")


def read(node, offset, count):
    return handle(node) + struct.pack(">QI", offset, count)


def write(node, offset, data, *, inline=True):
    head = handle(node) + struct.pack(">QIII", offset, len(data), 0, len(data))
    return head + data if inline else head


def forget(path):
    """Have the kernel drop what it has of a file in memory."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_calls_with_a_reply_chunk_are_answered_natively(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", DATA, mode=0o666)
        await both.call(0, WRITE, handle(node) + struct.pack(">QIII", 0, 4, 0, 4) + DATA[:4])
        await both.same(READ, read(node, 0, 10))  # sets atime
        shapes = [
            (GETATTR, handle(node), {"reply": 8192}),
            (READ, read(node, 0, 1000), {"reply": 8192}),
            (READ, read(node, 5, 30000), {"reply": 40000}),
            (READ, read(node, 5, 30001), {"reply": 8192, "room": 40000, "cuts": (4096, 9000)}),
            (READ, read(node, len(DATA), 300), {"reply": 8192, "room": 300}),
        ]
        expected = [await both.same(procedure, arguments, **shape) for procedure, arguments, shape in shapes]
        alone = rdma.RdmaServer(both.provider, both.pool, without_handlers(both.service), both.options)
        both.servers.append(alone)
        both.peers.append(await both.connect(await alone.listen(rdma.ListenAddress(rdma.HOST, 0))))
        for (procedure, arguments, shape), outcome in zip(shapes, expected, strict=True):
            assert await both.call(2, procedure, arguments, **shape) == outcome
        tail = struct.pack(">QIII", 100, 5000, 0, 5000)
        answer = await both.call(2, WRITE, handle(node) + tail, data=DATA[:5000], reply=8192)
        assert answer[4][20:24] == bytes(4)
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == DATA[:100] + DATA[:5000] + DATA[5100:]

    rdma.run("memory", tmp_path, scenario)


def test_data_travels_as_a_payload_in_a_lease_of_the_transport(tmp_path):
    async def scenario(calls):
        node = await calls.file()
        calls.send(1, READ, read(node, 3, 1001))
        whole, cuts = await calls.reply()
        assert whole[24:28] == bytes(4)
        assert [whole[at : at + length] for at, length in cuts] == [DATA[3:1004]]
        assert whole[cuts[0][0] - 4 : cuts[0][0]] == struct.pack(">I", 1001)
        # A payload of no octets is one too: the client's Write chunk is for it.
        calls.send(2, READ, read(node, len(DATA), 10))
        _, cuts = await calls.reply(2)
        assert [length for _, length in cuts] == [0]

    run("memory", tmp_path, scenario)


def test_data_that_came_in_a_chunk_is_written_from_there(tmp_path):
    async def scenario(calls):
        node = await calls.file()
        calls.send(1, WRITE, write(node, 0, b"in a chunk", inline=False), [b"in a chunk"])
        whole, _ = await calls.reply()
        assert whole[24:28] == bytes(4)
        with open(os.path.join(calls.path, "a"), "rb") as file:
            assert file.read(12) == b"in a chunk" + DATA[10:12]

    run("memory", tmp_path, scenario)


def test_who_waits_for_the_disk_is_answered_then(tmp_path):
    async def scenario(calls):
        node = await calls.file()
        async with stalled(calls.service, calls.root, tmp_path):
            forget(os.path.join(calls.path, "a"))
            calls.send(1, READ, read(node, 5 * BLOCK, BLOCK))
            assert calls.replies.all == []
            assert len(calls.dispatcher.in_flight()) == 1
            draining = asyncio.ensure_future(calls.dispatcher.drain(30))
            await asyncio.sleep(0)
            assert not draining.done()
        whole, cuts = await calls.reply()
        assert await draining == 0
        assert [whole[at : at + length] for at, length in cuts] == [DATA[5 * BLOCK : 6 * BLOCK]]
        assert [(label[2], why) for label, why, _ in calls.dispatcher.waited()] == [("READ", "data not in memory")]

    run("disk", tmp_path, scenario)


def test_a_retransmission_of_a_call_that_waits_gets_its_outcome(tmp_path):
    async def scenario(calls):
        node = await calls.file()
        late = Replies()
        async with stalled(calls.service, calls.root, tmp_path):
            calls.send(1, WRITE, write(node, 0, b"once"))
            calls.send(1, WRITE, write(node, 0, b"once"))  # on the same connection: the reply is on its way
            other = Transport()
            calls.send(1, WRITE, write(node, 0, b"once"), transport=other, replies=late)
            assert (calls.replies.all, late.all) == ([NO_REPLY], [])
        first, _ = await calls.reply(2)
        assert first[24:28] == bytes(4)
        assert [bytes(reply.head) for reply in late.all] == [first]
        assert calls.dispatcher.rows[NFS_PROGRAM, 3, WRITE].calls == 1

    run("disk", tmp_path, scenario)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_who_waits_for_memory_is_answered_when_it_is_lent(kind, tmp_path):
    async def scenario(calls):
        node = await calls.file()
        forget(os.path.join(calls.path, "a"))
        calls.transport.lends = asyncio.get_running_loop().create_future()
        calls.send(1, READ, read(node, 0, BLOCK))
        await asyncio.sleep(0)
        assert calls.replies.all == []
        assert len(calls.dispatcher.running) == 1
        calls.transport.lends.set_result(None)
        whole, cuts = await calls.reply()
        assert [whole[at : at + length] for at, length in cuts] == [DATA[:BLOCK]]

    run(kind, tmp_path, scenario)


def test_memory_that_is_refused_leaves_nothing_behind(tmp_path):
    async def scenario(calls):
        node = await calls.file()
        lends = calls.transport.lends = asyncio.get_running_loop().create_future()
        calls.send(1, READ, read(node, 0, BLOCK))
        lends.set_exception(OutOfMemory("never"))
        whole, cuts = await calls.reply()
        assert (whole[20:32], cuts) == (struct.pack(">III", 0, nfsstat3.NFS3ERR_JUKEBOX, 1), [])
        assert whole[32:] == pack(fattr3, nfs3_truth.attributes(node))
        assert not calls.dispatcher.running

    run("memory", tmp_path, scenario)


def test_nothing_is_offered_before_it_is_known_who_calls(tmp_path):
    class Door(Gate):
        def __init__(self):
            self.learning, self.turned = None, []

        def learn(self, transport):
            return self.learning

        def admits(self, transport):
            return not self.turned

        def turned_away(self, transport):
            self.turned.append(transport.peer_address)

    door = Door()

    async def scenario(calls):
        node = await calls.file()
        door.learning = asyncio.get_running_loop().create_future()
        calls.send(1, GETATTR, handle(node))
        await asyncio.sleep(0)
        assert calls.replies.all == []
        door.learning.set_result(None)
        whole, _ = await calls.reply()
        assert whole[20:28] == bytes(8)

    run("memory", tmp_path, scenario, gate=door)


def test_the_thread_is_the_server_s_again_after_each_call(tmp_path):
    async def scenario(calls):
        node = await calls.file()
        os.chown(os.path.join(calls.path, "a"), 1001, 1001)
        calls.send(1, WRITE, write(node, 0, b"as somebody"))
        await calls.reply()
        with open("/proc/thread-self/status") as status:
            ids = [line.split()[1:] for line in status if line.startswith(("Uid", "Gid"))]
        assert ids == [[str(os.getuid())] * 4, [str(os.getgid())] * 4]

    run("memory", tmp_path, scenario)


def test_what_the_only_body_of_a_procedure_declines_is_garbage(tmp_path):
    async def scenario(calls):
        node = await calls.file()
        malformed = [
            (GETATTR, handle(node)[:-4], []),
            (GETATTR, handle(node), [b"a chunk"]),
            (READ, read(node, 0, 10)[:-4], []),
            (WRITE, write(node, 0, b"wrong")[:-4], []),
            (WRITE, write(node, 0, b"wrong", inline=False), [b"wro", b"ng"]),
        ]
        for count, (procedure, arguments, chunks) in enumerate(malformed, 1):
            calls.send(count, procedure, arguments, chunks)
            whole, _ = await calls.reply(count)
            assert whole == struct.pack(">6I", count, 1, 0, 0, 0, accept_stat.GARBAGE_ARGS)
        # It has not been remembered as if it had been executed, and nothing has been written.
        assert len(calls.dispatcher.replay) == 0
        with open(os.path.join(calls.path, "a"), "rb") as file:
            assert file.read() == DATA
        row = calls.dispatcher.rows[NFS_PROGRAM, 3, WRITE]
        assert (row.calls, row.errors) == (2, 2)

    run("memory", tmp_path, scenario)


def test_the_failure_of_the_only_body_of_a_procedure_is_the_server_s(tmp_path, caplog):
    async def scenario(calls):
        node = await calls.file()
        exports = inject(calls.service, RuntimeError("a fault"))
        calls.dispatcher = without_handlers(calls.service)
        exports.fail_at = {1}
        for xid, status in ((1, accept_stat.SYSTEM_ERR), (2, accept_stat.SUCCESS)):
            calls.send(xid, GETATTR, handle(node))
            whole, _ = await calls.reply(xid)
            assert whole[:24] == struct.pack(">6I", xid, 1, 0, 0, 0, status)
        assert "GETATTR failed" in caplog.text

    run("memory", tmp_path, scenario)


def test_a_procedure_without_any_body_is_not_served(tmp_path):
    async def scenario(calls):
        getattr3 = nfs3_procedures(calls.service, calls.service.exports)[GETATTR]
        programs = [Program(NFS_PROGRAM, "nfs", {3: {GETATTR: dataclasses.replace(getattr3, handler=None)}})]
        with pytest.raises(ValueError, match="nothing answers nfs version 3 GETATTR"):
            Dispatcher(programs)

    run("memory", tmp_path, scenario)
