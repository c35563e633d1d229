"""The data of small files goes to the disk together, before a commit of the journal that they share."""

import asyncio
import contextlib
import os
import re
import stat
import subprocess

import pytest

from nfsd.protocol.nfs3 import nfs_fh3, stable_how
from nfsd.vfs import flushes
from tests.nfs3_client import Nfs3Client, Nfs3Failure
from tests.support.seccomp import refuse
from tests.unit.nfs_client_support import Rig
from tests.unit.test_identity import in_child
from tests.unit.test_stable_write_errors import until
from tests.unit.test_vfs_commits import KINDS, made
from tests.unit.test_vfs_links_durability import disk, rebooted
from tests.unit.test_vfs_mounts import mounted

FILES = 24
LOST = 256 << 10
SYS_SYNC_FILE_RANGE = 277  # as x86-64 numbers it


@pytest.fixture
def synchronised(monkeypatch):
    """What is: the directory of a file system, for a commit of its journal, or a file."""
    found = []

    def note(descriptor):
        found.append("commit" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    monkeypatch.setattr(flushes, "on_fsync", note)
    return found


class Clients:
    """Some clients' NFSv3, and what the server has of the export."""

    def __init__(self, rig, clients, root, node):
        self.rig, self.clients, self.root, self.node = rig, clients, root, node

    async def file(self, name):
        return await self.clients[0].create(self.root, name)

    async def together(self, calls):
        """Have all of these wait for one commit, and begin it. Returns what they have come to."""
        ended = []
        self.node.mount.sync.join(ended.append)
        running = [asyncio.ensure_future(call) for call in calls]
        await until(lambda: len(self.node.mount.sync.waiting) == len(running))
        ended[0](0)
        return await asyncio.gather(*running, return_exceptions=True)


@contextlib.asynccontextmanager
async def clients_of(rig, count=2):
    directory = await rig.daemon.service.root(rig.daemon.service.exports.exports[0])
    clients = [await Nfs3Client.connect("127.0.0.1", rig.ports["tcp"]) for _ in range(count)]
    yield Clients(rig, clients, nfs_fh3(directory.handle), directory)
    for client in clients:
        await client.close()


async def write_and_commit(client, file, data):
    await client.write(file, 0, data)
    await client.commit(file)


async def write_stably(client, file, data):
    await client.write(file, 0, data, stable_how.FILE_SYNC)


@contextlib.contextmanager
def failing_disk(base, export, lost):
    """A file system with a journal on a disk that fails for the data of one file alone: the disk's place for it is on a
    tmpfs that is full."""
    thin = base / "thin"
    thin.mkdir()
    with mounted(str(thin), "-t", "tmpfs", "-o", "size=20m", "none"):
        with open(thin / "image", "wb") as file:
            file.truncate(16 << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", str(thin / "image")], check=True)
            os.posix_fallocate(file.fileno(), 0, 16 << 20)  # what was to be zeros has been a hole till now
        with mounted(str(export), "-o", "loop", str(thin / "image")):
            with open(export / lost, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, LOST)
            subprocess.run(["sync", "-f", str(export)], check=True)
            asked = subprocess.run(["filefrag", "-v", str(export / lost)], check=True, capture_output=True, text=True)
            [extent] = re.findall(r"^ +0: .*: +(\d+)\.\. *\d+: +(\d+):", asked.stdout, re.M)
            where, size = (int(blocks) * 4096 for blocks in extent)
            assert size == LOST
            punch = ["fallocate", "--punch-hole", "--offset", str(where), "--length", str(size), str(thin / "image")]
            subprocess.run(punch, check=True)
            with open(thin / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 12))
            yield


def content(number):
    return bytes([number + 1]) * (5000 + number)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [write_and_commit, write_stably])
