"""Directories that are listed again and again: what is remembered is never other than what the kernel says."""

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from nfsd.exports import Export, ExportTable
from nfsd.protocol.nfs3 import READDIRPLUS3args, nfsstat3
from nfsd.vfs import child_events, recent_listings
from nfsd.vfs.service import FileService
from nfsd.vfs.types import SetAttributes
from tests.nfs3_client import auth_sys
from tests.support.delegations import until
from tests.support.nfs3_server import running
from tests.unit.listing_support import KINDS, make_entry
from tests.unit.recent_support import (
    CHANGES,
    agree,
    listing,
    recalled,
    remembered,
    written,
)
from tests.unit.test_vfs_mounts import btrfs
from tests.unit.vfs_support import ALICE, ROOT, put, run


def test_entries_of_every_kind_are_the_same_from_memory(tmp_path, long_memory):
    for kind in KINDS:
        for number in range(3):
            make_entry(tmp_path, b"%s %d" % (kind.encode(), number), kind)
    (tmp_path / ("n" * 255)).touch()

    async def scenario(service, root):
        first = await listing(service, root)
        for limit in (4096, 1, 7):
            before = recalled(service)
            assert await remembered(service, root, limit=limit) == first
            assert recalled(service) - before >= len(first)
        agree(first, tmp_path)
        assert [entry.name for entry in await listing(service, root, plus=False)] == [entry.name for entry in first]

    run(tmp_path, tmp_path, scenario)


def test_a_directory_listed_once_is_not_remembered(files, tmp_path):
    async def scenario(service, root):
        await asyncio.sleep(0.1)
        await listing(service, root)
        page = await service.readdir(ROOT, root, 0, limit=4096, plus=True)
        assert page.eof
        assert recalled(service) == 0

    run(files, tmp_path, scenario)


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_process_does_is_seen_at_once(change, files, tmp_path, long_memory):
    if change == "xattr":
        try:
            os.setxattr(files, "user.any", b"")
        except OSError as error:
            pytest.skip(f"{files}: {error.strerror}")

    async def scenario(service, root):
        await remembered(service, root)
        CHANGES[change](os.path.join(files, "file 20"))
        agree(await listing(service, root), files)
        agree(await remembered(service, root), files)

    run(files, tmp_path, scenario)


@pytest.mark.parametrize("change", ["unlink", "make anew", "other"])
def test_what_happens_between_the_look_at_the_directory_and_the_listing_is_seen(change, files, tmp_path, long_memory):
    async def scenario(service, root):
        await remembered(service, root)
        look = service.listings._looking.look

        async def changed_behind(node):
            status = await look(node)
            service.listings._looking.look = look
            CHANGES[change](os.path.join(files, "file 20"))
            return status

        service.listings._looking.look = changed_behind
        agree(await listing(service, root), files)

    run(files, tmp_path, scenario)


def test_writes_through_a_descriptor_opened_before(files, tmp_path, long_memory):
    with open(os.path.join(files, "file 07"), "ab", buffering=0) as file:

        async def scenario(service, root):
            for _ in range(5):
                await remembered(service, root)
                file.write(b"again")
                agree(await listing(service, root), files)

        run(files, tmp_path, scenario)


def test_what_happens_in_a_directory_below_is_seen(files, tmp_path, long_memory):
    below = os.path.join(files, "below")
    os.mkdir(below)

    async def scenario(service, root):
        await remembered(service, root)
        for number in range(3):
            os.mkdir(os.path.join(below, str(number)))
            agree(await listing(service, root), files)

    run(files, tmp_path, scenario)


def test_directories_that_count_one_link_are_looked_at_all_the_same(tmp_path, long_memory):
    """Those of btrfs have no links for ``..``."""
    with btrfs(tmp_path) as mount:
        (mount / "below").mkdir()

        async def scenario(service, root):
            for _ in range(3):
                await listing(service, root)
                await asyncio.sleep(0.1)
            for number in range(3):
                (mount / "below" / str(number)).touch()
                agree(await listing(service, root), mount)

        run(mount, tmp_path, scenario)


