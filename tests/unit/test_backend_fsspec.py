"""Exports of what fsspec reaches (nfsd.backends.fsspec): an S3 server on loopback, directories, archives, HTTP."""

import asyncio
import errno
import functools
import http.server
import os
import threading
import uuid
import zipfile

import pytest

from nfsd.backend_suite.scenarios import (
    SCENARIOS,
    WRITING,
    Trial,
    large_directories_are_listed_whole,
    refused,
)
from nfsd.backend_suite.trying import WAYS, Entry
from nfsd.backends.fsspec import FsspecBackend
from nfsd.backends.objects import Objects
from nfsd.backends.plugins import make_store
from nfsd.backends.simple import FileType, New
from nfsd.exported import BackendChoice, Export
from tests.unit.test_backends_served import run

CREDENTIALS = {"key": "somebody", "secret": "secret"}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a busy machine the first request takes longer than the server waits for one store before it serves others."""
    monkeypatch.setattr("nfsd.vfs.stored_names.PATIENCE", PATIENCE)


@pytest.fixture(scope="module")
def s3():
    """A server of S3 objects, and how to reach it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {**CREDENTIALS, "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
    server.stop()


@pytest.fixture
def bucket(s3):
    """A bucket of its own, as fsspec sees it."""
    import s3fs

    name = f"b-{uuid.uuid4().hex}"
    fs = s3fs.S3FileSystem(**s3, use_listings_cache=False, skip_instance_cache=True)
    fs.mkdir(name)
    return fs, name


def entry_of(url, *, writable=True, symlinks=False, **options):
    return Entry(
        {"backend": "fsspec", "options": {"url": url, "writable": writable, "mode": 0o644, **options}},
        writable=writable, hard_links=False, symlinks=symlinks, modes=False, any_names=False,
    )  # fmt: skip


PATIENCE = 600
"""Seconds. The S3 server takes many milliseconds for each request, and more on a busy machine."""


@pytest.mark.parametrize(
    ("kind", "way"),
    [*(("file", way) for way in WAYS), ("s3", ("tcp", "4.1")), ("s3", ("rdma", "3"))],
    ids=lambda one: one if isinstance(one, str) else "-".join(one),
)
def test_the_suite(tmp_path, s3, bucket, kind, way):
    (tmp_path / "store").mkdir()
    url = f"s3://{bucket[1]}/below" if kind == "s3" else f"file://{tmp_path}/store"
    entry = entry_of(url, fresh=60, **({"storage": s3} if kind == "s3" else {}))
    slow = kind == "s3"  # thousands of requests for names, of which the server knows those that it has made

    async def test(server):
        async with server.connect(way) as fs:
            for scenario in WRITING:
                if not slow or scenario is not large_directories_are_listed_whole:
                    await fs.mkdir(scenario.__name__)
                    await scenario(entry.trial(fs, scenario.__name__))
            for scenario in SCENARIOS:
                await scenario(entry.trial(fs, "data_is_read_as_it_was_written"))

    run(tmp_path, entry, test, patience=PATIENCE)


def on_s3(tmp_path, s3, bucket, test, **options):
    """``test(fs, read)`` with a mount of a bucket, and what the bucket has under a name."""
    store, name = bucket

    def read(path):
        return store.cat_file(f"{name}/{path}")

    async def connected(server):
        async with server.connect(("tcp", "4.1")) as fs:
            await test(fs, read)

    run(tmp_path, entry_of(f"s3://{name}", storage=s3, **options), connected, patience=PATIENCE)


def test_the_store_has_what_was_committed(tmp_path, s3, bucket):
    data = os.urandom(3 << 20)

    async def test(fs, read):
        await fs.mkdir("d")
        async with fs.open("d/f", "x") as file:
            await file.pwrite(data, 0)
            await file.flush()
            assert read("d/f") == data
            await file.pwrite(b"more", len(data))
            await file.flush()
        assert read("d/f") == data + b"more"
        await fs.rename("d/f", "g")
        assert read("g") == data + b"more"
        assert await fs.listdir() == ["d", "g"]  # which S3 would not keep

    on_s3(tmp_path, s3, bucket, test, fresh=60)


def test_what_nobody_commits_gets_to_the_store_in_the_end(tmp_path, s3, bucket):
    async def test(fs, read):
        await fs.write_bytes("f", b"old")
        async with fs.open("f", "r+") as file:
            await file.pwrite(b"new", 0)
            for _ in range(300):
                if read("f") == b"new":
                    break
                await asyncio.sleep(0.1)
        assert read("f") == b"new"

    on_s3(tmp_path, s3, bucket, test)


def test_the_end_of_the_server_gives_the_store_what_it_lacks(tmp_path, s3, bucket, monkeypatch):
    monkeypatch.setattr("nfsd.backends.fsspec._LEFT_ALONE", 1e9)
    held = []

    async def test(fs, read):
        await fs.write_bytes("f", b"")
        file = await fs.open("f", "r+")
        held.append(file)
        await file.pwrite(b"new", 0)
        assert read("f") == b""

    on_s3(tmp_path, s3, bucket, test)
    store, name = bucket
    for _ in range(300):
        if store.cat_file(f"{name}/f") == b"new":
            return
        threading.Event().wait(0.1)
    raise AssertionError("the store never had it")


def test_what_others_put_into_the_store_is_seen(tmp_path, s3, bucket):
    store, name = bucket
    store.pipe_file(f"{name}/deep/er/f", b"one")

    async def test(fs, read):
        assert await fs.read_bytes("deep/er/f") == b"one"
        before = (await fs.stat("deep/er")).st_ctime_ns
        store.pipe_file(f"{name}/deep/er/f", b"other")
        store.pipe_file(f"{name}/deep/er/g", b"")
        assert await fs.read_bytes("deep/er/f") == b"other"
        assert await fs.listdir("deep/er") == ["f", "g"]
        assert (await fs.stat("deep/er")).st_ctime_ns > before

    on_s3(tmp_path, s3, bucket, test, fresh=0)


def test_drafts_have_so_much_room_and_no_more(tmp_path, s3, bucket):
    async def test(fs, read):
        await refused(fs.write_bytes("large", b"x" * 300_000), errno.ENOSPC)
        await fs.remove("large")
        for number in range(4):  # what the store has makes room
            await fs.write_bytes(f"f{number}", b"x" * 150_000)
            assert len(read(f"f{number}")) == 150_000
        assert sum(path.stat().st_size for path in drafts.rglob("*") if path.is_file()) <= 200_000

    drafts = tmp_path / "drafts"
    drafts.mkdir()
    on_s3(tmp_path, s3, bucket, test, drafts=str(drafts), room=200_000)
    for _ in range(300):  # the store is closed by a thread of its own
        if not list(drafts.iterdir()):
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"{list(drafts.iterdir())} is left")


