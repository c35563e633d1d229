"""The database behind the state engine: what is flushed is there after a crash, what is not may be lost."""

import asyncio
import os
import shutil
import sqlite3
import threading

import pytest

from nfsd.recovery_store import FILE_NAME, RecoveryStore
from nfsd.state import ClientRecord, Limits, StateEngine, StoreWrite

from .state_support import Clock


class Promises:
    """The store's side of an engine: writes to hand out, and how many came back."""

    def __init__(self):
        self.writes = []
        self.writes_issued = 0
        self.writes_committed = 0

    def promise(self, *writes):
        self.writes += writes
        self.writes_issued += len(writes)

    def take_writes(self):
        writes, self.writes = self.writes, []
        return writes

    def writes_done(self, count):
        self.writes_committed += count


def record(owner, epoch=1, principal="1:0", minor=1):
    return StoreWrite("record", minor, owner, principal, epoch)


async def crashed(directory, target, **kwargs):
    """What a server would start from if this one lost its power now: a copy of the files as they are."""
    shutil.copytree(directory, target)
    store = RecoveryStore(str(target))
    recovered = await store.start(**kwargs)
    await store.close()
    return recovered


def test_epochs_count_up_and_records_come_back(tmp_path):
    async def main():
        epochs = []
        for _ in range(3):
            store = RecoveryStore(str(tmp_path), lambda: 100.5)
            recovered = await store.start(lease=45)
            epochs.append(recovered.epoch)
            await store.close()
        assert epochs == [100, 101, 102]
        assert recovered.lease == 45
        assert recovered.records == ()

    asyncio.run(main())


def test_a_lost_database_does_not_bring_epochs_back(tmp_path):
    async def main():
        epochs = []
        for instance, now in enumerate((1000, 1500, 900)):
            # each in a directory of its own, but for the last: its clock was set back
            store = RecoveryStore(_made(tmp_path / str(min(instance, 1))), lambda now=now: now)
            epochs.append((await store.start()).epoch)
            await store.close()
        assert epochs == [1000, 1500, 1501]

    asyncio.run(main())


def test_flushed_changes_survive_a_crash(tmp_path):
    async def main():
        store, engine = RecoveryStore(_made(tmp_path / "state")), Promises()
        await store.start()
        engine.promise(record(b"a"), record(b"b\0\xff", principal="1:7"), record(b"c", minor=0))
        await store.flush(engine)
        assert engine.writes_committed == 3
        recovered = await crashed(tmp_path / "state", tmp_path / "copy1")
        assert set(recovered.records) == {
            ClientRecord(1, b"a", "1:0", 1),
            ClientRecord(1, b"b\0\xff", "1:7", 1),
            ClientRecord(0, b"c", "1:0", 1),
        }
        engine.promise(StoreWrite("remove", 1, b"a"), StoreWrite("remove", 1, b"never there"), record(b"c", 2, minor=0))
        engine.promise(StoreWrite("grace_done", epoch=2))
        await store.flush(engine)
        recovered = await crashed(tmp_path / "state", tmp_path / "copy2")
        assert recovered.records == (ClientRecord(0, b"c", "1:0", 2),)
        await store.close()

    asyncio.run(main())


def test_longest_lease_is_kept_until_a_grace_period_has_ended(tmp_path):
    async def main():
        leases = []
        for lease in (90, 10, 20):
            store, engine = RecoveryStore(str(tmp_path)), Promises()
            leases.append((await store.start(lease=lease)).lease)
            engine.promise(record(b"a"))
            await store.flush(engine)
            await store.close()
        assert leases == [0, 90, 90]
        store, engine = RecoveryStore(str(tmp_path)), Promises()
        recovered = await store.start(lease=20)
        engine.promise(StoreWrite("grace_done", epoch=recovered.epoch))
        await store.flush(engine)
        await store.close()
        store = RecoveryStore(str(tmp_path))
        assert (await store.start()).lease == 20
        await store.close()

    asyncio.run(main())


