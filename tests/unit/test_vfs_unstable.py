"""A descriptor with unstable writes closes only after an fsync, whoever closes it; and never are there too many."""

import asyncio
import errno
import os
import subprocess
from pathlib import Path

import pytest

from nfsd.vfs import closing, flushes
from nfsd.vfs import stable as stable_module
from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_CLOSE, SYS_FSYNC
from nfsd.vfs.types import Credential
from nfsd.vfs.unstable import MOST_OF_ONE_FILE
from tests.support.native_files import FILE_SYNC, UNSTABLE, NativeFiles
from tests.unit.test_vfs_mounts import mounted
from tests.unit.vfs_support import ALICE, BOB, ROOT, run, write_file


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "export"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    return place


@pytest.fixture
def ended(monkeypatch):
    """(call, name) of each fsync and close of a file in the export, in order."""
    calls = []

    def recording(module):
        class Recording(Chain):
            def add(self, number, *arguments, **flags):
                if number in (SYS_FSYNC, SYS_CLOSE) and isinstance(arguments[0], int):
                    path = os.readlink(f"/proc/self/fd/{arguments[0]}")
                    if "/export/" in path:
                        calls.append(("fsync" if number == SYS_FSYNC else "close", os.path.basename(path)))
                return super().add(number, *arguments, **flags)

        monkeypatch.setattr(module, "Chain", recording)
        return Recording

    monkeypatch.setattr(stable_module, "Chain", recording(stable_module))

    def natively(call):
        def note(descriptor):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if "/export/" in path:
                calls.append((call, os.path.basename(path)))

        return note

    monkeypatch.setattr(flushes, "on_fsync", natively("fsync"))
    monkeypatch.setattr(closing, "on_close", natively("close"))
    return calls


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it does not happen")


async def sweep(service):
    for _ in range(8):
        service.sweep()
        await asyncio.sleep(0)


async def write(service, node, credential=ROOT, data=b"data", stable=UNSTABLE):
    await NativeFiles(service).write(credential, node, 0, data, stable)


async def made(service, root, ended, name=b"f"):
    """A file that is on the disk and closed but for its node."""
    node = await write_file(service, root, name, mode=0o666)
    await sweep(service)
    await until(lambda: not service.open_files._opens and not service.chains.closes(root.mount.lane))
    ended.clear()
    return node


def synchronised_first(ended, name="f"):
    calls = [call for call, which in ended if which == name]
    return "close" in calls and calls.index("fsync") < calls.index("close")


async def idle(service, node):
    await sweep(service)


async def pressure(service, node):
    service.shares.bound(1, 1)
    await write_file(service, await service.root(node.export), b"other")


async def permissions(service, node):
    os.chmod(f"/proc/self/fd/{node.fd}", 0o600)
    opened = await service.open(ROOT, node, read=False, write=True)  # another one; the first is never used again
    opened.release()
    await until(lambda: not len(service.unstable))


async def removed_export(service, node):
    await service.take_exports(())
    await sweep(service)


async def stop(service, node):
    await service.close()


@pytest.mark.parametrize("way", [idle, pressure, permissions, removed_export, stop])
def test_it_is_synchronised_before_it_closes(place, tmp_path, ended, way):
    async def scenario(service, root):
        node = await made(service, root, ended)
        await write(service, node)
        assert ended == []
        await way(service, node)
        await until(lambda: way is stop or ("close", "f") in ended)
        assert ("fsync", "f") in ended
        assert way is stop or synchronised_first(ended)

    run(place, tmp_path, scenario)


def test_one_that_was_held_when_it_left_the_cache(place, tmp_path, ended):
    async def scenario(service, root):
        node = await made(service, root, ended)
        opened = await service.open(ROOT, node, read=False, write=True)
        await write(service, node)
        await sweep(service)  # the cache forgets what somebody holds, too
        assert opened.cached is None
        assert ended == []
        opened.release()
        del opened
        await sweep(service)
        await until(lambda: ("close", "f") in ended)
        assert synchronised_first(ended)

    run(place, tmp_path, scenario)


def test_what_is_synchronised_closes_at_once(place, tmp_path, ended):
    async def scenario(service, root):
        node = await made(service, root, ended)
        for stable in (FILE_SYNC, UNSTABLE):
            await write(service, node, stable=stable)
            if stable == UNSTABLE:
                await NativeFiles(service).commit(ROOT, node)
            await sweep(service)
            await until(lambda: ("close", "f") in ended)
            assert [call for call in ended if call[1] == "f"] == [("fsync", "f"), ("close", "f")]
            ended.clear()

    run(place, tmp_path, scenario)


def test_an_async_export_synchronises_nothing(place, tmp_path, ended):
    async def scenario(service, root):
        node = await made(service, root, ended)
        await write(service, node)
        await sweep(service)
        await until(lambda: ("close", "f") in ended)
        assert ("fsync", "f") not in ended

    run(place, tmp_path, scenario, asynchronous=True)


@pytest.mark.parametrize("who", ["client", "local"])
def test_nothing_is_synchronised_of_a_removed_file(place, tmp_path, ended, who):
    async def scenario(service, root):
        node = await made(service, root, ended)
        await write(service, node)
        if who == "client":
            await service.remove(ROOT, root, b"f", directory_wanted=False)
        else:
            os.unlink(place / "f")
            await sweep(service)
        await until(lambda: any(call == "close" and name.startswith("f") for call, name in ended))
        assert not [call for call, name in ended if call == "fsync" and name.startswith("f")]
        assert len(service.unstable) == 0

    run(place, tmp_path, scenario)


