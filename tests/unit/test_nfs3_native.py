"""Native answers are true of the files, whatever has happened to them, on a transport's own path and as a general
call."""

import asyncio
import contextlib
import os
import random
import struct

import pytest

from nfsd.protocol.nfs3 import NFS_PROGRAM
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.tcp import TcpListener
from tests.support import nfs3_truth
from tests.support.general_calls import GeneralCalls
from tests.support.nfs4_native import TRIES
from tests.unit import vfs_support
from tests.unit.test_vfs_mounts import command, unmounted

GETATTR, LOOKUP, ACCESS, READ, WRITE, COMMIT = 1, 3, 4, 6, 7, 21
CALLERS = ((0, 0), (1001, 1001), (1002, 1002), (1002, 1001))


class Client:
    """Raw calls over one TCP connection; replies as octets."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.xid = reader, writer, 0

    async def call(self, procedure, arguments, caller=(0, 0), xid=None):
        self.send(procedure, arguments, caller, xid)
        return (await self.reply())[4:]

    def send(self, procedure, arguments, caller=(0, 0), xid=None):
        self.xid += 1
        xid = self.xid if xid is None else xid
        credential = struct.pack(">6I", 7, 0, *caller, 0, 0)[:20]
        head = struct.pack(">8I", xid, 0, 2, NFS_PROGRAM, 3, procedure, 1, len(credential))
        message = head + credential + bytes(8) + arguments
        self.writer.write(struct.pack(">I", 1 << 31 | len(message)) + message)

    async def reply(self):
        (mark,) = struct.unpack(">I", await self.reader.readexactly(4))
        return await self.reader.readexactly(mark & 0x7FFFFFFF)


class Both:
    """One file service behind two servers: one answers calls where they arrive, the other one as general calls."""

    def __init__(self, service, root, path, delegations=None):
        self.service, self.root, self.path = service, root, path
        pool, loop = Pool(64 << 20), asyncio.get_running_loop()
        programs = [
            Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(service, service.exports, delegations=delegations)})
        ]
        natives = [{(NFS_PROGRAM, 3): Nfs3Procedures(service, delegations=delegations)} for _ in range(2)]
        self.dispatcher, general = Dispatcher(programs, natives=natives[0]), GeneralCalls(programs, natives=natives[1])
        self.listeners = [TcpListener(self.dispatcher, pool, loop), TcpListener(general, pool, loop)]
        for listener in self.listeners:
            listener.listen("127.0.0.1", 0)

    async def __aenter__(self):
        self.native, self.general = [
            Client(*await asyncio.open_connection("127.0.0.1", listener.address[1])) for listener in self.listeners
        ]
        return self

    async def __aexit__(self, *_):
        for client in (self.native, self.general):
            client.writer.close()
        for listener in self.listeners:
            listener.close()

    def answered(self, procedure):
        """Calls of a procedure that were answered natively so far."""
        return self.dispatcher.rows[NFS_PROGRAM, 3, procedure].native_calls

    def declined(self):
        """Calls that were declined natively so far, whatever they were."""
        return sum(count for *_, count in self.dispatcher.declined())

    async def same(self, procedure, arguments, caller=(0, 0)):
        """The one answer of both, to a call that changes nothing (but perhaps, the first time, atime)."""
        await self.native.call(procedure, arguments, caller)
        for _ in range(TRIES):
            general = await self.general.call(procedure, arguments, caller)
            native = await self.native.call(procedure, arguments, caller)
            if native == general:
                break
        assert native == general
        return general


def handle(node):
    return struct.pack(">I", len(node.handle)) + node.handle + bytes(-len(node.handle) & 3)


def name(text):
    octets = text.encode()
    return struct.pack(">I", len(octets)) + octets + bytes(-len(octets) & 3)


def run(kind, tmp_path, scenario, delegations=None, **options):
    with vfs_support.directory_on("memory" if kind == "memory" else "disk", tmp_path) as path:

        async def main(service, root):
            if kind == "slow":  # every look at a file may wait
                root.mount.caching = False  # of the nodes that are met from now on
                service.nodes.forget(root)
                root = await service.resolve(root.handle)
            async with Both(service, root, path, delegations) as both:
                return await scenario(both)

        options.setdefault("squash", "none")
        return vfs_support.run(path, tmp_path, main, **options)


async def files(both, rng, count=6):
    """Files of several sizes, owners and modes."""
    nodes = []
    for number in range(count):
        node = await vfs_support.write_file(
            both.service, both.root, f"f{number}".encode(), rng.randbytes(rng.choice((0, 1, 4095, 9000, 70000)))
        )
        path = os.path.join(both.path, f"f{number}")
        os.chown(path, *rng.choice(CALLERS))
        os.chmod(path, rng.choice((0o600, 0o644, 0o666, 0o444, 0o711, 0o000)))
        nodes.append(node)
    return nodes


def random_call(rng, both, nodes):
    """(node, procedure, arguments) of something that changes nothing."""
    node = rng.choice([*nodes, both.root])
    procedure = rng.choice((GETATTR, LOOKUP, ACCESS, READ, READ, READ))
    if procedure == LOOKUP:
        node = rng.choice((both.root, both.root, both.root, node))
        return (
            node,
            LOOKUP,
            handle(node) + name(rng.choice(("f0", "f1", "f5", "none", ".", "..", "sub", "a/b", "", "x" * 256))),
        )
    if procedure == ACCESS:
        return node, ACCESS, handle(node) + struct.pack(">I", rng.choice((0x3F, 0x1F, 1, 0, 0xFFFFFFFF)))
    if procedure == READ:
        offset = rng.choice((0, 0, 1, 4096, 65536, 69999, 70000, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1))
        return (
            node,
            READ,
            handle(node) + struct.pack(">QI", offset, rng.choice((0, 1, 3, 100, 4096, 8192, 65536, 1 << 20, 1 << 31))),
        )
    return node, GETATTR, handle(node)


def disturb(rng, both):
    """Something a local process might do meanwhile."""
    path = os.path.join(both.path, f"f{rng.randrange(6)}")
    with contextlib.suppress(FileNotFoundError):
        match rng.randrange(5):
            case 0:
                os.chmod(path, rng.choice((0o600, 0o644, 0o666, 0o444, 0o000)))
            case 1:
                os.chown(path, *rng.choice(CALLERS))
            case 2:
                os.truncate(path, rng.choice((0, 5, 4096, 100_000)))
            case 3:
                with open(path, "ab") as file:
                    file.write(rng.randbytes(rng.randrange(5000)))
            case 4:
                os.rename(path, os.path.join(both.path, f"f{rng.randrange(6)}"))


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_among_local_changes(kind, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        nodes = await files(both, rng)
        for step in range(400):
            if step % 5 == 0:
                disturb(rng, both)
            node, procedure, arguments = random_call(rng, both, nodes)
            caller = rng.choice(CALLERS)
            reply = await both.same(procedure, arguments, caller)
            assert reply[20:] == (nfs3_truth.results(node, procedure, arguments, caller) or reply[20:])
        return [both.answered(procedure) for procedure in (GETATTR, LOOKUP, ACCESS, READ)]

    counts = run(kind, tmp_path, scenario)
    assert all(count > 5 for count in counts), f"hardly anything was answered natively: {counts}"


@pytest.mark.parametrize("seed", range(4))
def test_random_writes_do_what_the_kernel_does(tmp_path, seed):
    """Both files have what a third one has, to which the kernel has written the same."""
    rng = random.Random(seed)

    def outcome(mode, owner, caller, size, offset, data, stable):
        """None for GARBAGE_ARGS, or a status."""
        if stable > 2:
            return None
        if size != len(data):
            return 22  # NFS3ERR_INVAL
        if offset > (1 << 63) - 1 - size:
            return 27  # NFS3ERR_FBIG
        shift = 6 if caller[0] == owner[0] else 3 if caller[1] == owner[1] else 0
        # Section 4.4: an owner may write whatever the mode says.
        may = caller[0] in (0, owner[0]) or mode >> shift & 2
        return 0 if may else 13  # NFS3ERR_ACCES

    def comparable(reply):
        """The reply without what differs between two files and two moments."""
        if reply[20:24] != bytes(4):
            return reply[:24]
        body = bytearray(reply[24:])
        before, after, rest = body[4:12], body[32:116], body[116:]
        return reply[:24] + bytes(before + after[:52] + rest)

    async def scenario(both):
        nodes = [
            await vfs_support.write_file(both.service, both.root, each, b"x" * 5000, mode=0o666)
            for each in (b"a", b"b", b"c")
        ]
        for step in range(300):
            data = rng.randbytes(rng.choice((0, 1, 3, 100, 4096, 70000)))
            size = len(data) + rng.choice((0, 0, 0, 0, 0, 1))
            offset = rng.choice((0, 1, 4096, 10_000, 1 << 16, (1 << 63) - 10, 1 << 63))
            stable = rng.choice((0, 0, 0, 0, 1, 2, 3))
            tail = struct.pack(">QIII", offset, size, stable, len(data)) + data + bytes(-len(data) & 3)
            caller = rng.choice(CALLERS)
            if step % 20 == 0:
                mode, owner = rng.choice((0o666, 0o600, 0o2755, 0o4777)), rng.choice(CALLERS)
                for each in ("a", "b"):
                    os.chown(os.path.join(both.path, each), *owner)
                    os.chmod(os.path.join(both.path, each), mode)
            first = await both.native.call(WRITE, handle(nodes[0]) + tail, caller)
            second = await both.general.call(WRITE, handle(nodes[1]) + tail, caller)
            assert comparable(first) == comparable(second)
            status = outcome(mode, owner, caller, size, offset, data, stable)
            assert first[16:24] == (struct.pack(">I", 4) if status is None else struct.pack(">II", 0, status))
            if status == 0:
                assert first[-16:-8] == struct.pack(">II", size, stable if size else 2)
                with open(os.path.join(both.path, "c"), "r+b") as third:
                    os.pwrite(third.fileno(), data, offset)
            results = [os.stat(os.path.join(both.path, each)) for each in ("a", "b", "c")]
            assert results[0].st_size == results[1].st_size == results[2].st_size
            assert results[0].st_mode == results[1].st_mode
        contents = []
        for each in ("a", "b", "c"):
            with open(os.path.join(both.path, each), "rb") as file:
                contents.append(file.read(1 << 21))  # beyond, the last octets may be holes away
        assert contents[0] == contents[1] == contents[2]
        return both.answered(WRITE)

    assert run("memory", tmp_path, scenario) > 20


def test_a_retransmitted_write_is_not_executed_again(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"old", mode=0o666)

        def write(data):
            return handle(node) + struct.pack(">QIII", 0, len(data), 0, len(data)) + data

        await both.native.call(WRITE, write(b"warm"), xid=1)
        first = await both.native.call(WRITE, write(b"AAAA"), xid=2)
        await both.native.call(WRITE, write(b"BBBB"), xid=3)
        assert await both.native.call(WRITE, write(b"AAAA"), xid=2) == first
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == b"BBBB"
        return both.answered(WRITE)

    assert run("memory", tmp_path, scenario) >= 2


def test_many_calls_in_one_segment_are_all_answered(kind, tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(range(256)) * 1024, mode=0o666)
        await both.native.call(READ, handle(node) + struct.pack(">QI", 0, 10))
        wanted = {}
        for number in range(1000):
            offset, count = number * 37 % 200_000, number * 91 % 70_000 + 1
            both.native.send(READ, handle(node) + struct.pack(">QI", offset, count), xid=number)
            wanted[number] = (bytes(range(256)) * 1024)[offset : offset + count]
            if number % 3 == 0:
                both.native.send(GETATTR, handle(node), xid=10_000 + number)
                wanted[10_000 + number] = None
        while wanted:
            reply = await both.native.reply()
            xid, expected = struct.unpack(">I", reply[:4])[0], None
            expected = wanted.pop(xid)
            if expected is not None:
                assert reply[24 + 104 :][: len(expected)] == expected
                assert len(reply) == 24 + 104 + len(expected) + (-len(expected) & 3)

    run(kind, tmp_path, scenario)


def test_a_peer_that_takes_no_replies_is_not_answered_for_ever(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", bytes(1 << 20), mode=0o666)
        await both.native.call(READ, handle(node) + struct.pack(">QI", 0, 10))
        both.native.writer.transport.pause_reading()
        for _ in range(200):
            both.native.send(READ, handle(node) + struct.pack(">QI", 0, 1 << 20))
        for _ in range(50):
            await asyncio.sleep(0.01)
        (connection,) = both.listeners[0].connections
        waiting = connection.stream.queued
        both.native.writer.transport.resume_reading()
        for _ in range(200):
            assert len(await both.native.reply()) == 24 + 104 + (1 << 20)
        return waiting

    assert run("memory", tmp_path, scenario) < 24 << 20


def test_a_client_of_a_read_only_export_writes_nothing(tmp_path):
    async def scenario(both):
        with open(os.path.join(both.path, "a"), "wb") as file:
            file.write(b"kept")
        node, _ = await both.service.lookup(vfs_support.ROOT, both.root, b"a")
        arguments = handle(node) + struct.pack(">QIII", 0, 4, 0, 4) + b"lost"
        assert (await both.native.call(WRITE, arguments))[20:24] == struct.pack(">I", 30)
        await both.same(ACCESS, handle(node) + struct.pack(">I", 0x3F))

    run("memory", tmp_path, scenario, read_only=True)


def test_a_record_in_parts_counts_as_late_only_when_none_comes(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", mode=0o666)
        await both.native.call(GETATTR, handle(node))
        (connection,) = both.listeners[0].connections
        sent = bytearray()
        both.native.writer.write, write = sent.extend, both.native.writer.write
        for _ in range(8):
            both.native.send(GETATTR, handle(node))
        size = len(sent) // 8
        now = asyncio.get_running_loop().time()
        write(bytes(sent[: size // 2]))
        for number in range(7):
            # Half a record is there whenever the connection is looked at, never the same one.
            write(bytes(sent[size * number + size // 2 : size * (number + 1) + size // 2]))
            await both.native.reply()
            now += 50
            connection.check_time(now)
            assert not connection.closed
        connection.check_time(now + 50)
        connection.check_time(now + 70)
        assert connection.closed

    run("memory", tmp_path, scenario)


def test_what_was_answered_natively_keeps_no_file_system_mounted(tmp_path):
    async def scenario(both):
        inner = os.path.join(both.path, "inner")
        os.mkdir(inner)
        assert command("mount", "-t", "tmpfs", "-o", "size=4m", "none", inner)
        try:
            with open(os.path.join(inner, "file"), "wb") as file:
                file.write(b"content")
            directory, _ = await both.service.lookup(vfs_support.ROOT, both.root, b"inner")
            node, _ = await both.service.lookup(vfs_support.ROOT, directory, b"file")
            for _ in range(2):
                await both.native.call(LOOKUP, handle(directory) + name("file"))
                await both.native.call(READ, handle(node) + struct.pack(">QI", 0, 7))
            assert both.answered(LOOKUP)
            assert both.answered(READ)
            del directory, node
            for _ in range(5):
                both.service.sweep()
            # The connection is still there; what it was answered from is not in use any more.
            assert await unmounted(inner)
        except BaseException:
            command("umount", "-l", inner)
            raise

    run("memory", tmp_path, scenario, cross_mounts=True)


class Delegated:
    """One file is delegated, for reading or writing, and does not come back."""

    def __init__(self):
        self.key, self.write, self.asked = b"", False, 0

    def may_stand(self, directory):
        return bool(self.key)

    async def cleared(self, file_key, *, write):
        self.asked += file_key == self.key  # the directory is asked about as well
        return file_key != self.key or not (write or self.write)

    def hold(self, file_key):
        return contextlib.nullcontext()


def test_a_delegation_is_recalled_before_its_file_is_written_or_read(tmp_path):
    delegated = Delegated()
    jukebox = struct.pack(">I", 10008)

    async def scenario(both):
        service, root = both.service, both.root
        nodes = [await vfs_support.write_file(service, root, each, b"x" * 99, mode=0o666) for each in (b"a", b"b")]
        read, write = struct.pack(">QI", 0, 99), struct.pack(">QIII", 0, 4, 0, 4) + b"data"
        for node in nodes:
            await both.native.call(READ, handle(node) + read)
            await both.native.call(WRITE, handle(node) + write)
        delegated.key, nodes[0].inode.delegated = nodes[0].key, 1
        assert (await both.native.call(WRITE, handle(nodes[0]) + write))[20:24] == jukebox
        assert (await both.native.call(READ, handle(nodes[0]) + read))[20:24] == bytes(4)
        delegated.write, nodes[0].inode.delegated = True, 2
        assert (await both.native.call(READ, handle(nodes[0]) + read))[20:24] == jukebox
        asked, answered = delegated.asked, both.answered(WRITE)
        assert (await both.native.call(WRITE, handle(nodes[1]) + write))[20:24] == bytes(4)
        assert (delegated.asked, both.answered(WRITE)) == (asked, answered + 1)

    run("memory", tmp_path, scenario, delegated)
