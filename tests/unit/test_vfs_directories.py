"""Directories through the file service: listing with stable cookies, and no way out of the export."""

import asyncio
import contextlib
import errno
import os

import pytest

from nfsd.vfs.listing import cookie_of, offset_of
from nfsd.vfs.posix_acl import AclEntry, AclTag
from nfsd.vfs.types import CrossingRefused, FileType, SetAttributes
from tests.unit.vfs_support import ALICE, ROOT, directory_on, run, write_file


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    with directory_on(request.param, tmp_path) as path:
        yield path


def refused(code):
    return pytest.raises(OSError, match=os.strerror(code))


async def listing(service, directory, limit, *, plus=False, credential=ROOT):
    entries, cookie = [], 0
    while True:
        page = await service.readdir(credential, directory, cookie, limit=limit, plus=plus)
        assert len(page.entries) <= limit
        entries += page.entries
        if page.eof:
            return entries
        assert page.entries
        cookie = page.entries[-1].cookie


@pytest.mark.parametrize(("kind", "count"), [("disk", 20_000), ("memory", 100_000)])
def test_cookies_of_large_directories(kind, count, tmp_path):
    with directory_on(kind, tmp_path) as place:
        names = {b"entry-%06d" % number for number in range(count)}
        half = count // 2
        base = os.open(place, os.O_RDONLY)
        for name in names:
            os.mknod(name, dir_fd=base)
        os.close(base)

        async def scenario(service, root):
            entries = await listing(service, root, 1000)
            found = [entry.name for entry in entries]
            assert set(found) == names | {b".", b".."}
            assert len(found) == len(names) + 2
            cookies = {entry.cookie for entry in entries}
            assert len(cookies) == len(entries)
            assert not cookies & {0, 1, 2}
            return entries

        async def resume(service, root):
            # Another life of the server, in the middle, while others come and go.
            page = await service.readdir(ROOT, root, entries[half - 1].cookie, limit=500, plus=False)
            assert page.entries == entries[half : half + 500]
            for entry in entries[10 : half + 1000 : 7]:
                if entry.name not in (b".", b".."):
                    os.unlink(os.path.join(os.fsencode(place), entry.name))
            page = await service.readdir(ROOT, root, entries[half + 1999].cookie, limit=500, plus=False)
            assert [entry.name for entry in page.entries] == [
                entry.name for entry in entries[half + 2000 : half + 2500]
            ]

        entries = run(place, tmp_path, scenario)
        run(place, tmp_path, resume)


def test_entries_with_handles_and_attributes(place, tmp_path):
    async def scenario(service, root):
        nodes = {
            b"n%d" % number: await write_file(service, root, b"n%d" % number, b"x" * number) for number in range(50)
        }
        nodes[b"d"], _, _ = await service.mkdir(ROOT, root, b"d", SetAttributes())
        nodes[b"l"], _, _ = await service.symlink(ROOT, root, b"l", b"nowhere", SetAttributes())
        entries = {entry.name: entry for entry in await listing(service, root, 20, plus=True)}
        assert set(entries) == {*nodes, b".", b".."}
        for name, node in nodes.items():
            assert entries[name].handle == node.handle
            assert entries[name].attributes == await service.attributes(node)
            assert entries[name].fileid == entries[name].attributes.fileid
        # Nothing of what lies above the export.
        for dots in (b".", b".."):
            assert entries[dots].handle == root.handle
            assert entries[dots].fileid == (await service.attributes(root)).fileid
        plain = await service.readdir(ROOT, root, 0, limit=1000, plus=False)
        assert plain.eof
        assert all(entry.handle is None and entry.attributes is None for entry in plain.entries)

    run(place, tmp_path, scenario)


def test_without_search_permission_names_come_without_attributes(place, tmp_path):
    async def scenario(service, root):
        directory, _, _ = await service.mkdir(ROOT, root, b"d", SetAttributes(mode=0o744))
        await write_file(service, directory, b"f")
        entries = await listing(service, directory, 10, plus=True, credential=ALICE)
        assert [(entry.handle, entry.attributes) for entry in entries if entry.name == b"f"] == [(None, None)]

    run(place, tmp_path, scenario)


def test_a_stream_is_not_reused_after_permission_is_gone(place, tmp_path):
    async def scenario(service, root):
        directory, _, _ = await service.mkdir(ROOT, root, b"d", SetAttributes(mode=0o755))
        for number in range(20):
            await write_file(service, directory, b"%d" % number)
        page = await service.readdir(ALICE, directory, 0, limit=5, plus=False)
        assert await service.readdir(ALICE, directory, page.entries[-1].cookie, limit=5, plus=False)
        os.chmod(f"{place}/d", 0o711)
        with refused(errno.EACCES):
            await service.readdir(ALICE, directory, page.entries[-1].cookie, limit=5, plus=False)

    run(place, tmp_path, scenario)


