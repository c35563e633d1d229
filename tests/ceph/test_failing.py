"""CephFS when the cluster, the server or the configuration fails: what was promised stays, and others are served."""

import asyncio
import contextlib
import errno
import os
import socket

import pytest

from nfsd.backend_suite.scenarios import refused
from nfsd.backend_suite.trying import WAYS, Entry
from nfsd.client import Options, connect
from nfsd.client.errors import NfsClientError
from tests.ceph.gateways import Gateway
from tests.unit.test_backends_served import MEMORY, run

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900)]
SECOND = {**MEMORY.settings, "pseudo": "/second"}
PIECE = 1 << 18


@pytest.mark.parametrize("way", [("tcp", "3"), ("rdma", "4.1")], ids="-".join)
def test_an_osd_that_is_killed_under_writes_loses_nothing(tmp_path, place, way):
    written = {}

    async def write(fs, name, stop):
        """Synchronised piece by piece: what has been acknowledged then is promised."""
        await fs.write_bytes(name, b"")
        async with fs.open(name, "r+b") as file:
            for number in range(1_000_000):
                data = bytes([number % 251 + 1]) * PIECE
                await file.pwrite(data, number * PIECE)
                await file.flush()
                written[name] = number + 1
                if stop.is_set() and number > 3:
                    return

    async def test(server):
        stop = asyncio.Event()
        async with server.connect(way) as fs, server.connect(way, "second") as second:
            writers = [asyncio.ensure_future(write(fs, f"f{number}", stop)) for number in range(3)]
            while len(written) < 3 and not any(one.done() for one in writers):  # noqa: ASYNC110 (three tasks write into it)
                await asyncio.sleep(0.1)
            await asyncio.to_thread(place.cluster.kill, "osd")
            before = dict(written)
            await second.write_bytes("f", b"1")
            assert await second.read_bytes("f") == b"1"
            await asyncio.to_thread(place.cluster.start_osd)
            while not any(one.done() for one in writers) and any(written[name] < before[name] + 3 for name in before):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            stop.set()
            await asyncio.gather(*writers)

    run(tmp_path, place.entry(more=[SECOND]), test, patience=800)

    async def check(server):
        async with server.connect(way) as fs:
            for name, count in written.items():
                expected = b"".join(bytes([number % 251 + 1]) * PIECE for number in range(count))
                assert await fs.read_bytes(name) == expected

    run(tmp_path, place.entry(), check, patience=800)


def test_a_metadata_server_that_is_killed_is_waited_for(tmp_path, place):
    async def test(server):
        async with server.connect(("rdma", "4.1")) as fs, server.connect(("tcp", "3"), "second") as second:
            await fs.mkdir("d")
            await fs.write_bytes("d/f", b"1")
            await asyncio.to_thread(place.cluster.kill, "mds")
            waiting = asyncio.ensure_future(fs.mkdir("d/e"))
            await second.write_bytes("f", b"1")
            assert await second.read_bytes("f") == b"1"
            assert not waiting.done()
            await asyncio.to_thread(place.cluster.start_mds)
            await waiting
            assert sorted(await fs.listdir("d")) == ["e", "f"]
            assert await fs.read_bytes("d/f") == b"1"

    run(tmp_path, place.entry(more=[SECOND]), test, patience=800)


def test_a_cluster_that_stalls_holds_up_no_other_export(tmp_path, place):
    async def test(server):
        async with server.connect(("tcp", "4.1")) as fs, server.connect(("tcp", "4.1"), "second") as second:
            await fs.write_bytes("f", b"1")
            for kind in ("mds", "osd"):
                place.cluster.pause(kind)
            try:
                # More than the store has threads.
                waiting = [asyncio.ensure_future(fs.write_bytes(f"g{number}", b"2")) for number in range(40)]
                for number in range(20):
                    await second.write_bytes(f"f{number}", b"1")
                    assert await second.read_bytes(f"f{number}") == b"1"
                assert not any(one.done() for one in waiting)
            finally:
                for kind in ("mds", "osd"):
                    place.cluster.resume(kind)
            await asyncio.gather(*waiting)
            assert len(await fs.listdir()) == 41

    place.options["threads"] = 4
    run(tmp_path, place.entry(more=[SECOND]), test, patience=800)


# -- the configuration ---------------------------------------------------------------------------------------------
def _nowhere(cluster, tmp_path):
    with socket.socket() as one:  # bound, and nobody listens
        one.bind(("127.0.0.1", 0))
        conf = tmp_path / "nowhere.conf"
        conf.write_text(f"[global]\nmon_host = v1:127.0.0.1:{one.getsockname()[1]}\nkeyring = {cluster.keyring()}\n")
    return {"config": str(conf)}


