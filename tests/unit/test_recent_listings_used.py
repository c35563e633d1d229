"""What is remembered of a directory of which some files are used over NFS, and news that comes at the wrong moment."""

import asyncio
import mmap
import os
import time

import pytest

from nfsd.vfs import recent_listings
from nfsd.vfs.attributes import raw_ctime
from nfsd.vfs.types import SetAttributes
from tests.unit.recent_support import (
    FILES,
    agree,
    listing,
    remembered,
    written,
)
from tests.unit.vfs_support import ROOT, put, run, write_file


@pytest.mark.parametrize("first", ["used", "listed"])
def test_what_the_server_does_itself_needs_no_telling(first, files, tmp_path, long_memory, deaf):
    """Files that are used over NFS are looked at, whoever has told what of them."""

    async def scenario(service, root):
        if first == "used":
            node, _ = await service.lookup(ROOT, root, b"file 10")
        await remembered(service, root)
        node, _ = await service.lookup(ROOT, root, b"file 10")
        for mode in (0o600, 0o640):
            await service.set_attributes(ROOT, node, SetAttributes(mode=mode))
            agree(await listing(service, root), files)
        opened = await service.open(ROOT, node, read=False, write=True)
        for size in range(100, 103):
            put(service, opened, bytes(size))
            agree(await remembered(service, root), files)
        opened.release()
        await write_file(service, root, b"file 39", b"another's")
        agree(await listing(service, root), files)

    run(files, tmp_path, scenario)


@pytest.mark.parametrize("gone", [False, True], ids=["in use", "used"])
def test_a_file_changed_between_the_look_and_its_being_remembered(gone, tmp_path, long_memory, deaf):
    """A worker has looked at it; before the loop hears of that, a client has changed it, and perhaps let go of it."""
    for number in range(FILES):
        (tmp_path / f"file {number:02}").touch()

    async def scenario(service, root):
        await asyncio.sleep(0.1)
        await listing(service, root)
        run_in_lane, modes = service.chains.run_in_lane, [0o611]

        async def changed_behind(lane, chain, *opens):
            await run_in_lane(lane, chain, *opens)
            if modes and service.listings.recent._kept and service.chains.run_in_lane is changed_behind:
                mode, service.chains.run_in_lane = modes.pop(), run_in_lane
                node, _ = await service.lookup(ROOT, root, b"file 10")
                await service.set_attributes(ROOT, node, SetAttributes(mode=mode))
                del node
                if gone:
                    for _ in range(4):
                        service.sweep()
                    assert service.nodes.all() == [root]
                # Another listing is told of the node before this one remembers the file.
                service.listings.recent.of(root, 1, raw_ctime(await service.look(root)))
                service.chains.run_in_lane = changed_behind

        service.chains.run_in_lane = changed_behind
        while modes:
            await listing(service, root)
        service.chains.run_in_lane = run_in_lane
        assert (tmp_path / "file 10").stat().st_mode & 0o777 == 0o611
        agree(await remembered(service, root), tmp_path)

    run(tmp_path, tmp_path, scenario)


def test_news_of_a_file_that_is_yet_to_be_remembered(tmp_path, long_memory):
    """A worker has looked at it, another process changes it, and another listing fetches the news."""
    for number in range(FILES):
        (tmp_path / f"file {number:02}").touch()

    async def scenario(service, root):
        await asyncio.sleep(0.1)
        await listing(service, root)
        run_in_lane, recent = service.chains.run_in_lane, service.listings.recent

        async def changed_behind(lane, chain, *opens):
            await run_in_lane(lane, chain, *opens)
            if recent._kept:
                service.chains.run_in_lane = run_in_lane
                written(tmp_path / "file 10")
                recent._hear()

        service.chains.run_in_lane = changed_behind
        while service.chains.run_in_lane is changed_behind:
            await listing(service, root)
        agree(await remembered(service, root), tmp_path)

    run(tmp_path, tmp_path, scenario)


def test_more_nodes_than_are_told(files, tmp_path, long_memory, deaf):
    many = os.path.join(files, "many")
    os.mkdir(many)
    for number in range(4200):
        os.mknod(os.path.join(many, str(number)))

    async def scenario(service, root):
        await remembered(service, root)
        node, _ = await service.lookup(ROOT, root, b"file 10")
        directory, _ = await service.lookup(ROOT, root, b"many")
        for number in range(4200):
            await service.lookup(ROOT, directory, b"%d" % number)
        await service.set_attributes(ROOT, node, SetAttributes(mode=0o611))
        agree(await listing(service, root), files)
        agree(await remembered(service, root), files)

    run(files, tmp_path, scenario)


def test_more_changes_than_are_worth_hearing(files, tmp_path, long_memory):
    async def scenario(service, root):
        await remembered(service, root)
        for number in range(2000):
            os.chmod(os.path.join(files, f"file {number % FILES:02}"), 0o600 + number % 64)
        agree(await listing(service, root), files)
        assert not service.listings.recent._kept
        agree(await remembered(service, root), files)

    run(files, tmp_path, scenario)


def test_nothing_is_remembered_for_long(files, tmp_path, deaf, monkeypatch):
    """What nobody is told of, as writes through mapped memory, is seen when the moment is over."""
    monkeypatch.setattr(recent_listings, "_LIFE", 0.2)
    path = os.path.join(files, "file 20")
    os.utime(path, ns=(1, 2))

    async def scenario(service, root):
        await remembered(service, root)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 20) as mapped:
            mapped[0] = 65
            mapped.flush()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            told = {entry.name: entry.attributes for entry in await listing(service, root)}
            if told[b"file 20"].mtime.seconds > 1:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it is still remembered")

    run(files, tmp_path, scenario)
