"""Acknowledged stable data is on the disk, waiting calls share an fsync, and its errors are reported."""

import asyncio
import errno
import os
import subprocess

import pytest

from nfsd.vfs import flushes, stable
from nfsd.vfs.executor import Chain
from nfsd.vfs.serial import Serial
from nfsd.vfs.syncing import GroupSync
from nfsd.vfs.syscalls import SYS_FSYNC
from nfsd.vfs.types import FileType, SetAttributes
from tests.support.native_files import DATA_SYNC, FILE_SYNC, UNSTABLE, NativeFiles
from tests.unit.test_nfs3_native_names import REMOVE, removal
from tests.unit.test_vfs_mounts import mounted
from tests.unit.test_waiting_calls import on_disk, stalled, until, waiting
from tests.unit.vfs_support import ROOT, run, write_file

LONG = 0.02
"""Seconds, of an fsync that others are waited for afterwards."""


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "export"
    place.mkdir()
    return place


@pytest.fixture
def synced(monkeypatch):
    """The paths fsync is called for, in order."""
    paths = []

    class Recording(Chain):
        def add(self, number, *arguments, **flags):
            if number == SYS_FSYNC:
                paths.append(os.path.basename(os.readlink(f"/proc/self/fd/{arguments[0]}")))
            return super().add(number, *arguments, **flags)

    def record(descriptor):
        paths.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(stable, "Chain", Recording)
    monkeypatch.setattr(flushes, "on_fsync", record)
    return paths


async def everything(service, root, synced):
    """Each durable operation once; what it synchronised."""
    done = {}

    async def step(name, operation):
        synced.clear()
        result = await operation
        done[name] = sorted(synced)
        return result

    node = (await step("create", service.create(ROOT, root, b"f", SetAttributes(mode=0o600))))[0]
    files = NativeFiles(service)
    await step("unstable", files.write(ROOT, node, 0, b"data", UNSTABLE))
    await step("commit", files.commit(ROOT, node))
    await step("file_sync", files.write(ROOT, node, 0, b"data", FILE_SYNC))
    await step("data_sync", files.write(ROOT, node, 0, b"data", DATA_SYNC))
    await step("setattr", service.set_attributes(ROOT, node, SetAttributes(mode=0o640)))
    await step("truncate", service.set_attributes(ROOT, node, SetAttributes(size=2)))
    directory = (await step("mkdir", service.mkdir(ROOT, root, b"d", SetAttributes())))[0]
    await step("symlink", service.symlink(ROOT, root, b"l", b"f", SetAttributes()))
    await step("mknod", service.mknod(ROOT, root, b"p", FileType.FIFO, (0, 0), SetAttributes()))
    await step("link", service.link(ROOT, node, root, b"g"))
    await step("rename", service.rename(ROOT, root, b"g", directory, b"g"))
    await step("remove", service.remove(ROOT, directory, b"g", directory_wanted=False))
    await step("rmdir", service.remove(ROOT, root, b"d", directory_wanted=True))
    await step("exclusive", service.create(ROOT, root, b"x", SetAttributes(), exclusive=True, verifier=b"12345678"))
    await step("again", service.create(ROOT, root, b"x", SetAttributes(), exclusive=True, verifier=b"12345678"))
    space = await service.open(ROOT, node, read=True, write=True)
    await step("allocate", service.allocate(space, 0, 65536))
    await step("deallocate", service.deallocate(space, 0, 4096))
    target = (await service.create(ROOT, root, b"c", SetAttributes(mode=0o600)))[0]
    copy = await service.open(ROOT, target, read=False, write=True)
    await step("copy", service.copy_for_a_while(service.begin_copy(space, 0, copy, 0, 4096)))
    await step("setxattr", service.set_xattr(ROOT, node, b"a", b"1"))
    await step("removexattr", service.remove_xattr(ROOT, node, b"a"))
    for one in (space, copy):
        one.release()
    return done


def test_what_each_operation_synchronises(place, tmp_path, synced):
    done = run(place, tmp_path, lambda service, root: everything(service, root, synced))
    assert done == {
        "create": ["export", "f"],
        "unstable": [],
        "commit": ["f"],
        "file_sync": ["f"],
        "data_sync": ["f"],
        "setattr": ["f"],
        "truncate": ["f"],
        "mkdir": ["d", "export"],
        "symlink": ["export"],
        "mknod": ["export"],
        "link": ["export", "f"],
        "rename": ["d", "export"],
        "remove": ["d"],
        "rmdir": ["export"],
        "exclusive": ["export", "x"],
        "again": ["export", "x"],
        "allocate": ["f"],
        "deallocate": ["f"],
        "copy": [],
        "setxattr": ["f"],
        "removexattr": ["f"],
    }


