"""Each call that native code is offered is answered by it, or counted as declined, with a reason."""

import os
import random
import struct

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bench import report
from bench.servers import counters_in, events_of
from nfsd.metrics import ServerCollector
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import NFS_PROGRAM
from rpcrdma.memory import Pool
from rpcrdma.peer import wire
from tests.support.nfs4_native import handle_of
from tests.support.nfs4_native import run as run4
from tests.unit import rdma_native_support as rdma
from tests.unit import test_nfs3_native as tcp
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import CALLERS, GETATTR, LOOKUP, READ, WRITE, files, handle, name, random_call

READDIR = 16


def declined(dispatcher):
    """(procedure or operation, reason) -> count."""
    return {(what[2], reason): count for what, reason, count in dispatcher.declined()}


def waited(dispatcher):
    """Likewise, of what was waited for."""
    return {(what[2], reason): count for what, reason, count in dispatcher.waited()}


def changes(before, after):
    return {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}


def answered(dispatcher):
    return sum(row.native_calls for row in dispatcher.rows.values())


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_each_call_is_answered_or_declined_once(kind, tmp_path):
    rng = random.Random(5)

    async def scenario(both):
        nodes = await files(both, rng)
        for _ in range(300):
            _, procedure, arguments = random_call(rng, both, nodes)
            await both.native.call(procedure, arguments, rng.choice(CALLERS))
        for procedure in range(22):
            await both.native.call(procedure, b"")
        counts = declined(both.dispatcher)
        assert answered(both.dispatcher) + sum(counts.values()) == 322
        assert answered(both.dispatcher) > 100
        # NULL and what has no native code.
        assert {what for what, reason in counts if reason == "procedure"} == {
            "NULL", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF",
        }  # fmt: skip

    tcp.run(kind, tmp_path, scenario)


def test_reasons_of_nfsv3(tmp_path):
    async def scenario(both):
        async def why(procedure, arguments, caller=(0, 0), counts=declined):
            before = counts(both.dispatcher)
            await both.native.call(procedure, arguments, caller)
            return changes(before, counts(both.dispatcher))

        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        assert await why(GETATTR, handle(node)) == {}
        assert await why(READDIR, handle(both.root)) == {("READDIR", "procedure"): 1}
        stale = struct.pack(">I", 32) + bytes(32)
        assert await why(GETATTR, stale, counts=waited) == {("GETATTR", "file not in use"): 1}
        assert await why(GETATTR, handle(node)[:-4]) == {("GETATTR", "shape"): 1}
        # Nobody has the file open for this caller yet; then it is.
        read = handle(node) + struct.pack(">QI", 0, 4096)
        assert await why(READ, read, (1001, 1001), waited) == {("READ", "not open"): 1}
        assert await why(READ, read, (1001, 1001), waited) == {}
        write = handle(node) + struct.pack(">QIII", 0, 8, 0, 8) + bytes(8)
        await both.native.call(WRITE, write)
        # A retransmission is the replay cache's.
        both.native.xid -= 1
        assert await why(WRITE, write) == {("WRITE", "replay"): 1}
        os.unlink(os.path.join(both.path, "a"))
        node.inode.delegated = 2
        assert await why(READ, read, (1001, 1001), waited) == {("READ", "delegation"): 1}

    tcp.run("memory", tmp_path, scenario)


def test_what_may_wait_and_what_is_not_in_memory(tmp_path):
    async def scenario(both):
        async def why(procedure, arguments):
            before = declined(both.dispatcher)
            await both.native.call(procedure, arguments)
            return changes(before, declined(both.dispatcher))

        path = os.path.join(both.path, "a")
        with open(path, "wb") as file:
            file.write(bytes(1 << 20))
            os.fsync(file.fileno())
        node, _ = await both.service.lookup(vfs_support.ROOT, both.root, b"a")
        write = handle(node) + struct.pack(">QIII", 0, 8, 0, 8) + bytes(8)
        await both.native.call(WRITE, write)
        before = waited(both.dispatcher)
        assert await why(WRITE, write) == {}
        assert changes(before, waited(both.dispatcher)) == {("WRITE", "may wait"): 1}
        read = handle(node) + struct.pack(">QI", 524288, 4096)
        await both.native.call(READ, read)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert await why(READ, read) == {}
        assert await why(LOOKUP, handle(both.root) + name("no such file")) in (
            {("LOOKUP", "data not in memory"): 1}, {}
        )  # fmt: skip

    tcp.run("disk", tmp_path, scenario)


