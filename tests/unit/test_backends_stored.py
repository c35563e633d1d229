"""Files of stores in the file service: permissions, changes, handles, what is kept open; and the pool of threads."""

import asyncio
import errno
import threading

import pytest

from nfsd.backends.keyed.ordered import hashed
from nfsd.backends.pool import Pool
from nfsd.config_file import ConfigError, parse
from nfsd.exported import BackendChoice
from nfsd.exports import Export, ExportTable
from nfsd.vfs.service import FileService
from nfsd.vfs.store_mounts import StoreMount
from nfsd.vfs.types import BadHandle, Credential, FileType, SetAttributes, SetTo, Time
from tests.support.native_files import UNSTABLE, NativeFiles
from tests.unit.vfs_support import ALICE, BOB, ROOT

IN_GROUP = Credential(1003, 1003, (1001,))


def run(tmp_path, scenario, *, choice=None, **options):
    """Run ``scenario(service, root)`` over a store in memory."""
    options.setdefault("squash", "none")
    exports = ExportTable((Export(7, "", "/x", backend=choice or BackendChoice("memory"), **options),))

    async def main():
        service = FileService(exports, str(tmp_path))
        await service.start()
        try:
            assert not service.absent
            await scenario(service, await service.root(exports.exports[0]))
        finally:
            await service.close()

    asyncio.run(main())


async def refused(awaitable):
    with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is looked at)
        await awaitable
    return caught.value.errno


async def made(service, directory, name, credential=ALICE, **attributes):
    node, _, _, _ = await service.create(credential, directory, name, SetAttributes(**attributes))
    return node


def test_modes_and_owners_decide(tmp_path):
    async def scenario(service, root):
        node = await made(service, root, b"f", mode=0o640)
        (await service.open(ALICE, node, read=True, write=True)).release()
        (await service.open(IN_GROUP, node, read=True, write=False)).release()
        (await service.open(ROOT, node, read=True, write=True)).release()
        assert await refused(service.open(IN_GROUP, node, read=False, write=True)) == errno.EACCES
        assert await refused(service.open(BOB, node, read=True, write=False)) == errno.EACCES
        await service.set_attributes(ALICE, node, SetAttributes(mode=0))
        # The owner keeps access (RFC 1813 section 4.4), but not to what an OPEN of NFSv4 asks for.
        (await service.open(ALICE, node, read=True, write=True)).release()
        strict = service.open(ALICE, node, read=True, write=False, owner_override=False)
        assert await refused(strict) == errno.EACCES
        await service.set_attributes(ALICE, node, SetAttributes(mode=0o111))
        (await service.open(BOB, node, read=True, write=False)).release()  # to execute is to read
        assert await service.access(BOB, node) & 0x3F == 0x20

    run(tmp_path, scenario)


def test_directories_have_modes_too(tmp_path):
    async def scenario(service, root):
        directory, _, _ = await service.mkdir(ALICE, root, b"d", SetAttributes(mode=0o755))
        await made(service, directory, b"f")
        assert await refused(service.create(BOB, directory, b"g", SetAttributes())) == errno.EACCES
        assert await refused(service.remove(BOB, directory, b"f", directory_wanted=False)) == errno.EACCES
        await service.set_attributes(ALICE, directory, SetAttributes(mode=0o644))
        assert await refused(service.lookup(BOB, directory, b"f")) == errno.EACCES
        page = await service.readdir(BOB, directory, 0, limit=10, plus=True)
        assert [(one.name, one.attributes is None, one.error) for one in page.entries[2:]] == [
            (b"f", True, errno.EACCES)
        ]
        await service.set_attributes(ALICE, directory, SetAttributes(mode=0o711))
        assert await refused(service.readdir(BOB, directory, 0, limit=10, plus=True)) == errno.EACCES
        assert (await service.lookup(BOB, directory, b"f"))[1].uid == ALICE.uid
        # The root is as /tmp: one does not remove what is somebody else's.
        mine = await made(service, root, b"mine", mode=0o666)
        assert await refused(service.remove(BOB, root, b"mine", directory_wanted=False)) == errno.EPERM
        await made(service, root, b"bobs", BOB)
        assert await refused(service.rename(BOB, root, b"bobs", root, b"mine")) == errno.EPERM
        assert (await service.lookup(BOB, root, b"mine"))[0] is mine

    run(tmp_path, scenario)


def test_only_owners_and_root_change_attributes(tmp_path):
    async def scenario(service, root):
        node = await made(service, root, b"f", mode=0o666)
        for changes, number in (
            (SetAttributes(mode=0o600), errno.EPERM),
            (SetAttributes(uid=BOB.uid), errno.EPERM),
            (SetAttributes(gid=BOB.gid), errno.EPERM),
            (SetAttributes(mtime=Time(1, 0)), errno.EPERM),
        ):
            assert await refused(service.set_attributes(BOB, node, changes)) == number
        await service.set_attributes(BOB, node, SetAttributes(mtime=SetTo.SERVER_TIME, size=3))
        assert await refused(service.set_attributes(ALICE, node, SetAttributes(uid=BOB.uid))) == errno.EPERM
        await service.set_attributes(ROOT, node, SetAttributes(mode=0o6755, uid=BOB.uid))
        change = await service.set_attributes(BOB, node, SetAttributes(size=1))
        assert change.after.mode == 0o755  # nobody else's program runs with these bits
        assert change.before.mode == 0o6755

    run(tmp_path, scenario)


