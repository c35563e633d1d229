"""Stores that break their promises; and what the layers around stores promise whatever a store does."""

import asyncio
import contextlib
import errno
import threading

import pytest

from nfsd.backend_suite.scenarios import refused as refused_with
from nfsd.backend_suite.trying import Entry
from nfsd.backends.keyed import KeyedStore
from nfsd.backends.keyed.ordered import hashed, in_order
from nfsd.backends.memory import MemoryBackend
from nfsd.backends.plugins import BadBackend, make_store
from nfsd.backends.simple import New, Place
from nfsd.exported import BackendChoice
from nfsd.exports import Export
from nfsd.vfs.types import FileType, SetAttributes
from tests.unit.backend_wrongs import Counting, Dull, Generous, Slow
from tests.unit.test_backends_served import run as serve
from tests.unit.test_backends_stored import made, run
from tests.unit.vfs_support import ALICE, BOB, ROOT

COUNT = 3000
OVER_TCP = pytest.mark.parametrize("way", [("tcp", "3"), ("tcp", "4.1")], ids="-".join)


def wrong(name, **options):
    """An export of one of these stores."""
    settings = {"backend": "python", "module": f"tests.unit.backend_wrongs:{name}"}
    return Entry({**settings, "options": options} if options else settings)


# -- listings ------------------------------------------------------------------------------------------------------
@OVER_TCP
def test_a_store_that_gives_more_entries_than_asked_for_is_asked_again(tmp_path, way):
    async def test(server):
        async with server.connect(way) as fs:
            Generous.asked = 0
            assert len(set(await fs.listdir("many"))) == COUNT
            assert Generous.asked > COUNT // 64  # no more are taken at a time than there is room to mark

    serve(tmp_path, wrong("Generous", names=COUNT), test)


@OVER_TCP
@pytest.mark.parametrize(("store", "where"), [("Standing", "many"), ("Nameless", "")])
def test_a_listing_that_does_not_go_on_ends(tmp_path, way, store, where):
    async def test(server):
        async with server.connect(way) as fs, asyncio.timeout(30):
            await refused_with(fs.listdir(where), errno.EIO)

    serve(tmp_path, wrong(store, names=COUNT) if where else wrong(store), test)


def test_a_large_directory_is_sorted_once(tmp_path):
    async def test(server):
        async with server.connect(("tcp", "4.1")) as fs:
            Counting.asked = 0
            assert len(await fs.listdir("many")) == COUNT
            assert Counting.asked <= 2
            await fs.write_bytes("many/another", b"")
            assert len(await fs.listdir("many")) == COUNT + 1

    serve(tmp_path, wrong("Counting", names=COUNT), test)


def test_names_with_the_same_cookie_are_all_listed(monkeypatch):
    monkeypatch.setattr("nfsd.backends.keyed.ordered.hashed", lambda name: 100 if name < b"c" else 101)
    every = in_order([Place(name, b"key") for name in (b"c", b"b", b"a", b"d")])
    assert [(one.name, one.cookie) for one in every] == [(b"a", 100), (b"b", 101), (b"c", 102), (b"d", 103)]
    assert hashed(b"a") != hashed(b"b")


# -- data ----------------------------------------------------------------------------------------------------------
@OVER_TCP
def test_more_octets_than_there_is_room_for_are_a_mistake(tmp_path, way):
    async def test(server):
        async with server.connect(way) as fs:
            await fs.write_bytes("f", b"secret")
            await refused_with(fs.read_bytes("f"), errno.EIO)

    serve(tmp_path, wrong("boasting"), test)


def test_programs_lose_their_rights_when_they_change_hands(tmp_path):
    async def scenario(service, root):
        node = await made(service, root, b"f", mode=0o6755)
        change = await service.set_attributes(ROOT, node, SetAttributes(uid=BOB.uid))
        assert (change.after.mode, change.after.uid) == (0o755, BOB.uid)
        change = await service.set_attributes(ROOT, node, SetAttributes(mode=0o6755, uid=ALICE.uid))
        assert change.after.mode == 0o6755  # they were asked for

    run(tmp_path, scenario)