def test_shapes_over_rdma(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(9000), mode=0o666)
        read = handle(node) + struct.pack(">QI", 0, 4096)
        peer = both.peers[0]

        async def why(procedure, arguments, **shape):
            before = declined(both.dispatcher)
            await both.call(0, procedure, arguments, **shape)
            return changes(before, declined(both.dispatcher))

        await both.call(0, READ, read, room=4096)
        assert await why(READ, read, room=4096) == {}
        # No room in the message, and no Write chunk; then there is none anywhere.
        assert await why(READ, read, reply=8192) == {}
        assert await why(GETATTR, handle(node), reply=8192) == {}
        assert await why(READ, read, reply=4096) == {("READ", "size"): 1}
        assert await why(READ, read, room=4096, cuts=range(100, 2000, 100)) == {("READ", "several chunks"): 1}
        data = bytes(8)
        write = handle(node) + struct.pack(">QIII", 0, 8, 0, 8)
        await both.call(0, WRITE, write, data=data)
        assert await why(WRITE, write, data=data, reply=8192) == {}
        assert await why(WRITE, write, data=data, room=4096) == {}
        assert await why(GETATTR, handle(node), data=data) == {("GETATTR", "several chunks"): 1}

        # A Long Call: what it is cannot be known before it is fetched.
        async def long_call(*parts):
            before = declined(both.dispatcher)
            message = rdma.rpc(4711, GETATTR, handle(node))
            source = peer.readable(message)
            reads = [(position, source.segment(0, len(message))) for position in parts]
            peer.send(wire.header(4711, procedure=wire.NOMSG, reads=reads), b"")
            await peer.reply()
            return changes(before, declined(both.dispatcher))

        assert await long_call(0) == {}
        assert await long_call(0, 120) == {("", "several chunks"): 1}
        # A header that is none.
        before = declined(both.dispatcher)
        peer.send(wire.words(4711, 1, 32, 0, 7, 0, 0))
        assert (await peer.reply()).error
        assert changes(before, declined(both.dispatcher)) == {("", "shape"): 1}

    rdma.run("memory", tmp_path, scenario)


def test_reasons_of_nfsv4_by_operation(tmp_path):
    async def scenario(both):
        async def why(*operations):
            before = declined(both.dispatcher)
            await both.native.call(None, both.message(1, *operations))
            return changes(before, declined(both.dispatcher))

        (both.path / "a").write_bytes(bytes(9000))
        put = (p.OP_PUTFH, p.PUTFH4args(await handle_of(both, b"a")))
        size, acl = p.GETATTR4args([1 << p.FATTR4_SIZE]), p.GETATTR4args([1 << p.FATTR4_ACL])
        assert await why(put, (p.OP_GETATTR, size)) == {}
        assert await why(put, (p.OP_GETATTR, acl)) == {}  # an errand gathers them
        assert await why((p.OP_PUTROOTFH, None)) == {}
        assert await why(put, (p.OP_READLINK, None)) == {("READLINK", "procedure"): 1}
        # What is wrong with a stateid is told natively.
        foreign = p.stateid4(1, b"none of ours")
        assert await why(put, (p.OP_READ, p.READ4args(foreign, 0, 100))) == {}
        assert await why(put, (p.OP_CLOSE, p.CLOSE4args(0, foreign))) == {}
        assert await why(*[put] * 40) == {}
        both.client.minor = 3
        assert await why(put) == {}  # an answer, too
        both.client.minor = 1
        both.sequences[2] -= 1
        before = declined(both.dispatcher)
        both.sequences[2] += 1  # a request is skipped: not the next one
        await both.native.call(None, both.message(1, put))
        assert changes(before, declined(both.dispatcher)) == {}

    with vfs_support.directory_on("memory", tmp_path) as path:
        run4(path, tmp_path, 1, scenario)


def test_the_metric(tmp_path):
    async def scenario(both):
        await both.native.call(READDIR, handle(both.root))
        await both.native.call(READDIR, handle(both.root))
        registry = CollectorRegistry()
        registry.register(ServerCollector({"nfs": both.dispatcher}, Pool(1 << 20), list, dict, dict))
        labels = '{procedure="READDIR",program="nfs",reason="procedure",version="3"}'
        assert f"rdma_nfsd_declined_total{labels} 2.0" in generate_latest(registry).decode()
        assert (NFS_PROGRAM, 3, READDIR) in both.dispatcher.rows

    tcp.run("memory", tmp_path, scenario)


def test_bench_shows_what_was_declined():
    text = (
        'rdma_nfsd_declined_total{procedure="WRITE",program="nfs",reason="may wait",version="3"} 40.0\n'
        'rdma_nfsd_declined_total{procedure="",program="",reason="several chunks",version=""} 1.0\n'
    )
    events = events_of(counters_in(text))
    assert events["declined WRITE: may wait"] == 40.0
    figures = {name: value / 1000 for name, value in events.items()}
    assert report.declined(figures) == "4.0% WRITE: may wait, 0.1% unknown: several chunks"
    assert report.declined({"declined WRITE: busy": 0.0001, "cpu_us": 3.0}) == ""
