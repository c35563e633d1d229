"""Files that are not at hand any more are answered natively again if they are in memory, with the same octets."""

import asyncio
import contextlib
import gc
import os
import random
import struct
import weakref
from types import SimpleNamespace

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.vfs.nodes import IDLE_SWEEPS, NodeTable
from nfsd.vfs.records import Inode, Node
from nfsd.vfs.service import FileService
from nfsd.vfs.types import FileType
from tests.support.nfs4_native import handle_of
from tests.support.nfs4_native import run as run4
from tests.unit import test_nfs4_native as v4
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import ACCESS, CALLERS, GETATTR, LOOKUP, READ, disturb, files, name, run

STALE = struct.pack(">I", 70)
JUKEBOX = struct.pack(">I", 10008)


def opaque(octets):
    return struct.pack(">I", len(octets)) + octets + bytes(-len(octets) & 3)


def forget_all(service):
    """Nothing is at hand any more but the export's root."""
    for _ in range(IDLE_SWEEPS + 1):
        service.sweep()
    assert len(service.nodes) == 1


async def handles(both, rng):
    """Files that nobody refers to: their handles and the root's."""
    found = [opaque(node.handle) for node in await files(both, rng)]
    while len(both.service.nodes) > 1:  # what was written to them is put on the disk before they close
        both.service.sweep()
        await asyncio.sleep(0.001)
    forget_all(both.service)
    return found, opaque(both.root.handle)


def random_call(rng, found, root):
    handle = rng.choice(found)
    match rng.randrange(6):
        case 0:
            return ACCESS, handle + struct.pack(">I", rng.choice((0x3F, 0x1F, 1)))
        case 1 | 2:
            return LOOKUP, root + name(rng.choice(("f0", "f1", "f2", "f3", "f5", "none")))
        case 3:
            return READ, handle + struct.pack(">QI", rng.choice((0, 1, 4096)), rng.choice((1, 4096, 65536)))
        case _:
            return GETATTR, handle


async def answer(peer, procedure, arguments, caller):
    """Linux tells ENOMEM of a handle whose inode it is just freeing (open_by_handle_at, 6 of 120,000 on ext4). Who
    comes again, as clients do, hears that it is stale."""
    while True:
        reply = await peer.call(procedure, arguments, caller)
        if reply[20:24] != JUKEBOX:
            return reply


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_files_that_are_not_at_hand(kind, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        found, root = await handles(both, rng)
        native = {GETATTR: 0, LOOKUP: 0, ACCESS: 0, READ: 0}
        for step in range(300):
            if step % 5 == 0:
                disturb(rng, both)
            if step % 60 == 59:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(both.path, f"f{rng.randrange(6)}"))
            procedure, arguments = random_call(rng, found, root)
            caller = rng.choice(CALLERS)
            await both.general.call(procedure, arguments, caller)  # for atime
            forget_all(both.service)
            general = await answer(both.general, procedure, arguments, caller)
            forget_all(both.service)
            before = both.answered(procedure)
            assert await answer(both.native, procedure, arguments, caller) == general
            native[procedure] += both.answered(procedure) - before
        return native, {what[2]: count for what, why, count in both.dispatcher.waited() if why == "file not in use"}

    native, waited = run(kind, tmp_path, scenario)
    wanted = (GETATTR, LOOKUP, ACCESS)
    assert all(native[procedure] > 5 for procedure in wanted), f"hardly anything was answered natively: {native}"
    if kind == "disk":
        # Opening by handle may have to read the disk: a worker's.
        assert waited["GETATTR"] == native[GETATTR]
        assert waited["ACCESS"] == native[ACCESS]


def size_in(reply):
    """What a reply to GETATTR tells."""
    return int.from_bytes(reply[44:52])


LEAVES = {
    "by a sweep": lambda nodes, node: [nodes.sweep() for _ in range(IDLE_SWEEPS + 1)],
    "by an eviction": lambda nodes, node: nodes.evict(100),
    "when it is forgotten": lambda nodes, node: nodes.forget(node()),
    "when it is nobody's": lambda nodes, node: nodes.disown(node()),
    "at the end": lambda nodes, node: nodes.clear(),
}


@pytest.mark.parametrize("how", LEAVES)
def test_the_file_of_the_call_before_may_have_gone(tmp_path, how):
    """Going on with a file takes no search for it. Once its record has gone, it is searched for again."""

    async def scenario(both):
        found, _ = await handles(both, random.Random(1))
        for _ in range(2):
            before = await both.native.call(GETATTR, found[0])
        nodes = both.service.nodes
        (there,) = [node for node in nodes.all() if opaque(node.handle) == found[0]]
        record, size = weakref.ref(there), os.stat(f"/proc/self/fd/{there.fd}").st_size
        assert size == size_in(before)
        del there
        LEAVES[how](nodes, record)
        gc.collect()
        assert record() is None, "something else has it"
        os.truncate(os.path.join(both.path, "f0"), 4321)
        after = await both.native.call(GETATTR, found[0])
        assert size_in(after) == 4321
        for handle in found[1:]:
            assert (await both.native.call(GETATTR, handle))[4:] == (await both.general.call(GETATTR, handle))[4:]

    run("memory", tmp_path, scenario)