def test_a_second_name_is_watched_by_nobody_so_the_file_is_looked_at(files, tmp_path, long_memory):
    elsewhere = os.path.join(files, "below")
    os.mkdir(elsewhere)
    os.link(os.path.join(files, "file 30"), os.path.join(elsewhere, "another"))

    async def scenario(service, root):
        await remembered(service, root)
        written(os.path.join(elsewhere, "another"))
        agree(await listing(service, root), files)

    run(files, tmp_path, scenario)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as others")
def test_the_kernel_is_asked_who_may_list(files, tmp_path, long_memory):
    below = os.path.join(files, "private")
    os.mkdir(below)
    for number in range(9):
        with open(os.path.join(below, str(number)), "w"):
            pass
    os.chmod(below, 0o755)

    async def scenario(service, root):
        directory, _ = await service.lookup(ROOT, root, b"private")
        await remembered(service, directory)
        before = recalled(service)
        agree(await listing(service, directory, credential=ALICE), below)
        assert recalled(service) > before
        os.chmod(below, 0o700)
        await remembered(service, directory)
        with pytest.raises(PermissionError):
            await listing(service, directory, credential=ALICE)
        os.chmod(below, 0o744)
        await remembered(service, directory)
        entries = await listing(service, directory, credential=ALICE)
        assert {entry.attributes for entry in entries} == {None}
        assert len(entries) == 11

    run(files, tmp_path, scenario)


def test_turns_that_go_side_by_side_are_put_together(files, tmp_path, long_memory):
    """As a client asks for several pages at a time: no page is noted behind the one before it."""

    async def scenario(service, root):
        first = await listing(service, root)
        cookies = [0, *(entry.cookie for entry in first[4:-1:5])]
        await asyncio.sleep(0.1)
        for _ in range(3):
            order = random.sample(cookies, len(cookies))
            pages = await asyncio.gather(*(service.readdir(ROOT, root, cookie, limit=5, plus=True) for cookie in order))
            behind = dict(zip(order, pages, strict=True))
            assert [entry for cookie in cookies for entry in behind[cookie].entries] == first
        before = recalled(service)
        assert await listing(service, root, limit=3) == first
        assert recalled(service) - before == len(first)

    run(files, tmp_path, scenario)


def test_a_moment_later_it_is_remembered_anew_from_wherever_somebody_is(files, tmp_path, monkeypatch):
    monkeypatch.setattr(recent_listings, "_LIFE", 0.3)

    async def scenario(service, root):
        first = await remembered(service, root)
        recent = service.listings.recent
        await until(lambda: not recent._kept)
        page = await service.readdir(ROOT, root, first[9].cookie, limit=10, plus=True)
        assert page.entries == first[10:20]
        assert len(recent._kept) == 1
        before = recalled(service)
        assert await listing(service, root, limit=5) == first
        assert recalled(service) > before or not recent._kept

    run(files, tmp_path, scenario)


def test_memory_is_bounded(tmp_path, long_memory, monkeypatch):
    monkeypatch.setattr(recent_listings, "_OCTETS", 200_000)
    monkeypatch.setattr(recent_listings, "_MOST", 5)
    for directory in range(12):
        (tmp_path / str(directory)).mkdir()
        for number in range(50 if directory % 2 else 3000):
            os.mknod(tmp_path / str(directory) / str(number))

    async def scenario(service, root):
        await asyncio.sleep(0.1)
        recent = service.listings.recent
        for _ in range(3):
            for directory in range(12):
                node, _ = await service.lookup(ROOT, root, b"%d" % directory)
                before = recalled(service)
                for _ in range(3):
                    agree(await listing(service, node, limit=700), tmp_path / str(directory))
                assert recalled(service) > before  # of large ones, a part is remembered
                kept = [one.listing.octets for one in recent._kept.values()]
                assert len(kept) <= 5
                assert max(kept, default=0) < 100_000 + 256 * 1024
                assert sum(kept) < 200_000 + 256 * 1024

    run(tmp_path, tmp_path, scenario)