def test_a_commit_asks_every_descriptor_with_unstable_writes(place, tmp_path, ended):
    async def scenario(service, root):
        node = await made(service, root, ended)
        await write(service, node, ALICE)
        await write(service, node, BOB)
        await NativeFiles(service).commit(ROOT, node)
        assert ended == [("fsync", "f")] * 2
        await NativeFiles(service).commit(ROOT, node)
        assert ended == [("fsync", "f")] * 3
        assert len(service.unstable) == 0

    run(place, tmp_path, scenario)


def test_a_commit_asks_them_all_however_many_there_are(place, tmp_path, ended):
    """WRITEs that wait for the file together are not counted before they are over."""
    many = MOST_OF_ONE_FILE + 6

    async def scenario(service, root):
        node = await made(service, root, ended)
        writers = [Credential(2000 + number, 2000) for number in range(many)]
        for writer in writers:
            (await service.open(writer, node, read=False, write=True)).release()
        await asyncio.gather(*(write(service, node, writer) for writer in writers))
        assert len(node.inode.unstable) == many
        ended.clear()
        await NativeFiles(service).commit(ROOT, node)
        assert ended == [("fsync", "f")] * many
        assert len(service.unstable) == 0

    run(place, tmp_path, scenario)


def test_a_commit_under_way_when_the_file_is_removed(place, tmp_path, ended):
    async def scenario(service, root):
        node = await made(service, root, ended)
        reader = await service.open(ROOT, node, read=True, write=False)  # to whom the file is still there
        opened = await service.open(ALICE, node, read=False, write=True)
        await write(service, node, ALICE)
        service.open_files.forget(opened)
        opened.release()
        del opened
        under_way = []
        earlier = node.inode.sync.join(under_way.append)
        committing = asyncio.ensure_future(NativeFiles(service).commit(ROOT, node))
        await until(lambda: node.inode.sync.waiting)
        await service.remove(ROOT, root, b"f", directory_wanted=False)
        under_way[0](0)
        await committing
        assert ("fsync", "f (deleted)") in ended
        assert await earlier == 0
        reader.release()

    run(place, tmp_path, scenario)


def test_one_file_has_a_bounded_number_of_them(place, tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", mode=0o666)
        for _ in range(3 * MOST_OF_ONE_FILE):
            os.chmod(place / "f", 0o666)  # what was open before is not used again
            await write(service, node)
            assert len(node.inode.unstable) <= MOST_OF_ONE_FILE

    run(place, tmp_path, scenario)


def test_who_writes_to_ever_more_files_waits_for_a_slow_disk(place, tmp_path):
    """Many more files than descriptors, and an fsync that does not end: the server keeps the rest of its descriptors,
    and goes on where it was when the disk does."""

    async def scenario(service, root):
        files, limit = 200, 16
        service.shares.bound(limit, limit)
        nodes = [await write_file(service, root, b"f%d" % number) for number in range(files)]
        await sweep(service)
        goes_on = asyncio.Event()
        really = service.unstable._settle

        async def slow(opened):
            await goes_on.wait()
            await really(opened)

        service.unstable._settle = slow
        done = 0

        async def write_all():
            nonlocal done
            for node in nodes:
                await write(service, node)
                done += 1

        task = asyncio.create_task(write_all())
        before = -1
        while done != before:  # it stands still
            before = done
            await asyncio.sleep(0.2)
        assert sum(one.fd >= 0 and one.writable for one in service.open_files._all_opens) <= limit
        assert done < files
        assert (await service.attributes(nodes[-1])).size == 0  # others are served
        goes_on.set()
        await asyncio.wait_for(task, 60)
        await sweep(service)
        await until(lambda: not len(service.unstable))

    run(place, tmp_path, scenario)


def test_a_cancelled_writer_does_not_take_anothers_place(place, tmp_path):
    async def scenario(service, root):
        service.shares.bound(1, 1)
        nodes = [await write_file(service, root, b"f%d" % number) for number in range(40)]
        tasks = [asyncio.create_task(write(service, node)) for node in nodes]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        await asyncio.wait_for(write(service, nodes[0]), 60)

    run(place, tmp_path, scenario)


def test_an_error_of_close_changes_the_verifier(place, tmp_path):
    """As file systems over a network tell it. Here the descriptor is one that close(2) does not know."""

    async def scenario(service, root):
        mine, other = root.write_back, service.write_backs.of(b"another", root.mount.lane + 1)
        before = mine.verifier, other.verifier
        service.chains.close_later(1 << 20, root.mount.lane)
        await until(lambda: service.write_backs.failures)
        assert mine.verifier != before[0]
        assert other.verifier == before[1]

    run(place, tmp_path, scenario)


def fail(place):
    """Have ext4 find an error in itself."""
    device = os.stat(place).st_dev
    name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
    Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("1")


def test_a_file_system_that_an_error_made_read_only_has_not_kept_the_data(place, tmp_path):
    """fsync says EROFS then, of what was written before."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)

    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"data")
        verifier = node.write_back.verifier
        fail(place)
        with pytest.raises(OSError, match=f"{os.strerror(errno.EROFS)}|{os.strerror(errno.EIO)}"):
            await NativeFiles(service).commit(ROOT, node)
        assert node.write_back.verifier != verifier

    with mounted(str(place), "-o", "loop,errors=remount-ro", str(image)):
        run(place, tmp_path, scenario)