def _wrong_key(cluster, tmp_path):
    ring = tmp_path / "keyring"
    ring.write_text("[client.admin]\n\tkey = AQDsLnFlAAAAABAAQ2VwaCBpcyBub3QgYQ0kZXk=\n")
    return {"config": str(cluster.conf), "keyring": str(ring)}


def _narrow_key(cluster, tmp_path):
    """One that lets into another directory only."""
    caps = {"mon": "allow r", "osd": "allow rw", "mds": "allow rw path=/elsewhere"}
    return {"config": str(cluster.conf), "name": "narrow", "keyring": str(cluster.add_key("client.narrow", caps))}


WRONG = [
    (_nowhere, "no monitor of"),
    (_wrong_key, "does not take the key of client.admin"),
    (_narrow_key, "the key of client.narrow does not let it into /"),
    (lambda cluster, _: {"config": str(cluster.conf), "name": "nobody"}, "there is no key of client.nobody"),
    (lambda cluster, _: {"config": str(cluster.conf), "filesystem": "other"}, "has not the file system 'other'"),
    (lambda cluster, _: {"config": str(cluster.conf), "root": "/none"}, "/none"),
    (lambda *_: {"config": "/nonexistent/ceph.conf"}, "config: /nonexistent/ceph.conf: No such file or directory"),
    (lambda cluster, _: {"config": str(cluster.conf), "keyring": "/nonexistent/ring"}, "keyring: /nonexistent/ring"),
    (lambda cluster, _: {"config": str(cluster.conf), "threads": 0}, "threads must be a number from 1"),
    (lambda cluster, _: {"conf": str(cluster.conf)}, "conf"),
]


@pytest.mark.parametrize(("options", "why"), WRONG, ids=[why[:30] for _, why in WRONG])
def test_what_is_wrong_is_said_and_the_others_are_served(tmp_path, cluster, options, why):
    entry = Entry({"backend": "cephfs", "options": options(cluster, tmp_path)}, more=[SECOND])

    async def test(server):
        async with server.connect(("tcp", "4.1"), "second") as fs:
            await fs.write_bytes("f", b"1")
        (absent,) = server.daemon.service.absent.values()
        assert why in absent.why
        assert absent.remedy

    run(tmp_path, entry, test, patience=300)


# -- the server as a process ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS[1:3], ids="-".join)
def test_a_killed_server_comes_back_with_its_handles(tmp_path, place, way):
    """Its session of before is ended at once: nobody waits until the cluster has found out."""
    transport, version = way
    server = Gateway(tmp_path, place.options, f"test-{os.getpid()}-{transport}", {})
    url = f"{transport}://127.0.0.1:{server.port if transport == 'tcp' else server.rdma}/tried"
    options = Options(nfs_version=version, mount_port=server.mountd)

    async def connected():
        while True:
            try:
                return await connect(url, options)
            except (OSError, NfsClientError):
                await asyncio.sleep(0.2)

    async def test():
        with server:
            fs = await connected()
            await fs.mkdir("d")
            await fs.write_bytes("d/f", b"kept")
            found = await fs.backend.lookup((await fs.backend.lookup(fs.root.handle, b"d")).handle, b"f")
        old = fs
        with server:
            fs = await connected()
            assert (await fs.backend.getattr(found.handle)).st_size == 4
            await fs.write_bytes("d/f", b"and changed")
            assert await fs.read_bytes("d/f") == b"and changed"
            await refused(fs.mkdir("d"), errno.EEXIST)
            await fs.close()
            with contextlib.suppress(OSError, NfsClientError):
                await asyncio.wait_for(old.close(), 30)  # what it had is gone with the server
            assert await server.stop() == 0

    asyncio.run(asyncio.wait_for(test(), 600))


def test_the_library_takes_notes_only_where_it_is_told_to(tmp_path, cluster):
    mounting = pytest.importorskip("nfsd.backends.cephfs.mounting")

    def levels(config):
        client = mounting.mounted(mounting.Settings(config=str(config)))
        try:
            return [client.configured(option) for option in (b"debug_client", b"debug_objectcacher", b"debug_objecter")]
        finally:
            client.end()

    assert levels(cluster.conf) == [b"0/0"] * 3
    config = tmp_path / "ceph.conf"
    config.write_text(cluster.conf.read_text() + "[client]\ndebug_client = 1/5\n")
    assert levels(config) == [b"1/5", b"0/0", b"0/0"]
    cluster.command("config", "set", "client", "debug_objecter", "0/3")  # for all clients of the cluster
    try:
        assert levels(cluster.conf) == [b"0/0", b"0/0", b"0/3"]
    finally:
        cluster.command("config", "rm", "client", "debug_objecter")
