"""Exports of every backend, served to our own client: the backends' suite, and what is of several exports."""

import asyncio
import errno
import os

import pytest
import uvloop

from nfsd.backend_suite.scenarios import SCENARIOS, WRITING, Trial, refused
from nfsd.backend_suite.trying import WAYS, Entry, serving
from tests.unit.backend_plugins import Faulty
from tests.unit.vfs_support import directory_on

MEMORY = Entry({"backend": "memory"})
THREADED = Entry({"backend": "python", "module": "tests.unit.backend_plugins:Threaded"})


def run(tmp_path, entry, test, *, patience=100):
    """``test(server)``, with everything given back at its end."""

    async def whole():
        async with asyncio.timeout(patience), serving(tmp_path, entry) as server:
            await test(server)
        assert server.daemon.pool.in_use == 0

    mask = os.umask(0o022)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(whole())
    finally:
        os.umask(mask)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("kind", ["tmpfs", "disk", "memory", "threads"])
def test_the_suite(tmp_path, kind, way):
    async def test(server):
        async with server.connect(way) as fs:
            for scenario in WRITING:
                place = scenario.__name__
                await fs.mkdir(place)
                await scenario(Trial(fs, place))
            for scenario in SCENARIOS:
                await scenario(Trial(fs, "data_is_read_as_it_was_written"))

    if kind in ("memory", "threads"):
        run(tmp_path, MEMORY if kind == "memory" else THREADED, test)
        return
    with directory_on("disk" if kind == "disk" else "memory", tmp_path) as path:
        run(tmp_path, Entry({"path": path}), test)


def test_exports_of_several_backends_stand_side_by_side(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    more = [{"pseudo": "/other", "path": str(other), "squash": "none"}, {**MEMORY.settings, "pseudo": "/second"}]

    async def test(server):
        for way in WAYS:
            async with (
                server.connect(way) as one,
                server.connect(way, "other") as local,
                server.connect(way, "second") as second,
            ):
                await one.write_bytes("f", b"one")
                for into in (local, second):
                    await refused(one.rename("f", "f", into=into), errno.EXDEV)
                    assert not await into.exists("f")
                await local.write_bytes("g", b"local")
                await refused(local.rename("g", "g", into=one), errno.EXDEV)
                assert await one.read_bytes("f") == b"one"
        assert (other / "g").read_bytes() == b"local"

    run(tmp_path, Entry(MEMORY.settings, more=more), test)


@pytest.mark.parametrize("way", [("tcp", "3"), ("tcp", "4.1")], ids="-".join)
@pytest.mark.parametrize("lasting", [True, False])
def test_handles_are_good_after_a_restart_where_keys_are(tmp_path, way, lasting):
    options = {"lasting": str(tmp_path)} if lasting else {}
    entry = Entry({"backend": "python", "module": "tests.unit.backend_plugins:Lasting", "options": options})
    handles = []

    async def before(server):
        async with server.connect(way) as fs:
            await fs.mkdir("d")
            await fs.write_bytes("d/f", b"kept")
            handles.append(
                (await fs.backend.lookup((await fs.backend.lookup(fs.root.handle, b"d")).handle, b"f")).handle
            )

    async def after(server):
        async with server.connect(way) as fs:
            if lasting:
                assert (await fs.backend.getattr(handles[0])).st_size == 4
                assert await fs.read_bytes("d/f") == b"kept"
            else:
                await refused(fs.backend.getattr(handles[0]), errno.ESTALE)

    run(tmp_path, entry, before)
    run(tmp_path, entry, after)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_what_a_plug_in_does_wrong_costs_its_call(tmp_path, way, caplog):
    entry = Entry(
        {"backend": "python", "module": "tests.unit.backend_plugins:Faulty"},
        more=[{**MEMORY.settings, "pseudo": "/second"}],
    )

    async def test(server):
        async with server.connect(way) as fs, server.connect(way, "second") as second:
            for name in ("raises", "lies"):
                await refused(fs.read_bytes(name), errno.EIO)
            assert await fs.read_bytes("good") == b"good"
            assert await fs.listdir() == ["good"]  # and not what is no name
            await refused(fs.write_bytes("good", b"x"), errno.EROFS)
            await refused(fs.write_bytes("new", b"x"), errno.EROFS, errno.EACCES)
            await refused(fs.mkdir("d"), errno.EROFS)
            await refused(fs.remove("good"), errno.EROFS)
            hanging = asyncio.ensure_future(fs.read_bytes("hangs"))
            try:
                assert await fs.read_bytes("good") == b"good"  # by the other thread
                await second.write_bytes("f", b"1")
                assert await second.read_bytes("f") == b"1"
                assert not hanging.done()
            finally:
                Faulty.released.set()
            assert await hanging == b"good"

    run(tmp_path, entry, test)
    assert "KeyError: 'a mistake'" in caplog.text
    assert "backend Faulty failed" in caplog.text
    assert "ValueError" in caplog.text


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"backend": "python", "module": "tests.unit.no_such_module:Store"}, "cannot be imported: ModuleNotFoundError"),
        ({"backend": "python", "module": "tests.unit.backend_plugins:failing"}, "no store today"),
        ({"backend": "nonesuch"}, "no backend 'nonesuch' is installed; there are cephfs, fsspec, git, memory, python"),
        ({"backend": "memory", "options": {"sise": 1}}, "no such option: sise"),
    ],
)
def test_a_store_that_cannot_be_made_is_absent(tmp_path, settings, why):
    entry = Entry(settings, more=[{**MEMORY.settings, "pseudo": "/second"}])

    async def test(server):
        async with server.connect(("tcp", "4.1"), "second") as fs:
            await fs.write_bytes("f", b"1")
        (absent,) = server.daemon.service.absent.values()
        assert why in absent.why
        assert absent.remedy

    run(tmp_path, entry, test)


def test_a_backend_that_hangs_at_the_start_holds_up_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "nfsd.vfs.stored_names.PATIENCE", 2
    )  # the other store's start is to come through a busy machine
    settings = {"backend": "python", "module": "tests.unit.backend_plugins:hanging"}

    async def test(server):
        async with server.connect(("tcp", "3"), "second") as fs:
            await fs.write_bytes("f", b"1")
        (absent,) = server.daemon.service.absent.values()
        assert "does not answer" in absent.why
        Faulty.released.set()

    Faulty.released.clear()
    run(tmp_path, Entry(settings, more=[{**MEMORY.settings, "pseudo": "/second"}]), test)


def test_memory_is_bounded(tmp_path):
    async def test(server):
        async with server.connect(("tcp", "4.1")) as fs:
            await refused(fs.write_bytes("large", bytes(1 << 20)), errno.ENOSPC)
            async with fs.open("sparse", "w") as file:
                await refused(file.pwrite(b"x", 1 << 40), errno.ENOSPC, errno.EFBIG)
            await fs.remove("large")
            await fs.remove("sparse")
            for _ in range(20):
                await fs.write_bytes("again", bytes(60_000))
                await fs.remove("again")
            assert await fs.write_bytes("small", b"1") == 1

    run(tmp_path, Entry({"backend": "memory", "options": {"size": 1 << 17}}), test)


def test_ten_thousand_names_are_listed_whole(tmp_path):
    count = 10_000
    entry = Entry({"backend": "python", "module": "tests.unit.backend_plugins:Lasting", "options": {"names": count}})

    async def test(server):
        for way in WAYS:
            async with server.connect(way) as fs:
                assert sorted(await fs.listdir("many")) == [f"n{number:05}" for number in range(count)]

    run(tmp_path, entry, test)