def test_an_async_export_synchronises_nothing(place, tmp_path, synced):
    done = run(place, tmp_path, lambda service, root: everything(service, root, synced), asynchronous=True)
    assert not any(done.values())


def test_names_that_may_come_later_leave_data_to_be_synchronised(place, tmp_path, synced):
    done = run(place, tmp_path, lambda service, root: everything(service, root, synced), asynchronous="names")
    data = {"commit", "file_sync", "data_sync", "allocate", "deallocate"}
    assert {name: files for name, files in done.items() if files} == {name: ["f"] for name in data}


def test_waiting_writers_share_an_fsync(place, tmp_path, synced):
    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        files = NativeFiles(service)
        synced.clear()
        await asyncio.gather(*(files.write(ROOT, node, 4096 * at, bytes(4096), FILE_SYNC) for at in range(40)))
        return len(synced)

    # How many depends on how writes and fsyncs overlap on this machine; one for each write would be none shared.
    assert 1 <= run(place, tmp_path, scenario) < 40


def test_who_asks_during_an_fsync_waits_for_the_next_one():
    async def scenario():
        started = []
        group = GroupSync()
        first = group.join(started.append)
        second = group.join(started.append)
        third = group.join(started.append)
        assert len(started) == 1
        started[0](0)
        assert await first == 0
        await until(lambda: len(started) == 2)
        assert not second.done()
        fourth = group.join(started.append)
        started[1](errno.EIO)
        assert [await second, await third] == [errno.EIO] * 2
        await until(lambda: len(started) == 3)
        assert not fourth.done()
        started[2](0)
        assert await fourth == 0
        assert not group.running

    asyncio.run(scenario())


@pytest.mark.parametrize("waiting", [0, 2])
def test_after_a_long_fsync_those_whom_it_was_for_are_waited_for(waiting):
    async def scenario():
        started = []
        group = GroupSync()
        first = group.join(started.append)
        ahead = [group.join(started.append) for _ in range(2)]
        started[0](0)
        await first
        await until(lambda: len(started) == 2)
        during = [group.join(started.append) for _ in range(waiting)]
        await asyncio.sleep(LONG)
        started[1](0)
        assert len(started) == 2
        again = [group.join(started.append)]
        assert len(started) == 2, "it has begun before all are there"
        again.append(group.join(started.append))
        assert len(started) == 3
        started[2](0)
        assert [await one for one in ahead + during + again] == [0] * (4 + waiting)
        await until(lambda: not group.running)

    asyncio.run(scenario())


@pytest.mark.parametrize("again", [0, 1])
def test_who_does_not_ask_again_is_not_waited_for_long(again):
    async def scenario():
        started = []
        group = GroupSync()
        callers = [group.join(started.append) for _ in range(3)]
        started[0](0)
        await until(lambda: len(started) == 2)
        await asyncio.sleep(LONG)
        started[1](0)
        callers += [group.join(started.append) for _ in range(again)]
        assert group.running
        if again:
            await until(lambda: len(started) == 3)
            started[2](0)
        await until(lambda: not group.running)
        assert [await one for one in callers] == [0] * len(callers)
        callers.append(group.join(started.append))
        assert len(started) == 3 + again, "nobody is there to be waited for"

    asyncio.run(scenario())


def test_all_who_were_waited_for_hear_of_an_fsync_that_cannot_begin():
    def fail(finished):
        raise RuntimeError("not now")

    async def scenario():
        started = []
        group = GroupSync()
        callers = [group.join(started.append) for _ in range(3)]
        started[0](0)
        await until(lambda: len(started) == 2)
        await asyncio.sleep(LONG)
        started[1](0)
        again = [group.join(started.append), group.join(fail)]  # all are there
        assert [await one for one in callers] == [0] * 3
        assert [await one for one in again] == [errno.EIO] * 2
        later = group.join(started.append)
        await until(lambda: len(started) == 3)
        started[2](0)
        assert await later == 0

    asyncio.run(scenario())