def test_two_exports_of_one_directory(tmp_path, long_memory):
    """Its files are watched for one of them, which both have."""
    for number in range(9):
        (tmp_path / str(number)).touch()

    async def main():
        exports = tuple(Export(id=id_, path=str(tmp_path), pseudo=f"/{id_}", squash="none") for id_ in (7, 8))
        service = FileService(ExportTable(exports), str(tmp_path))
        await service.start()
        try:
            one, other = [await service.root(export) for export in exports]
            await remembered(service, one)
            for _ in range(3):
                agree(await listing(service, other), tmp_path)
            node, _ = await service.lookup(ROOT, other, b"5")
            await service.set_attributes(ROOT, node, SetAttributes(mode=0o611))
            for root in (one, other):
                agree(await listing(service, root), tmp_path)
            await service.take_exports(exports[:1])
            assert not service.listings.recent._kept
            agree(await remembered(service, one), tmp_path)
        finally:
            await service.close()

    asyncio.run(main())


def test_no_watches_to_be_had(files, tmp_path, long_memory, monkeypatch):
    monkeypatch.setattr(child_events, "SYS_INOTIFY_ADD_WATCH", -1)

    async def scenario(service, root):
        await asyncio.sleep(0.1)
        for _ in range(4):
            agree(await listing(service, root), files)
        assert recalled(service) == 0

    run(files, tmp_path, scenario)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_done_in_whatever_order(seed, files, tmp_path, long_memory):
    """Another process and the server change files and names, and after each change the listing is the kernel's."""
    chance = random.Random(seed)
    changes = [change for change in CHANGES.values() if change is not CHANGES["xattr"]]

    async def scenario(service, root):
        await asyncio.sleep(0.1)
        for _ in range(60):
            for _ in range(chance.randrange(3)):
                agree(await listing(service, root, limit=chance.choice([1, 3, 10, 4096])), files)
            if chance.random() < 0.3:
                await remembered(service, root)
            name = chance.choice(sorted(name for name in os.listdir(files) if not name.endswith("directory")))
            if chance.random() < 0.5:
                with contextlib.suppress(FileExistsError):
                    chance.choice(changes)(os.path.join(files, name))
            else:
                node, _ = await service.lookup(ROOT, root, name.encode())
                if chance.random() < 0.5:
                    await service.set_attributes(ROOT, node, SetAttributes(mode=chance.randrange(0o1000)))
                else:
                    opened = await service.open(ROOT, node, read=False, write=True)
                    put(service, opened, bytes(chance.randrange(5000)))
                    opened.release()
            agree(await listing(service, root, limit=chance.choice([2, 9, 4096])), files)

    run(files, tmp_path, scenario)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as others")
def test_a_peer_gets_nothing_from_it_and_spoils_nothing(files, tmp_path, long_memory):
    """By wire: a stranger, cookies that were never given out, and both sizes as small and as large as they can be."""
    chance = random.Random(1)

    async def main():
        async with running(Path(files), tmp_path) as server:
            os.chmod(files, 0o700)
            recent = server.service.listings.recent
            client, root = server.client, server.root

            async def page(cookie, dircount=1 << 20, maxcount=1 << 20):
                return await client.nfs("READDIRPLUS", READDIRPLUS3args(root, cookie, bytes(8), dircount, maxcount))

            async def whole():
                return [entry.name for entry in (await page(0)).resok.reply.entries]

            names = await whole()
            deadline = asyncio.get_running_loop().time() + 60
            while not recent.recalled:
                assert await whole() == names
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            own = client.credential
            client.credential = auth_sys(54321, 54322, (54323,))
            for _ in range(3):
                assert (await page(0)).status == nfsstat3.NFS3ERR_ACCES
            client.credential = own
            before = recent.recalled
            assert await whole() == names
            assert recent.recalled > before
            sizes = (0, 1, 200, 4096, 2**32 - 1)
            for _ in range(500):
                cookie = chance.choice([chance.randrange(2**64), chance.randrange(2**63), chance.randrange(5000)])
                await page(cookie, chance.choice(sizes), chance.choice(sizes))
            assert await whole() == names
            assert sum(one.listing.octets for one in recent._kept.values()) < 1 << 20

    asyncio.run(main())