def test_every_change_shows(tmp_path):
    async def scenario(service, root):
        files = NativeFiles(service)
        node = await made(service, root, b"f")
        seen = {(await service.attributes(node)).change}
        opened = await service.open(ALICE, node, read=True, write=True)
        for number in range(50):
            await service.set_attributes(ALICE, node, SetAttributes(size=number + 1), opened=opened)
            seen.add((await service.attributes(node)).change)
        opened.release()
        assert len(seen) == 51
        _, _, change, _ = await service.create(ALICE, root, b"g", SetAttributes())
        assert change.after.change > change.before.change
        assert await files.read_all(ALICE, node, 0, 100) == (bytes(50), True)

    run(tmp_path, scenario)


def test_a_rename_onto_itself_is_no_change(tmp_path):
    async def scenario(service, root):
        await made(service, root, b"f")
        await service.link(ALICE, (await service.lookup(ALICE, root, b"f"))[0], root, b"g")
        for name in (b"f", b"g"):
            change, _ = await service.rename(ALICE, root, b"f", root, name)
            assert change.before.change == change.after.change
        assert (await service.lookup(ALICE, root, b"g"))[1].nlink == 2

    run(tmp_path, scenario)


def test_handles_are_believed_only_when_they_are_ours(tmp_path):
    async def scenario(service, root):
        node = await made(service, root, b"f")
        handle = node.handle
        assert (await service.resolve(handle)).handle == handle
        with pytest.raises(BadHandle):
            await service.resolve(handle[:-1] + bytes((handle[-1] ^ 1,)))
        del node
        await service.remove(ALICE, root, b"f", directory_wanted=False)
        assert await refused(service.resolve(handle)) == errno.ESTALE
        # Another file system's octets, rightly signed.
        codec = service.known.codec
        assert await refused(service.resolve(codec.encode(7, bytes(6), 0xF5, b"12345678"))) == errno.ESTALE
        assert await refused(service.resolve(codec.encode(7, root.mount.fs_id, 1, bytes(8)))) == errno.ESTALE

    run(tmp_path, scenario)


def test_devices_and_their_kinds(tmp_path):
    async def scenario(service, root):
        node, found, _ = await service.mknod(ROOT, root, b"d", FileType.CHR, (1, 3), SetAttributes(mode=0o600))
        assert (node.type, found.rdev, found.mode) == (FileType.CHR, (1, 3), 0o600)
        assert await refused(service.open(ROOT, node, read=True, write=False)) == errno.EINVAL
        link, found, _ = await service.symlink(ALICE, root, b"l", b"to", SetAttributes())
        assert (found.type, found.size, await service.readlink(BOB, link)) == (FileType.LNK, 2, b"to")

    run(tmp_path, scenario)


def test_what_is_open_has_a_place_and_gives_it_back(tmp_path):
    async def scenario(service, root):
        before = service.shares.in_use
        opens = []
        for number in range(20):
            node = await made(service, root, b"%d" % number)
            opens.append(await service.open(ALICE, node, read=True, write=True))
        assert service.shares.in_use >= before + 20
        for opened in opens:
            opened.release()
        service.open_files.close()
        opens.clear()
        del opened
        assert service.shares.in_use == before

    run(tmp_path, scenario)


def test_cookies_made_of_names_are_in_bounds():
    assert all(3 <= hashed(b"%d" % number) < 1 << 63 for number in range(1000))
    assert len({hashed(b"%d" % number) for number in range(1000)}) == 1000


# -- the pool ------------------------------------------------------------------------------------------------------
def test_a_cancelled_caller_waits_for_its_function():
    async def main():
        pool, gate, done = Pool("test", 1), threading.Event(), []
        task = asyncio.ensure_future(pool.run(lambda: (gate.wait(20), done.append(1))))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [1]
        pool.close()

    asyncio.run(main())


