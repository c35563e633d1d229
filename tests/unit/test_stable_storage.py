"""The database behind the state engine: what is flushed is there after a crash, what is not may be lost."""

import asyncio
import contextlib
import os
import shutil
import sqlite3

import pytest

from nfsd.stable.sqlite import FILE_NAME, SqliteStorage
from nfsd.state import Limits, StateEngine
from tests.support.stable_storage import SCENARIOS, Promises, record


class Sqlite:
    """See :class:`tests.support.stable_storage.Kind`."""

    def __init__(self, directory):
        self.directory = directory

    def make(self, now=100.5):
        return SqliteStorage(str(self.directory), lambda: now)

    async def crashed(self):
        """From a copy of the files as they are."""
        former, self.directory = self.directory, self.directory.with_name(self.directory.name + "x")
        shutil.copytree(former, self.directory)
        storage = self.make()
        recovered = await storage.start()
        await storage.close()
        return recovered

    @contextlib.contextmanager
    def failing(self, storage):
        blocker = sqlite3.connect(self.directory / FILE_NAME, isolation_level=None)
        storage._database.execute("PRAGMA busy_timeout = 0")
        blocker.execute("BEGIN IMMEDIATE")
        yield FILE_NAME
        blocker.execute("ROLLBACK")
        blocker.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_sqlite(tmp_path, scenario):
    asyncio.run(scenario(Sqlite(tmp_path)))


def test_a_lost_database_does_not_bring_epochs_back(tmp_path):
    async def main():
        epochs = []
        for instance, now in enumerate((1000, 1500, 900)):
            # each in a directory of its own, but for the last: its clock was set back
            store = SqliteStorage(_made(tmp_path / str(min(instance, 1))), lambda now=now: now)
            epochs.append((await store.start()).epoch)
            await store.close()
        assert epochs == [1000, 1500, 1501]

    asyncio.run(main())


def test_a_full_disk_is_said_to_be_one_and_the_records_are_written_when_there_is_room(tmp_path):
    async def main():
        store, engine = SqliteStorage(str(tmp_path)), Promises()
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
        store = SqliteStorage(str(tmp_path))
        assert len((await store.start()).records) == 200
        await store.close()

    asyncio.run(main())


def test_unusable_files_are_named(tmp_path):
    async def main():
        with pytest.raises(OSError, match=FILE_NAME):
            await SqliteStorage(str(tmp_path / "missing")).start()
        (tmp_path / FILE_NAME).write_bytes(b"no database" * 100)
        with pytest.raises(OSError, match=FILE_NAME):
            await SqliteStorage(str(tmp_path)).start()
        os.unlink(tmp_path / FILE_NAME)
        database = sqlite3.connect(tmp_path / FILE_NAME)
        database.execute("PRAGMA user_version = 99")
        database.close()
        with pytest.raises(OSError, match="another version"):
            await SqliteStorage(str(tmp_path)).start()

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
        store = SqliteStorage(str(tmp_path))
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
        again = await SqliteStorage(str(tmp_path)).start()
        assert [r.principal for r in again.records] == [f"1:0 192.0.2.1 {bytes(8).hex()}"]

    asyncio.run(main())