def test_what_is_copied_into_a_program_takes_its_rights_too(tmp_path):
    async def scenario(service, root):
        source = await made(service, root, b"f", mode=0o644, size=5)
        target = await made(service, root, b"g", mode=0o777)
        await service.set_attributes(ALICE, target, SetAttributes(mode=0o6777))
        one = await service.open(BOB, source, read=True, write=False)
        other = await service.open(BOB, target, read=False, write=True)
        copying = service.begin_copy(one, 0, other, 0, 5)
        await service.copy_for_a_while(copying)
        assert copying.done == 5
        found = await service.attributes(target)
        assert (found.size, found.mode) == (5, 0o777)
        one.release()
        other.release()

    run(tmp_path, scenario)


# -- what is kept --------------------------------------------------------------------------------------------------
def test_names_and_attributes_are_on_the_account_too():
    store = MemoryBackend(size=1 << 16)
    root = store.root()
    key = store.make(root, b"f", New(FileType.REG, 0o644), 0, 0)
    before = store.space().free_bytes
    for fill, empty in (
        (lambda at: store.link(key, root, b"%d" % at), lambda at: store.remove(root, b"%d" % at)),
        (lambda at: store.set_xattr(key, b"%d" % at, b""), lambda at: store.remove_xattr(key, b"%d" % at)),
    ):
        count = 0
        with contextlib.suppress(OSError):
            while count < 1000:
                fill(count)
                count += 1
        assert 200 < count < 300
        for at in range(count):
            empty(at)
        assert store.space().free_bytes == before


def test_a_file_that_has_other_names_is_not_forgotten(tmp_path):
    async def scenario(service, root):
        node = await made(service, root, b"f")
        await service.link(ALICE, node, root, b"g")
        Dull.forgotten = 0
        await service.remove(ALICE, root, b"f", directory_wanted=False)
        assert Dull.forgotten == 0

    run(tmp_path, scenario, choice=BackendChoice("python", "tests.unit.backend_wrongs:Dull"))


def test_a_store_is_closed_when_none_of_its_methods_runs():
    async def main():
        store = KeyedStore(Slow())
        reading = asyncio.ensure_future(store.calls.run(store.calls.store.read, b"", 0, 1))
        await asyncio.to_thread(Slow.begun.wait, 20)
        store.close()
        for one in [one for one in threading.enumerate() if one.name == "Slow"]:
            await asyncio.to_thread(one.join, 0.3)  # all but that which reads end
        assert Slow.told == []
        Slow.gate.set()
        assert await reading == b""
        for one in [one for one in threading.enumerate() if one.name == "Slow"]:
            await asyncio.to_thread(one.join, 20)
        assert Slow.told == ["read", "closed"]

    asyncio.run(main())


# -- plug-ins ------------------------------------------------------------------------------------------------------
def test_an_installed_plug_in_is_found_by_its_name(tmp_path, monkeypatch):
    about = tmp_path / "mystore-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mystore\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[rdma_nfsd.backends]\nmystore = tests.unit.backend_plugins:Lasting\nbroken = tests.unit.no_such_module:Store\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    store = make_store(Export(7, "", "/x", backend=BackendChoice("mystore", options={"names": 3})))
    assert isinstance(store, KeyedStore)
    assert len(store.calls.store.names_after(store.calls.store.lookup(store.calls.store.root(), b"many"), 0, 9)) == 3
    with pytest.raises(BadBackend, match="cannot be imported"):
        make_store(Export(7, "", "/x", backend=BackendChoice("broken")))
    with pytest.raises(BadBackend, match="there are broken, cephfs, fsspec, git, memory, mystore, python"):
        make_store(Export(7, "", "/x", backend=BackendChoice("other")))