def test_more_calls_than_may_wait_come_again(monkeypatch):
    monkeypatch.setattr("nfsd.backends.pool.MOST_WAITING", 2)

    async def main():
        pool, gate = Pool("test", 1), threading.Event()
        tasks = [asyncio.ensure_future(pool.run(gate.wait, 20)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await refused(pool.run(gate.wait, 20)) == errno.EAGAIN
        gate.set()
        assert await asyncio.gather(*tasks) == [True] * 3
        assert await pool.run(int, "4") == 4
        pool.close()

    asyncio.run(main())


# -- the configuration ---------------------------------------------------------------------------------------------
SERVER = "server: {listen: ['tcp://127.0.0.1:0']}\nexports:\n"


def test_backends_are_configured(tmp_path):
    text = "  - {backend: python, module: a.b:C, pseudo: /p, options: {x: [1, y]}}\n  - {backend: memory, pseudo: /m}\n"
    one, other = parse(SERVER + text, str(tmp_path / "exports.yaml")).exports
    assert (one.backend, one.path) == (BackendChoice("python", "a.b:C", {"x": [1, "y"]}), "")
    assert other.backend == BackendChoice("memory")
    assert one.id != other.id


@pytest.mark.parametrize(
    ("entry", "key", "what"),
    [
        ("backend: memory", "pseudo", "is missing"),
        ("backend: memory, pseudo: /m, path: /srv", "path", "is of directories"),
        ("backend: memory, pseudo: /m, cross_mounts: true", "cross_mounts", "is of directories"),
        ("backend: memory, pseudo: /m, module: 'a:b'", "module", "goes with backend: python"),
        ("backend: python, pseudo: /m", "module", "must name a factory"),
        ("backend: python, pseudo: /m, module: 'a b'", "module", "must name a factory"),
    ],
)
def test_what_is_wrong_with_a_backend_is_said(tmp_path, entry, key, what):
    with pytest.raises(ConfigError) as caught:
        parse(f"{SERVER}  - {{{entry}}}\n", str(tmp_path / "exports.yaml"))
    (problem,) = caught.value.problems
    assert problem.key == f"exports[0].{key}"
    assert what in problem.message


def test_a_backend_is_for_one_process(tmp_path):
    text = "server: {listen: ['tcp://127.0.0.1:0'], processes: 2}\nexports: [{backend: memory, pseudo: /m}]\n"
    with pytest.raises(ConfigError) as caught:
        parse(text, str(tmp_path / "exports.yaml"))
    (problem,) = caught.value.problems
    assert problem.key == "exports[0].backend"
    assert "server.processes" in problem.message
    assert parse(text.replace("processes: 2", "processes: 1"), str(tmp_path / "exports.yaml")).exports


def test_writes_that_come_while_a_file_has_another_turn_are_made_in_one(tmp_path, monkeypatch):
    """In the order in which they come, and each with its own looks and its own failure."""

    async def scenario(service, root):
        node = await made(service, root, b"f", mode=0o666)
        files, data, turns, order = NativeFiles(service), root.mount.store.data, [], []
        write, write_all, asked, all_asked = StoreMount.write, data.write_all, 0, asyncio.Event()

        async def counting(*arguments):
            nonlocal asked
            asked += 1
            if asked == len(places):
                all_asked.set()
            return await write(*arguments)

        async def noting(writes):
            turns.append(len(writes))
            order.extend(one.offset for one in writes)
            await all_asked.wait()  # the first has its turn till all others have come
            return await write_all(writes)

        monkeypatch.setattr(StoreMount, "write", counting)
        data.write_all = noting
        places = [*range(0, 24, 4), 1 << 40, *range(24, 40, 4)]
        writes = [
            files.write(BOB, node, place, b"%04d" % place if place < 40 else b"far!", UNSTABLE) for place in places
        ]
        done = await asyncio.gather(*writes, return_exceptions=True)
        failed = done.pop(6)
        assert failed.errno in (errno.EFBIG, errno.ENOSPC)
        places.remove(1 << 40)
        order.remove(1 << 40)
        around = [(one.file_wcc.before.size, one.file_wcc.after.size) for one in done]
        expected, size = {}, 0
        for place in order:
            expected[place] = size, max(size, place + 4)
            size = max(size, place + 4)
        assert dict(zip(places, around, strict=True)) == expected
        assert (await files.read_all(ROOT, node, 0, 99))[0] == b"".join(b"%04d" % place for place in range(0, 40, 4))
        assert turns == [1, 10]
        turns.clear()
        asked, places = 0, range(100)
        all_asked.clear()
        await asyncio.gather(*(files.write(BOB, node, 0, b"1234", UNSTABLE) for _ in places))
        assert turns == [1, 64, 35]

    run(tmp_path, scenario, choice=BackendChoice("python", "tests.unit.backend_plugins:Threaded"))


def test_a_file_is_not_opened_again_because_of_what_its_own_writers_do(tmp_path):
    """Each of them looks at the file first, and sees what others are writing."""

    async def scenario(service, root):
        node = await made(service, root, b"f", mode=0o666)
        files, data, opens = NativeFiles(service), root.mount.store.data, []
        open_there = data.open

        async def noting(*what):
            opens.append(what)
            return await open_there(*what)

        data.open = noting

        async def write():
            for _ in range(20):
                await files.write(BOB, node, 0, b"1234", UNSTABLE)

        await asyncio.gather(*(write() for _ in range(8)))
        assert len(opens) <= 8, "the writers did not find it open yet"
        await service.set_attributes(ALICE, node, SetAttributes(mode=0o444))
        assert await refused(files.write(BOB, node, 0, b"5678", UNSTABLE)) == errno.EACCES

    run(tmp_path, scenario, choice=BackendChoice("python", "tests.unit.backend_plugins:Threaded"))
