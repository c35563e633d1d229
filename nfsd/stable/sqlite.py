"""Stable storage in the state directory: SQLite (WAL, synchronous=FULL).

Owns the database's format, and the reading and writing of databases that nobody has open. Imports sqlite3, the group
commit and the engine's records.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TypeVar

from nfsd.stable.commits import GroupCommit
from nfsd.stable.interface import lease_to_keep, next_epoch
from nfsd.state.recovery import ClientRecord, Recovered, StoreWrite

FILE_NAME = "nfs4-clients.sqlite"
_SCHEMA_VERSION = 2
_CLIENTS = (
    "CREATE TABLE client (minor INTEGER NOT NULL, owner BLOB NOT NULL, principal TEXT NOT NULL,"
    " epoch INTEGER NOT NULL, PRIMARY KEY (minor, owner, principal)) WITHOUT ROWID"
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Records:
    """What a database has."""

    epoch: int
    """0: there was no database."""
    lease: float
    records: tuple[ClientRecord, ...] = ()


def read_records(path: str) -> Records:
    """What an instance has left behind. Nobody has the database open. Raises OSError."""
    if not os.path.exists(path):
        return Records(0, 0.0)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            _prepare(database, path)
            epoch, lease = database.execute("SELECT epoch, lease FROM instance").fetchone()
            rows = database.execute("SELECT minor, owner, principal, epoch FROM client").fetchall()
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error
    return Records(epoch, lease, tuple(ClientRecord(*row) for row in rows))


def write_records(path: str, found: Records) -> None:
    """Make a database that an instance starts from, on the disk when this returns. Raises OSError."""
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            _prepare(database, path)
            database.execute("BEGIN IMMEDIATE")
            database.execute("UPDATE instance SET epoch = ?, lease = ?", (found.epoch, found.lease))
            database.executemany("INSERT OR REPLACE INTO client VALUES (?, ?, ?, ?)", map(astuple, found.records))
            database.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error
    _sync_directory(path)


def _prepare(database: sqlite3.Connection, path: str) -> None:
    """Have the tables as they are now."""
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("BEGIN IMMEDIATE")
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, 1, _SCHEMA_VERSION):
        raise OSError(f"{path}: written by another version of the server (schema {version})")
    if version == 0:
        database.execute("CREATE TABLE instance (epoch INTEGER NOT NULL, lease REAL NOT NULL)")
        database.execute("INSERT INTO instance VALUES (0, 0)")
        database.execute(_CLIENTS)
    elif version == 1:
        # There, a name had one record, whoever used it.
        database.execute("ALTER TABLE client RENAME TO former")
        database.execute(_CLIENTS)
        database.execute("INSERT INTO client SELECT minor, owner, principal, epoch FROM former")
        database.execute("DROP TABLE former")
    database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    database.execute("COMMIT")


class SqliteStorage(GroupCommit):
    """The database ``nfs4-clients.sqlite`` in the state directory."""

    def __init__(self, state_dir: str, wall_clock: Callable[[], float] = time.time) -> None:
        """``wall_clock``: seconds since 1970."""
        super().__init__()
        self._wall_clock = wall_clock
        self.path = os.path.join(state_dir, FILE_NAME)
        self._database: sqlite3.Connection | None = None

    async def _run(self, job: Callable[[], _T]) -> _T:
        """SQLite's errors become OSError with the file's name."""
        try:
            return await super()._run(job)
        except sqlite3.Error as error:
            raise OSError(f"{self.path}: {error}") from error

    # -- in the thread -------------------------------------------------------------------------------------------
    def _open(self, lease: float) -> Recovered:
        database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            _prepare(database, self.path)
            database.execute("BEGIN IMMEDIATE")
            former_epoch, former_lease = database.execute("SELECT epoch, lease FROM instance").fetchone()
            epoch = next_epoch(former_epoch, self._wall_clock())
            rows = database.execute("SELECT minor, owner, principal, epoch FROM client").fetchall()
            kept = lease_to_keep(lease, former_lease, bool(rows))
            database.execute("UPDATE instance SET epoch = ?, lease = ?", (epoch, kept))
            database.execute("COMMIT")
        except BaseException:
            database.close()
            raise
        self._database = database
        self._lease = lease
        _sync_directory(self.path)
        records = tuple(ClientRecord(minor, owner, principal, written) for minor, owner, principal, written in rows)
        return Recovered(epoch, records, former_lease)

    def _apply(self, batch: list[StoreWrite]) -> None:
        database = self._database
        if database is None:
            raise OSError(f"{self.path}: not open")
        database.execute("BEGIN IMMEDIATE")
        try:
            for write in batch:
                if write.action == "record":
                    database.execute(
                        "INSERT OR REPLACE INTO client VALUES (?, ?, ?, ?)",
                        (write.minor, write.owner, write.principal, write.epoch),
                    )
                elif write.action == "remove":
                    database.execute(
                        "DELETE FROM client WHERE minor = ? AND owner = ? AND principal = ?",
                        (write.minor, write.owner, write.principal),
                    )
                else:
                    database.execute("DELETE FROM client WHERE epoch < ?", (write.epoch,))
                    database.execute("UPDATE instance SET lease = ?", (self._lease,))
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:  # a full disk, or an error of it, has ended the transaction already
                database.execute("ROLLBACK")
            raise

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _sync_directory(path: str) -> None:
    """Make the database's own name durable: SQLite does so for its journal only."""
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