def test_what_many_have_written_survives_a_power_cut(tmp_path, kind, write, synchronised):
    rig = Rig(tmp_path)

    async def main():
        async with clients_of(rig) as peers:
            files = [await peers.file(b"%d" % number) for number in range(FILES)]
            synchronised.clear()
            told = await peers.together(
                write(peers.clients[number % 2], file, content(number)) for number, file in enumerate(files)
            )
            assert not [one for one in told if isinstance(one, Exception)]
            assert synchronised.count("commit") == 1
            with rebooted(image, tmp_path) as place:
                for number in range(FILES):
                    assert (place / str(number)).read_bytes() == content(number)

    with disk(tmp_path, rig.export, make=made(kind)) as image:
        subprocess.run(["sync", "-f", str(rig.export)], check=True)
        (rig.export / "unsafe").write_bytes(b"data")
        with rebooted(image, tmp_path) as place:
            assert not (place / "unsafe").exists(), "this disk writes back on its own: nothing is shown"
        rig.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_overwritten_survives_a_power_cut(tmp_path, kind):
    """Nothing of it is in the journal: the commit flushes it from the disk all the same."""
    rig = Rig(tmp_path)

    async def main():
        async with clients_of(rig) as peers:
            files = [await peers.clients[0].lookup(peers.root, b"%d" % number) for number in range(FILES)]
            told = await peers.together(
                write_and_commit(peers.clients[0], file, content(number)) for number, file in enumerate(files)
            )
            assert not [one for one in told if isinstance(one, Exception)]
            with rebooted(image, tmp_path) as place:
                for number in range(FILES):
                    assert (place / str(number)).read_bytes() == content(number)

    with disk(tmp_path, rig.export, make=made(kind)) as image:
        for number in range(FILES):
            (rig.export / str(number)).write_bytes(bytes(5000 + number))
        subprocess.run(["sync", "-f", str(rig.export)], check=True)
        rig.run(main)


def test_only_who_has_lost_data_is_told(tmp_path):
    """A disk that fails for some of the files."""
    rig = Rig(tmp_path)

    async def main():
        async with clients_of(rig, 1) as peers:
            [client] = peers.clients
            lost = await client.lookup(peers.root, b"f")
            kept = [await peers.file(b"kept%d" % number) for number in range(4)]
            verifier = (await client.write(lost, 0, bytes(LOST))).verf
            told = await peers.together(
                [client.commit(lost), *(write_stably(client, file, content(0)) for file in kept)]
            )
            assert isinstance(told[0], Nfs3Failure)
            assert told[1:] == [None] * 4
            assert (await client.write(kept[0], 0, b"x")).verf != verifier
            for number in range(4):
                assert (rig.export / f"kept{number}").read_bytes()[1:] == content(0)[1:]
            assert await client.commit(lost)  # it is over

    with failing_disk(tmp_path, rig.export, "f"):
        rig.run(main)


def test_a_large_file_keeps_nobody_waiting(tmp_path, synchronised):
    rig = Rig(tmp_path)

    async def main():
        async with clients_of(rig) as peers:
            large, small = await peers.file(b"large"), await peers.file(b"small")
            await peers.clients[0].write(large, 256 << 10, b"its end")
            ended = []
            peers.node.mount.sync.join(ended.append)  # a commit that does not end
            await peers.clients[0].commit(large)
            committing = asyncio.ensure_future(write_and_commit(peers.clients[1], small, b"data"))
            await until(lambda: peers.node.mount.sync.waiting)
            assert not committing.done()
            ended[0](0)
            await committing

    with disk(tmp_path, rig.export):
        rig.run(main)


def test_only_so_many_wait_for_one_commit(tmp_path):
    """The others go by themselves, so that nobody waits for ever more data of others."""
    rig = Rig(tmp_path)
    most, more = 64, 20

    async def main():
        async with clients_of(rig) as peers:
            files = [await peers.file(b"%d" % number) for number in range(most + more)]
            ended = []
            peers.node.mount.sync.join(ended.append)
            callers = [
                asyncio.ensure_future(write_and_commit(peers.clients[0], file, content(number)))
                for number, file in enumerate(files)
            ]
            await until(lambda: sum(caller.done() for caller in callers) == more)
            assert len(peers.node.mount.sync.waiting) == most
            ended[0](0)
            await asyncio.gather(*callers)

    with disk(tmp_path, rig.export):
        rig.run(main)