def test_what_leads_nowhere_is_told_natively(tmp_path):
    rng = random.Random(1)

    async def scenario(both):
        found, _ = await handles(both, rng)
        os.unlink(os.path.join(both.path, "f1"))
        octets = found[0][4 : 4 + int.from_bytes(found[0][:4], "big")]
        changed = [bytes((*octets[:at], octets[at] ^ 1, *octets[at + 1 :])) for at in range(len(octets))]
        for wrong in (found[1], *map(opaque, changed), opaque(octets[:-1]), opaque(octets + b"x"), opaque(b"\1" * 23)):
            forget_all(both.service)
            before = both.answered(GETATTR)
            assert await both.native.call(GETATTR, wrong) == await both.general.call(GETATTR, wrong)
            assert both.answered(GETATTR) == before + 1
        assert (await both.native.call(GETATTR, found[1]))[-4:] == STALE
        # It was not left open either.
        assert not any("f1" in os.readlink(f"/proc/self/fd/{each.fd}") for each in both.service.nodes.all())

    run("memory", tmp_path, scenario)


def test_a_caller_does_not_open_by_handle(tmp_path):
    """The thread is still the last caller when a file has to be found again, and callers may not do that."""
    rng = random.Random(2)

    async def scenario(both):
        found, root = await handles(both, rng)
        os.chmod(os.path.join(both.path, "f2"), 0o644)
        calls = [(LOOKUP, root + name("f2")), (GETATTR, found[3]), (LOOKUP, root + name("f2")), (GETATTR, found[4])]
        expected = [await both.general.call(procedure, arguments, (1001, 1001)) for procedure, arguments in calls]
        forget_all(both.service)
        for procedure, arguments in calls:  # in one segment, so that the thread is not made its own in between
            both.native.send(procedure, arguments, (1001, 1001))
        assert [(await both.native.reply())[4:] for _ in calls] == expected
        assert [both.answered(GETATTR), both.answered(LOOKUP)] == [2, 2]

    run("memory", tmp_path, scenario)


def test_more_files_than_descriptors_in_turn(tmp_path):
    """The oldest is closed for each that is opened."""
    rng = random.Random(3)

    async def scenario(both):
        found, _ = await handles(both, rng)
        expected = [await both.general.call(GETATTR, handle) for handle in found]
        both.service.nodes.limit = 3
        forget_all(both.service)
        open_files = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            assert [await both.native.call(GETATTR, handle) for handle in found] == expected
            assert len(both.service.nodes.recent) <= 3
            assert len(os.listdir("/proc/self/fd")) <= open_files + 3
        assert both.answered(GETATTR) == 20 * len(found)

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_nfs4_too(kind, tmp_path):
    async def scenario(both):
        (both.path / "file").write_bytes(b"data")
        handle = await handle_of(both, b"file")
        service: FileService = both.server.nfs4.service
        for operations in ([v4.putfh(handle), v4.getattr_()], [v4.putfh(handle), v4.access(0x3F), p.OP_GETFH]):
            general = await both.general.call(None, both.message(1, *operations, caller=(1001, 1001)))
            forget_all(service)
            before = both.answered
            native = await both.native.call(None, both.message(0, *operations, caller=(1001, 1001)))
            assert v4.comparable(native) == v4.comparable(general)
            assert both.answered - before == 1

    with vfs_support.directory_on(kind, tmp_path) as path:
        run4(path, tmp_path, 1, scenario)


def record(number):
    """A node without a descriptor."""
    mount = SimpleNamespace(
        export=None, inline=True, caching=False, fine=False, mnt_id=0, device=(0, 0), fsid=(0, 0), write_back=None,
        by_place=False, lane=0, stored_names=None, key_prefix=b"",
    )  # fmt: skip
    return Node(b"%d" % number, Inode(b"%d" % number), mount, -1, FileType.REG, None)


def test_what_is_in_use_is_evicted_last_and_eviction_takes_few_steps():
    table = NodeTable(100, 100)
    for number in range(100):
        table.add(record(number))
    table.sweep()
    for number in range(10):
        table.find(b"%d" % number)
    table.evict(90)
    assert sorted(table.recent) == [b"%d" % number for number in range(10)]
    # All in use: no more steps than uses.
    for number in range(10, 100):
        table.add(record(number))
    steps = 0

    class Counting(type(table.recent)):
        def popitem(self, last=True):
            nonlocal steps
            steps += 1
            return super().popitem(last)

    table.recent = Counting(table.recent)
    for number in range(100, 1100):
        table.add(record(number))
    assert len(table.recent) == 100
    assert steps <= 1000 + 1000 + 110


def test_tables_lead_to_records_as_long_as_these_exist():
    table = NodeTable(1, 1)
    first, second = record(1), record(2)
    for node in (first, second):
        table.add(node)
    assert list(table.recent) == [b"2"]
    assert table.find(b"1") is first  # and is kept again
    assert len(table) == 2
    table.clear()
    assert table.all() == [first, second]
    del first, node
    assert table.find(b"1") is None
    assert table.all() == [second]
    # One that was disowned does not take its successor along.
    table.disown(second)
    assert table.find(b"2") is None
    successor = record(2)
    table.add(successor)
    del second
    assert table.find(b"2") is successor
    inode = table.inode(b"key")
    assert table.inode(b"key") is inode is table.known_inode(b"key")
    table.inode(b"another")  # the limit is one
    assert list(table.remembered) == [b"another"]
    assert table.known_inode(b"key") is inode
    del inode
    assert table.known_inode(b"key") is None


def test_records_outlive_their_table():
    table = NodeTable(10, 10)
    node, inode = record(1), table.inode(b"key")
    table.add(node)
    del table
    assert (node.handle, inode.key) == (b"1", b"key")


def test_a_record_in_a_cycle_leaves_its_table_when_the_cycle_is_collected():
    table = NodeTable(10, 10)
    inode = table.inode(b"key")
    inode.locks = inode
    table.clear()
    del inode
    gc.collect()
    assert table.known_inode(b"key") is None