def test_one_caller_alone_waits_for_nobody():
    async def scenario():
        started = []
        group = GroupSync()
        for number in range(3):
            caller = group.join(started.append)
            assert len(started) == number + 1
            await asyncio.sleep(LONG)
            started[number](0)
            assert await caller == 0
        assert not group.running

    asyncio.run(scenario())


def test_turns_are_taken_in_order_and_survive_cancellation():
    async def scenario():
        serial, order = Serial(), []

        async def take(number):
            await serial.acquire()
            order.append(number)
            await asyncio.sleep(0)
            serial.release()

        tasks = [asyncio.create_task(take(number)) for number in range(6)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 1, 3, 4, 5]
        # Cancelled at the very moment the turn is handed over.
        await serial.acquire()
        waiting = asyncio.create_task(take(6))
        await asyncio.sleep(0)
        serial.release()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(take(7), 5)
        assert order == [0, 1, 3, 4, 5, 7]

    asyncio.run(scenario())


def test_a_cancelled_call_leaves_no_descriptor_and_no_turn(place, tmp_path):
    async def scenario(service, root):
        for number in range(30):
            task = asyncio.create_task(service.create(ROOT, root, b"%d" % number, SetAttributes()))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(write_file(service, root, b"last"), 10)

    before = set(os.listdir("/proc/self/fd"))
    run(place, tmp_path, scenario)
    assert set(os.listdir("/proc/self/fd")) == before


def test_renames_in_opposite_directions_do_not_deadlock(place, tmp_path):
    async def scenario(service, root):
        one, _, _ = await service.mkdir(ROOT, root, b"one", SetAttributes())
        two, _, _ = await service.mkdir(ROOT, root, b"two", SetAttributes())
        for number in range(20):
            await write_file(service, one, b"a%d" % number)
            await write_file(service, two, b"b%d" % number)
        moves = []
        for number in range(20):
            moves.append(service.rename(ROOT, one, b"a%d" % number, two, b"a%d" % number))
            moves.append(service.rename(ROOT, two, b"b%d" % number, one, b"b%d" % number))
            moves.append(service.create(ROOT, one, b"c%d" % number, SetAttributes()))
        await asyncio.wait_for(asyncio.gather(*moves), 30)
        assert len(os.listdir(place / "one")) == 40
        assert len(os.listdir(place / "two")) == 20

    run(place, tmp_path, scenario, asynchronous=True)


def test_a_failing_disk_is_reported_and_changes_the_write_verifier(tmp_path):
    thin, place = tmp_path / "thin", tmp_path / "export"
    thin.mkdir()
    place.mkdir()
    # A disk that promises more than there is behind it: write-back fails with EIO.
    with mounted(str(thin), "-t", "tmpfs", "-o", "size=12m", "none"):
        with open(thin / "image", "wb") as file:
            file.truncate(128 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(thin / "image")], check=True)

        async def scenario(service, root):
            node = await write_file(service, root, b"f")
            files, verifier = NativeFiles(service), node.write_back.verifier
            await files.write_all(ROOT, node, 0, os.urandom(32 << 20))
            with pytest.raises(OSError, match=f"{os.strerror(errno.EIO)}|{os.strerror(errno.ENOSPC)}"):
                await files.commit(ROOT, node)
            assert node.write_back.verifier != verifier

        with mounted(str(place), "-o", "loop", str(thin / "image")):
            run(place, tmp_path, scenario)


def test_changes_that_are_made_in_one_turn_share_an_fsync(tmp_path, synced):
    """One for the first, which goes alone, and one for all the others, which a worker makes one behind the other."""

    counts = []

    async def scenario(both, node):
        names = [b"f%d" % number for number in range(17)]
        for each in names:
            open(os.path.join(os.fsencode(both.path), each), "wb").close()
        await both.native.call(REMOVE, removal(both.root, names.pop()))  # it has the directory opened
        synced.clear()
        async with stalled(both.service, both.root, tmp_path):
            for each in names:
                both.native.send(REMOVE, removal(both.root, each))
            await until(lambda: waiting(both) == 16)
        replies = [await both.native.reply() for _ in range(16)]
        assert [reply[24:28] for reply in replies] == [bytes(4)] * 16
        counts.append(len(synced))

    on_disk(tmp_path, scenario)
    assert 1 <= counts[0] <= 2