def test_cookies_not_ours_are_refused(place, tmp_path):
    async def scenario(service, root):
        for cookie in (1, 2, 1 << 64, (1 << 64) - 1):
            with refused(errno.EINVAL):
                await service.readdir(ROOT, root, cookie, limit=10, plus=False)
        node = await write_file(service, root, b"f")
        with refused(errno.ENOTDIR):
            await service.readdir(ROOT, node, 0, limit=10, plus=False)

    run(place, tmp_path, scenario)


def test_cookies_and_offsets_translate_both_ways():
    offsets = [0, 1, 2, 3, 4, 1 << 31, (1 << 63) - 5, (1 << 63) - 1]
    cookies = [cookie_of(offset) for offset in offsets]
    assert len(set(cookies)) == len(offsets)
    assert not set(cookies) & {0, 1, 2}
    assert [offset_of(cookie) for cookie in cookies] == offsets


def test_dots_never_leave_the_export(place, tmp_path):
    os.makedirs(f"{place}/export/a/b/c/d/e/f/g/h/i")
    os.mkdir(f"{place}/outside")
    os.symlink("../outside", f"{place}/export/link")
    os.symlink("/", f"{place}/export/slash")

    async def scenario(service, root):
        assert (await service.lookup(ROOT, root, b".."))[0] is root
        assert (await service.lookup(ROOT, root, b"."))[0] is root
        assert await service.parent(ROOT, root) is None
        node, chain = root, [root]
        for name in b"abcdefghi":
            node, _ = await service.lookup(ROOT, node, bytes([name]))
            chain.append(node)
        for above in reversed(chain[:-1]):
            assert await service.parent(ROOT, node) is above
            node, _ = await service.lookup(ROOT, node, b"..")
            assert node is above
        for name in (b"link", b"slash"):
            link, attributes = await service.lookup(ROOT, root, name)
            assert attributes.type is FileType.LNK
            with refused(errno.ENOTDIR):
                await service.lookup(ROOT, link, b"..")
        # Moved out of the export by somebody on the server: its parents are not the client's to see.
        deep = chain[8]
        os.rename(f"{place}/export/a/b", f"{place}/outside/b")
        for directory in (chain[2], deep):
            with refused(errno.ESTALE):
                parent = directory
                while True:
                    parent, _ = await service.lookup(ROOT, parent, b"..")

    run(f"{place}/export", tmp_path, scenario)


def test_going_up_needs_search_permission(place, tmp_path):
    async def scenario(service, root):
        directory, _, _ = await service.mkdir(ALICE, root, b"d", SetAttributes(mode=0o600))
        below, _, _ = await service.mkdir(ROOT, directory, b"e", SetAttributes(mode=0o777))
        with refused(errno.EACCES):
            await service.lookup(ALICE, directory, b"..")
        assert (await service.lookup(ALICE, below, b".."))[0] is directory

    run(place, tmp_path, scenario)


def test_file_systems_without_handles_are_not_crossed_into(tmp_path):
    async def scenario(service, root):
        with pytest.raises(CrossingRefused):
            await service.lookup(ROOT, root, b"proc")

    run("/", tmp_path, scenario)


def test_a_listing_from_the_end_hides_nothing_from_one_from_the_start(place, tmp_path):
    """ext4 finds nothing at the start of an open directory that was put to its end before anything was read of it."""

    async def scenario(service, root):
        directory, _, _ = await service.mkdir(ROOT, root, b"d", SetAttributes())
        await write_file(service, directory, b"f")
        await service.readdir(ROOT, directory, (1 << 63) - 1, limit=10, plus=False)
        names = {entry.name for entry in await listing(service, directory, 10)}
        assert names == {b".", b"..", b"f"}

    run(place, tmp_path, scenario)


def test_what_another_client_has_made_meanwhile_is_not_unmade(place, tmp_path, monkeypatch):
    """What cannot be given its ACL is removed again, but not what has its name by then."""

    async def scenario(service, root):
        async def remove_and_make():
            with contextlib.suppress(FileNotFoundError):
                await service.remove(ROOT, root, b"f", directory_wanted=False)
            return await create(ROOT, root, b"f", SetAttributes(mode=0o644))

        async def look_and_lose(credential, directory, name):
            found = await lookup(credential, directory, name)
            others.append(asyncio.create_task(remove_and_make()))
            if not root.inode.serial.busy:  # its turn comes now
                await others[0]
            return found

        others = []
        lookup, create = service.lookup, service.create
        monkeypatch.setattr(service.lookups, "lookup", look_and_lose)
        incomplete = (AclEntry(AclTag.USER_OBJ, 6),)
        with refused(errno.EINVAL):
            await service.create(ROOT, root, b"f", SetAttributes(access_acl=incomplete))
        (other,) = others
        made, *_ = await other
        monkeypatch.undo()
        found, _ = await service.lookup(ROOT, root, b"f")
        assert found is made

    run(place, tmp_path, scenario)