def test_a_store_that_fails_costs_the_commit_and_not_the_octets(tmp_path, s3, bucket, monkeypatch):
    upload, failing = Objects.upload, []

    def fail(self, path, source):
        if failing:
            raise OSError(errno.EIO, "the store is not there")
        return upload(self, path, source)

    monkeypatch.setattr(Objects, "upload", fail)

    async def test(fs, read):
        await fs.write_bytes("f", b"")
        failing.append(True)
        async with fs.open("f", "r+") as file:
            await file.pwrite(b"new", 0)
            await refused(file.flush(), errno.EIO)
            failing.clear()
            await file.flush()
        assert read("f") == b"new"

    on_s3(tmp_path, s3, bucket, test)


@pytest.mark.parametrize("kind", ["zip", "http"])
def test_archives_and_web_servers_can_be_read(tmp_path, kind):
    site = tmp_path / "site"
    (site / "d").mkdir(parents=True)
    data = os.urandom(300_000)
    (site / "d" / "f").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(site / "d" / "f", "d/f")

    async def test(server):
        for way in WAYS:
            async with server.connect(way) as fs:
                assert await fs.read_bytes("d/f") == data
                assert "f" in await fs.listdir("d")
                await refused(fs.write_bytes("new", b""), errno.EROFS)
                for scenario in SCENARIOS:
                    await scenario(Trial(fs, "d"))

    if kind == "zip":
        run(tmp_path, entry_of(f"zip://::file://{tmp_path}/a.zip", writable=False), test)
        return
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        try:
            run(tmp_path, entry_of(f"http://127.0.0.1:{web.server_port}/", writable=False), test)
        finally:
            web.shutdown()


@pytest.mark.parametrize("name", [b"..", b".", b"", b"../secret", b"d/../../secret", b"/etc/passwd"])
def test_no_name_leads_out_of_the_store(tmp_path, name):
    (tmp_path / "store").mkdir()
    (tmp_path / "secret").write_text("secret")
    store = FsspecBackend(url=f"file://{tmp_path}/store", writable=True)
    new = New(FileType.REG, 0o644)
    root = store.root()
    try:
        for call in (
            lambda: store.lookup(root, name),
            lambda: store.make(root, name, new, 0, 0),
            lambda: store.remove(root, name),
            lambda: store.rename(root, name, root, b"here"),
            lambda: store.rename(root, b"here", root, name),
        ):
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                call()
    finally:
        store.close()
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "file:///nowhere/at/all"}, "nowhere"),
        ({"url": "none://x"}, "none"),
        ({"url": "s3://no-such-bucket/x", "storage": "S3"}, "no-such-bucket"),
    ],
)
def test_what_cannot_be_reached_is_told(s3, options, said):
    if options.get("storage"):
        options = {**options, "storage": s3}
    with pytest.raises(OSError, match=said):
        make_store(Export(7, "", "/x", backend=BackendChoice("fsspec", options=options)))
