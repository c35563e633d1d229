"""Stable storage in a pool: one server at a time, and a name that moves to another host. Most of what every kind
must do is in test_short.py."""

import asyncio
import dataclasses
import errno
import os
import socket
from pathlib import Path

import pytest

from nfsd.client import Options, connect
from nfsd.client.errors import NfsClientError
from nfsd.client.recovery import Client4
from nfsd.config_stable import RadosPool
from nfsd.stable.rados.storage import Fenced, RadosStorage
from nfsd.vfs.handles import load_key
from tests.ceph.process import Process
from tests.ceph.stable_storage import POOL
from tests.support.ports import free_port
from tests.support.stable_storage import Promises, a_failed_commit_fails_the_flush_and_is_tried_again, record

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(600)]


LONG = {"seconds": 600, "renewal": 600}
"""A lock that a test takes away before it is renewed."""


@pytest.fixture
def other(tmp_path):
    """The state directory of another host."""
    (tmp_path / "other").mkdir()
    return tmp_path / "other"


def test_a_failed_commit_fails_the_flush_and_is_tried_again(rados, monkeypatch):
    monkeypatch.setattr("nfsd.stable.rados.connecting.TIMEOUT", 5)
    asyncio.run(a_failed_commit_fails_the_flush_and_is_tried_again(rados))


# -- one server at a time ----------------------------------------------------------------------------------------
def test_no_second_server_starts_while_one_lives(rados, other):
    async def main():
        first = rados.make()
        await first.start()
        with pytest.raises(OSError, match="is in use by the server on") as refusal:
            await rados.make(directory=other).start()
        assert refusal.value.errno == errno.EBUSY
        engine = Promises()
        engine.promise(record(b"a"))
        await first.flush(engine)
        await first.close()
        second = rados.make(directory=other)
        assert [one.owner for one in (await second.start()).records] == [b"a"]
        await second.close()
        assert rados.lost == []

    asyncio.run(main())


def test_who_has_lost_the_records_changes_nothing_and_is_told(rados, other):
    async def main():
        first, engine = rados.make(**LONG), Promises()
        await first.start()
        rados.break_lock()
        second = rados.make(directory=other)
        recovered = await second.start()
        engine.promise(record(b"late"))
        with pytest.raises(Fenced, match="another server"):
            await first.flush(engine)
        assert engine.writes_committed == 0
        assert len(rados.lost) == 1
        await first.close()
        await second.close()
        third = rados.make(directory=other)
        again = await third.start()
        assert again.records == ()
        assert again.epoch == recovered.epoch + 1
        await third.close()

    asyncio.run(main())


@pytest.mark.parametrize("has_released", [False, True])
def test_who_has_lost_the_lock_finds_out_without_a_change(rados, other, has_released):
    async def main():
        first = rados.make(**LONG)
        await first.start()
        rados.break_lock()
        second = rados.make(directory=other)
        await second.start()
        if has_released:
            await second.close()
        with pytest.raises(Fenced, match="another server ha"):
            await first._run(first._renew)
        assert len(rados.lost) == 1
        if has_released:  # nor does it stand in the way of the other
            second = rados.make(directory=other)
            await second.start()
        await second.close()
        await first.close()

    asyncio.run(main())


def test_a_server_that_cannot_renew_its_lock_ends_in_time(rados, monkeypatch):
    monkeypatch.setattr("nfsd.stable.rados.connecting.TIMEOUT", 2)

    async def main():
        storage = rados.make(seconds=6, renewal=1.0)
        await storage.start()
        rados.cluster.pause("osd")
        try:
            while not rados.lost:  # noqa: ASYNC110 (a list)
                await asyncio.sleep(0.1)
        finally:
            rados.cluster.resume("osd")
        assert rados.lost == [f"{storage.place}: the lock could not be renewed for 6 seconds"]
        await storage.close()

    asyncio.run(main())


def test_a_lock_that_is_renewed_outlives_its_time(rados, other):
    async def main():
        first = rados.make(seconds=3, renewal=0.5)
        await first.start()
        await asyncio.sleep(5)
        with pytest.raises(OSError, match="is in use"):
            await rados.make(directory=other).start()
        await first.close()

    asyncio.run(main())


# -- what moves ----------------------------------------------------------------------------------------------------
def test_the_key_of_handles_and_the_identity_move_with_the_name(rados, other):
    """Those that the first host had before move, too."""
    key, identity = load_key(str(rados.directory)), os.urandom(16).hex().encode()
    (rados.directory / "server-id").write_bytes(identity)

    async def main():
        for directory in (rados.directory, other):
            storage = rados.make(directory=directory)
            await storage.start()
            assert load_key(str(directory)) == key
            assert (directory / "server-id").read_bytes() == identity
            await storage.close()

    load_key(str(other))
    asyncio.run(main())


def test_names_do_not_meet(rados, tmp_path):
    async def main():
        one, engine = rados.make(), Promises()
        await one.start()
        engine.promise(record(b"a"))
        await one.flush(engine)
        other = RadosStorage(rados.pool, rados.name + "0", str(tmp_path), rados.lost.append)
        assert (await other.start()).records == ()
        await other.close()
        await one.close()

    asyncio.run(main())


# -- what is wrong -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pool": "none"}, "there is no pool 'none'"),
        ({"user": "nobody"}, "there is no key of client.nobody"),
        ({"config": "/nonexistent/ceph.conf"}, "/nonexistent/ceph.conf"),
    ],
)
def test_what_is_wrong_is_said(rados, changes, why):
    rados.pool = dataclasses.replace(rados.pool, **changes)
    with pytest.raises(OSError, match=why):
        asyncio.run(rados.make().start())


