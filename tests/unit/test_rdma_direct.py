"""What is answered natively over RDMA is what the general path answers: the reply, what is written and invalidated."""

import asyncio
import itertools
import os
import random
import struct

import pytest

from nfsd.protocol.nfs3 import NFS_PROGRAM
from nfsd.v3.direct import Nfs3Direct
from nfsd.v3.program import nfs3_procedures
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.rdma import RdmaServer
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from rpcrdma.wire.private_data import PrivateData
from tests.peer import wire
from tests.peer.requester import Peer
from tests.peer.rig import LINUX
from tests.unit import vfs_support

GETATTR, LOOKUP, ACCESS, READ, WRITE, COMMIT = 1, 3, 4, 6, 7, 21
CREDENTIAL = struct.pack(">5I", 0, 0, 0, 0, 0)


def handle(node):
    return struct.pack(">I", len(node.handle)) + node.handle + bytes(-len(node.handle) & 3)


def rpc(xid, procedure, arguments):
    return (
        struct.pack(">8I", xid, 0, 2, NFS_PROGRAM, 3, procedure, 1, len(CREDENTIAL)) + CREDENTIAL + bytes(8) + arguments
    )


class Both:
    """One file service behind two RDMA servers, of which one answers natively what it can."""

    def __init__(self, service, root, path):
        self.service, self.root, self.path = service, root, path

    async def __aenter__(self):
        self.pool, self.peer_pool = Pool(128 << 20), Pool(256 << 20)
        self.provider = SoftIwarp(self.pool)
        programs = [Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(self.service, self.service.exports)})]
        self.dispatcher = Dispatcher(programs, direct={(NFS_PROGRAM, 3): Nfs3Direct(self.service)})
        self.servers = [
            RdmaServer(self.provider, self.pool, dispatcher) for dispatcher in (self.dispatcher, Dispatcher(programs))
        ]
        self.listeners = [await server.listen(ListenAddress("127.0.0.1", 0)) for server in self.servers]
        self.peers = [await self.connect(listener) for listener in self.listeners]
        self.xid = 0
        return self

    async def connect(self, listener, private_data=LINUX):
        peer = Peer(self.peer_pool.account(64 << 20))
        return await peer.connect(self.provider, listener.address, private_data)

    async def __aexit__(self, kind, *_):
        for peer in self.peers:
            peer.endpoint.close(abort=True)
        for server in self.servers:
            await server.close()
        await self.provider.close()
        if kind is None:
            assert self.pool.in_use == self.pool.leaked == 0

    def answered(self, procedure):
        return self.dispatcher.rows[NFS_PROGRAM, 3, procedure].direct

    async def call(self, which, procedure, arguments, *, room=None, cuts=(), data=None, reply=None, xid=None):
        """One call to one of the servers: everything about its outcome that must not depend on the server.

        ``room`` octets of a Write chunk cut in segments at ``cuts``; ``data`` in a Read chunk at the end, cut too."""
        peer = self.peers[which]
        self.xid += 1
        xid = self.xid if xid is None else xid
        message = rpc(xid, procedure, arguments)
        lists, memory, handles = {}, None, []
        if room is not None:
            memory = peer.writable(max(room, 1))
            edges = [0, *sorted(cut for cut in cuts if cut < room), room]
            chunk = [memory.segment(start, end - start) for start, end in itertools.pairwise(edges)]
            lists["writes"] = [chunk]
            handles.append(memory.handle)
        if data is not None:
            source = peer.readable(data)
            edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
            chunk = [source.segment(start, end - start) for start, end in itertools.pairwise(edges)]
            lists["reads"] = [(len(message), segment) for segment in chunk]
            handles.append(source.handle)
        if reply is not None:
            lists["reply"] = [peer.writable(reply).segment()]
            handles.append(lists["reply"][0].handle)
        peer.send(wire.header(xid, **lists), message)
        answer = await peer.message()
        header = answer.header
        assert header.xid == xid
        return (
            header.procedure,
            header.error,
            header.credit,
            [[segment.length for segment in each] for each in header.writes],
            header.payload[4:],
            None if memory is None else bytes(memory.memory),
            None if answer.invalidated is None else handles.index(answer.invalidated),
        )

    async def same(self, procedure, arguments, **shape):
        await self.call(0, procedure, arguments, **shape)
        general = await self.call(1, procedure, arguments, **shape)
        assert await self.call(0, procedure, arguments, **shape) == general
        return general