def test_waiting_flushes_share_one_commit(tmp_path):
    async def main():
        store, engine = RecoveryStore(str(tmp_path)), Promises()
        await store.start()
        batches, gate, apply = [], threading.Event(), store._apply

        def held(batch):
            gate.wait(10)
            batches.append(len(batch))
            apply(batch)

        store._apply = held

        async def promise(index):
            engine.promise(record(b"%d" % index))
            await store.flush(engine)
            assert engine.writes_committed > index

        tasks = [asyncio.create_task(promise(0))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(promise(index)) for index in range(1, 20)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
        assert sum(batches) == 20
        assert len(batches) == 2
        await store.close()

    asyncio.run(main())


def test_cancelled_flush_loses_nothing(tmp_path):
    async def main():
        store, engine = RecoveryStore(str(tmp_path)), Promises()
        await store.start()
        engine.promise(record(b"a"))
        task = asyncio.create_task(store.flush(engine))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.flush(engine)
        assert engine.writes_committed == 1
        await store.close()

    asyncio.run(main())


def test_failed_commit_fails_the_flush_and_is_tried_again(tmp_path):
    async def main():
        store, engine = RecoveryStore(str(tmp_path)), Promises()
        await store.start()
        blocker = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        store._database.execute("PRAGMA busy_timeout = 0")
        blocker.execute("BEGIN IMMEDIATE")
        engine.promise(record(b"a"))
        with pytest.raises(OSError, match=FILE_NAME):
            await store.flush(engine)
        assert engine.writes_committed == 0
        engine.promise(record(b"b"))
        with pytest.raises(OSError, match=FILE_NAME):
            await store.flush(engine)
        blocker.execute("ROLLBACK")
        blocker.close()
        await store.flush(engine)
        assert engine.writes_committed == 2
        await store.close()
        store = RecoveryStore(str(tmp_path))
        assert [r.owner for r in (await store.start()).records] == [b"a", b"b"]
        await store.close()

    asyncio.run(main())


def test_a_full_disk_is_said_to_be_one_and_the_records_are_written_when_there_is_room(tmp_path):
    async def main():
        store, engine = RecoveryStore(str(tmp_path)), Promises()
        await store.start()
        (pages,) = store._database.execute("PRAGMA page_count").fetchone()
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        for number in range(200):
            engine.promise(record(b"%d" % number + bytes(900)))
        with pytest.raises(OSError, match="is full"):
            await store.flush(engine)
        store._database.execute("PRAGMA max_page_count = 100000")
        await store.flush(engine)
        assert engine.writes_committed == 200
        await store.close()
        store = RecoveryStore(str(tmp_path))
        assert len((await store.start()).records) == 200
        await store.close()

    asyncio.run(main())


def test_unusable_files_are_named(tmp_path):
    async def main():
        with pytest.raises(OSError, match=FILE_NAME):
            await RecoveryStore(str(tmp_path / "missing")).start()
        (tmp_path / FILE_NAME).write_bytes(b"no database" * 100)
        with pytest.raises(OSError, match=FILE_NAME):
            await RecoveryStore(str(tmp_path)).start()
        os.unlink(tmp_path / FILE_NAME)
        database = sqlite3.connect(tmp_path / FILE_NAME)
        database.execute("PRAGMA user_version = 99")
        database.close()
        with pytest.raises(OSError, match="another version"):
            await RecoveryStore(str(tmp_path)).start()

    asyncio.run(main())


def test_real_engine_and_real_store(tmp_path):
    """A v4.1 client reclaims over a crash between two real instances."""

    async def instance(directory, check):
        store = RecoveryStore(str(directory))
        engine = StateEngine(Limits(), Clock(), await store.start())
        result = check(engine)
        await store.flush(engine)
        assert engine.stable
        await store.close()
        return result

    def connect(engine):
        made = engine.clients.exchange_id(owner=b"a", verifier=bytes(8), flags=0, principal="1:0")
        client = engine.clients.lookup(made.clientid)
        engine.clients.make_confirmed(client)
        return client

    def first(engine):
        engine.clients.reclaim_complete(connect(engine), one_fs=False)

    def second(engine):
        client = connect(engine)
        assert engine.grace.active
        assert client.may_reclaim

    async def main():
        await instance(tmp_path, first)
        await instance(tmp_path, second)

    asyncio.run(main())


def _made(path):
    path.mkdir(exist_ok=True)
    return str(path)


def test_records_of_the_former_schema_are_kept(tmp_path):
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.executescript(
        "CREATE TABLE instance (epoch INTEGER NOT NULL, lease REAL NOT NULL);"
        "INSERT INTO instance VALUES (7, 90);"
        "CREATE TABLE client (minor INTEGER NOT NULL, owner BLOB NOT NULL, principal TEXT NOT NULL,"
        " epoch INTEGER NOT NULL, PRIMARY KEY (minor, owner)) WITHOUT ROWID;"
        "INSERT INTO client VALUES (1, x'61', '1:0', 7);"
        "PRAGMA user_version = 1;"
    )
    database.close()

    async def main():
        store = RecoveryStore(str(tmp_path))
        recovered = await store.start()
        assert [(r.minor, r.owner, r.principal) for r in recovered.records] == [(1, b"a", "1:0")]
        engine = StateEngine(Limits(), lambda: 0.0, recovered)
        made = engine.clients.exchange_id(owner=b"a", verifier=bytes(8), flags=0, principal="1:0", host="192.0.2.1")
        assert engine.grace.claim(1, b"a", "1:0", "192.0.2.1", bytes(8)) == "1:0"
        client = engine.clients.lookup(made.clientid)
        engine.clients.make_confirmed(client)
        engine.clients.reclaim_complete(client, one_fs=False)
        await store.flush(engine)
        await store.close()
        again = await RecoveryStore(str(tmp_path)).start()
        assert [r.principal for r in again.records] == [f"1:0 192.0.2.1 {bytes(8).hex()}"]

    asyncio.run(main())