def test_a_file_that_grows_while_it_waits_is_no_small_one(tmp_path):
    """What is committed then has an fsync of its own, behind the one that others share."""
    rig = Rig(tmp_path)

    async def main():
        async with clients_of(rig) as peers:
            grows, other = await peers.file(b"grows"), await peers.file(b"other")
            ended = []
            peers.node.mount.sync.join(ended.append)
            callers = [
                asyncio.ensure_future(write_and_commit(peers.clients[number], file, content(number)))
                for number, file in enumerate((grows, other))
            ]
            await until(lambda: len(peers.node.mount.sync.waiting) == 2)
            await peers.clients[0].write(grows, 5000, bytes(LOST) + b"its end")
            callers.append(asyncio.ensure_future(peers.clients[0].commit(grows)))
            inode = (await rig.daemon.service.resolve(grows.data)).inode
            await until(lambda: inode.sync.waiting)
            ended[0](0)
            await asyncio.gather(*callers)
            with rebooted(image, tmp_path) as place:
                assert (place / "grows").read_bytes() == content(0) + bytes(LOST) + b"its end"
                assert (place / "other").read_bytes() == content(1)

    with disk(tmp_path, rig.export) as image:
        rig.run(main)


def test_one_file_alone_needs_no_commit_of_its_own(tmp_path, synchronised):
    """Its fsync does, with no other file made for it."""
    rig = Rig(tmp_path)

    async def main():
        async with clients_of(rig) as peers:
            file = await peers.file(b"f")
            for number in range(100):
                with contextlib.suppress(OSError):
                    (rig.export / f"x{number}").touch()  # until there is no inode for another
            await write_and_commit(peers.clients[0], file, content(1))
            with rebooted(image, tmp_path) as place:
                assert (place / "f").read_bytes() == content(1)

    with disk(tmp_path, rig.export, make=(*KINDS["ext4"], "-N", "16")) as image:
        rig.run(main)


@pytest.mark.parametrize("lacks", ["inodes", "sync_file_range"])
def test_where_it_cannot_be_done_together(tmp_path, lacks):
    """Each file is synchronised by itself."""
    rig = Rig(tmp_path)

    async def main():
        async with clients_of(rig, 1) as peers:
            files = [await peers.file(b"%d" % number) for number in range(3)]
            for number in range(100 if lacks == "inodes" else 0):
                with contextlib.suppress(OSError):
                    (rig.export / f"x{number}").touch()
            told = await peers.together(
                write_and_commit(peers.clients[0], file, content(number)) for number, file in enumerate(files)
            )
            assert not [one for one in told if isinstance(one, Exception)]
            with rebooted(image, tmp_path) as place:
                for number in range(3):
                    assert (place / str(number)).read_bytes() == content(number)

    def run():
        if lacks == "sync_file_range":
            refuse(SYS_SYNC_FILE_RANGE)
        rig.run(main)

    with disk(tmp_path, rig.export, make=(*KINDS["ext4"], "-N", "16")) as image:
        in_child(run)


def loop_device(stack, file, size):
    with file.open("wb") as made:
        made.truncate(size)
    device = subprocess.run(
        ["losetup", "--find", "--show", str(file)], check=True, capture_output=True, text=True
    ).stdout.strip()
    stack.callback(subprocess.run, ["losetup", "--detach", device], check=True)
    return device


def test_a_journal_on_another_disk_flushes_no_data(tmp_path):
    """So each file is synchronised by itself there."""
    rig = Rig(tmp_path)

    async def main():
        async with clients_of(rig) as peers:
            assert not peers.node.mount.flushes_data
            await write_and_commit(peers.clients[0], await peers.file(b"f"), b"data")

    with contextlib.ExitStack() as stack:
        journal = loop_device(stack, tmp_path / "journal", 16 << 20)
        data = loop_device(stack, tmp_path / "data", 64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "journal_dev", journal], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-J", f"device={journal}", data], check=True)
        with mounted(str(rig.export), data):
            rig.run(main)