def test_a_key_that_may_not_write_is_told_of(rados):
    rados.cluster.add_key("client.reader", {"mon": "allow r", "osd": "allow r"})
    rados.pool = dataclasses.replace(rados.pool, user="reader")
    with pytest.raises(OSError, match=r"key of client.reader does not let it"):
        asyncio.run(rados.make().start())


def test_the_key_of_the_document_is_enough(rados):
    caps = {"mon": "allow r", "osd": f"allow rwx pool={POOL} namespace={rados.pool.namespace}"}
    document = (Path(__file__).parents[2] / "docs" / "clustering.md").read_text()
    written = caps["osd"].replace(POOL, "nfs-records").replace(rados.pool.namespace, RadosPool(pool=POOL).namespace)
    assert all(f"'{what}'" in document for what in (caps["mon"], written))
    rados.cluster.add_key(f"client.{rados.name}", caps)
    rados.pool = dataclasses.replace(rados.pool, user=rados.name)

    async def main():
        for _ in range(2):
            storage, engine = rados.make(renewal=0.1), Promises()
            await storage.start()
            engine.promise(record(b"a"))
            await storage.flush(engine)
            await asyncio.sleep(0.5)
            await storage.close()
        assert rados.lost == []

    asyncio.run(main())


def test_a_monitor_that_does_not_answer_is_told_of(rados, tmp_path, monkeypatch):
    monkeypatch.setattr("nfsd.stable.rados.connecting.TIMEOUT", 2)
    with socket.socket() as one:  # bound, and nobody listens
        one.bind(("127.0.0.1", 0))
        conf = tmp_path / "nowhere.conf"
        where = f"v1:127.0.0.1:{one.getsockname()[1]}"
        conf.write_text(f"[global]\nmon_host = {where}\nkeyring = {rados.cluster.keyring()}\n")
        rados.pool = RadosPool(config=str(conf), pool=POOL)
        with pytest.raises(OSError, match="no monitor of"):
            asyncio.run(rados.make().start())


def test_records_of_another_format_are_left_alone(rados):
    async def main():
        storage = rados.make()
        await storage.start()
        await storage.close()
        connection, name = rados.connection(), f"server.{rados.name}".encode()
        connection.change(name, None, {}, {b"instance": b'{"format": 2}'}, [])
        with pytest.raises(OSError, match="another version of the server"):
            await rados.make().start()
        assert connection.pairs(name)[b"instance"] == b'{"format": 2}'
        connection.end()

    asyncio.run(main())


# -- servers as processes --------------------------------------------------------------------------------------------
def process(rados, directory, port):
    """A server of this name on a host of its own."""
    server = {"listen": [f"tcp://127.0.0.1:{port}"], "nlm": False, "mountd_port": 0, "name": rados.name}
    server["versions"] = ["4.1"]
    server["nfs4"] = {"grace_time": 5, "lease_time": 30}
    server["stable_storage"] = {"rados": {"config": rados.pool.config, "pool": POOL, "namespace": rados.pool.namespace}}
    data = rados.directory.parent / "data"
    data.mkdir(exist_ok=True)
    return Process(directory, server, {"path": str(data), "pseudo": "/data", "squash": "none"})


async def connected(port, running):
    while True:
        try:
            return await connect(f"tcp://127.0.0.1:{port}/data", Options(nfs_version="4.1"))
        except (OSError, NfsClientError):
            running.check()
            await asyncio.sleep(0.2)


def test_a_frozen_server_ends_when_it_wakes_up_and_another_has_its_name(rados, tmp_path):
    port, second_port = free_port(), free_port()

    async def test():
        with process(rados, tmp_path / "one", port) as first:
            fs = await connected(port, first)
            await fs.write_bytes("f", b"kept")
            handle = (await fs.backend.lookup(fs.root.handle, b"f")).handle
            await fs.close()
            first.freeze()
            with process(rados, tmp_path / "two", second_port) as refused:
                assert await refused.ended(120) != 0
                assert "is in use by the server on" in refused.log
            await asyncio.to_thread(rados.break_lock)
            with process(rados, tmp_path / "two", second_port) as second:
                fs = await connected(second_port, second)
                assert (await fs.backend.getattr(handle)).st_size == 4
                first.wake()
                assert await first.ended(120) == 70
                assert "another server has" in first.log
                await fs.close()

    asyncio.run(asyncio.wait_for(test(), 500))


def test_a_client_goes_on_at_another_host_of_the_same_name(rados, tmp_path, monkeypatch):
    """It reclaims what it had open at the host that was killed, by the handle that it had from there."""
    port, reclaims = free_port(), []
    open_again = Client4._open_again

    async def noting(self, opened, *, reclaim):
        granted = await open_again(self, opened, reclaim=reclaim)
        reclaims.append((reclaim, granted))
        return granted

    monkeypatch.setattr(Client4, "_open_again", noting)

    async def test():
        with process(rados, tmp_path / "one", port) as first:
            fs = await connected(port, first)
            await fs.write_bytes("f", b"kept")
            file = await fs.open("f", "r+b")
            await file.pwrite(b"K", 0)
            first.kill()
            await asyncio.to_thread(rados.break_lock)
            with process(rados, tmp_path / "two", port):
                await file.pwrite(b"!", 4)
                assert reclaims == [(True, True)]
                await file.close()
                assert await fs.read_bytes("f") == b"Kept!"
                await fs.close()

    asyncio.run(asyncio.wait_for(test(), 500))