def run(kind, tmp_path, scenario, **options):
    with vfs_support.directory_on(kind, tmp_path) as path:

        async def main(service, root):
            async with Both(service, root, path) as both:
                return await scenario(both)

        options.setdefault("squash", "none")
        return vfs_support.run(path, tmp_path, main, **options)


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("seed", range(3))
def test_random_calls_with_random_chunks(kind, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        sizes = (0, 1, 4097, 70_000)
        nodes = [
            await vfs_support.write_file(both.service, both.root, b"f%d" % size, rng.randbytes(size)) for size in sizes
        ]
        for _ in range(150):
            node = rng.choice(nodes)
            procedure = rng.choice((GETATTR, LOOKUP, ACCESS, READ, READ, READ, READ))
            if procedure == LOOKUP:
                arguments = handle(both.root) + struct.pack(">I4s", 2, rng.choice((b"f0\0\0", b"f1\0\0", b"no\0\0")))
            elif procedure == ACCESS:
                arguments = handle(node) + struct.pack(">I", 0x3F)
            elif procedure == READ:
                count = rng.choice((0, 1, 5, 1000, 3000, 4096, 65536))
                arguments = handle(node) + struct.pack(">QI", rng.choice((0, 1, 4096, 69_990, 1 << 40)), count)
            else:
                arguments = handle(node)
            shape = {}
            if rng.random() < 0.7:
                shape["room"] = rng.choice((0, 1, 999, 4096, 4100, 65536))
                shape["cuts"] = sorted({rng.randrange(1, 65536) for _ in range(rng.choice((0, 0, 0, 1, 3, 20)))})
            if rng.random() < 0.1:
                shape["reply"] = 8192
            await both.same(procedure, arguments, **shape)
        return [both.answered(procedure) for procedure in (GETATTR, LOOKUP, ACCESS, READ)]

    counts = run(kind, tmp_path, scenario)
    assert all(count > 3 for count in counts), f"hardly anything was answered natively: {counts}"


@pytest.mark.parametrize("seed", range(3))
def test_random_writes_from_read_chunks(tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        nodes = [await vfs_support.write_file(both.service, both.root, each, mode=0o666) for each in (b"a", b"b")]
        for _ in range(120):
            data = rng.randbytes(rng.choice((0, 1, 4, 100, 4096, 70_000)))
            count = len(data) + rng.choice((0, 0, 0, 0, 4, -4))
            offset, stable = rng.choice((0, 1, 4096, 1 << 16)), rng.choice((0, 0, 0, 2))
            tail = struct.pack(">QIII", offset, max(count, 0), stable, max(count, 0))
            shape = {
                "data": data or None,
                "cuts": sorted({rng.randrange(1, 70_000) for _ in range(rng.choice((0, 2)))}),
            }
            outcomes = [await both.call(which, WRITE, handle(node) + tail, **shape) for which, node in enumerate(nodes)]
            (first, second) = [
                (kind, error, credit, lengths, payload[20:24], payload[-12:-8], invalidated)
                for kind, error, credit, lengths, payload, _, invalidated in outcomes
            ]
            assert first == second
            contents = [open(os.path.join(both.path, each), "rb").read() for each in ("a", "b")]  # noqa: SIM115
            assert contents[0] == contents[1]
        return both.answered(WRITE)

    assert run("memory", tmp_path, scenario) > 15


def test_a_retransmitted_write_from_a_chunk_is_not_executed_again(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"old", mode=0o666)
        tail = struct.pack(">QIII", 0, 8, 0, 8)
        await both.call(0, WRITE, handle(node) + tail, data=b"warm-up.", xid=1)
        first = await both.call(0, WRITE, handle(node) + tail, data=b"AAAAAAAA", xid=2)
        assert both.answered(WRITE) == 1
        await both.call(0, WRITE, handle(node) + tail, data=b"BBBBBBBB", xid=3)
        # The same call again: from a chunk, and inline.
        again = await both.call(0, WRITE, handle(node) + tail, data=b"AAAAAAAA", xid=2)
        assert again[4] == first[4]
        assert (await both.call(0, WRITE, handle(node) + tail + b"AAAAAAAA", xid=2))[4] == first[4]
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == b"BBBBBBBB"

    run("memory", tmp_path, scenario)


def test_credits_are_the_same_however_calls_are_answered(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        for peer, server in zip(both.peers, both.servers, strict=True):
            grants = []
            for burst in (1, 5, 60, 120):
                for number in range(burst):
                    procedure, arguments = (
                        (GETATTR, handle(node)) if number % 3 else (21 if number % 2 else 18, handle(node))
                    )
                    if procedure == 21:
                        arguments += bytes(12)
                    peer.send(wire.header(1000 + number, credit=128), rpc(1000 + number, procedure, arguments))
                grants += [(await peer.reply()).credit for _ in range(burst)]
            assert min(grants) > 0
            (connection,) = server.connections
            ledger = connection.responder.credits
            for _ in range(100):
                await asyncio.sleep(0)
            assert (ledger.posted, ledger.outstanding, ledger.unsent) == (ledger.target, 0, 0)
            assert grants[-1] == ledger.limit
        assert both.servers[0].counters.direct_calls > 100

    run("memory", tmp_path, scenario)


def test_without_remote_invalidation_nothing_is_invalidated(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        modest = PrivateData(remote_invalidation=False, send_size=1024, receive_size=1024).encode()
        both.peers = [await both.connect(listener, modest) for listener in both.listeners]
        outcome = await both.same(READ, handle(node) + struct.pack(">QI", 0, 4096), room=4096)
        assert outcome[-1] is None
        # 1024 octets is all that may be sent to this peer: what does not fit is an error, natively or not.
        outcome = await both.same(READ, handle(node) + struct.pack(">QI", 0, 4096))
        assert outcome[0] == wire.ERROR
        assert both.answered(READ) > 0

    run("memory", tmp_path, scenario)


def test_writing_to_memory_that_is_not_exposed_costs_one_call(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        await both.same(READ, handle(node) + struct.pack(">QI", 0, 4096), room=4096)
        peer = both.peers[0]
        bad = wire.Segment(0xDEAD, 4096, 0)
        arguments = handle(node) + struct.pack(">QI", 0, 4096)
        peer.send(wire.header(77, writes=[[bad]]), rpc(77, READ, arguments))
        await peer.over()
        assert both.servers[0].poisoned.of("127.0.0.1") == {77}
        again = await both.connect(both.listeners[0])
        both.peers[0] = again
        good = again.writable(4096)
        again.send(wire.header(77, writes=[[good.segment()]]), rpc(77, READ, arguments))
        assert (await again.reply()).procedure == wire.ERROR
        assert (await both.call(0, READ, arguments, room=4096))[0] == wire.MSG

    run("memory", tmp_path, scenario)


def test_a_call_of_another_version_than_the_settled_one_is_not_answered_in_it(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        tail = struct.pack(">QIII", 0, 8, 0, 8)
        # The file is open for writing, so that nothing but the version stands against a native answer.
        await both.call(0, WRITE, handle(node) + tail, data=b"warm-up.")
        versions = []
        for listener in both.listeners:
            peer = await both.connect(listener)
            both.peers.append(peer)
            message = rpc(8, WRITE, handle(node) + tail)
            chunk = [(len(message), peer.readable(b"AAAAAAAA").segment())]
            peer.send(wire.header_two(8, reads=chunk), message)
            peer.send(wire.header(9), rpc(9, GETATTR, handle(node)))
            replies = {reply.xid: reply for reply in [await peer.reply(), await peer.reply()]}
            versions.append({xid: (reply.version, reply.procedure) for xid, reply in replies.items()})
        assert versions[0] == versions[1]
        assert versions[0][9] == (1, wire.MSG)
        assert versions[0][8][0] == 2

    run("memory", tmp_path, scenario)
