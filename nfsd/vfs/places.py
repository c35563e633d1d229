"""Where files are that cannot be opened by handle: the server may not (no CAP_DAC_READ_SEARCH, as in most containers),
or their file system has no handles.

Owns the table ``places.sqlite`` in the state directory. What the kernel will not do with a handle, this table does: it
remembers for each file that was ever given a handle in which directory and under which name it was last seen, and the
way is walked again from the export's root (:mod:`nfsd.vfs.finding`). The file found at the end must have the same
kernel handle, generation included, or the handle is stale; where the kernel has none that tells files apart, the same
number.

Limits, which is why the kernel's way is always preferred: a file renamed or moved by a local process is stale until it
is looked up again under its new name; of several hard links only the one seen last counts; after a power failure,
files first seen in the last moments are stale until looked up again (the table is written within milliseconds, but not
synchronously); and where files only have numbers, one that is made after another was removed may have its number, and
then is what the handle of that one leads to. Restarts and renames through the server are survived.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger

_SCHEMA = """
CREATE TABLE IF NOT EXISTS places (file BLOB PRIMARY KEY, parent BLOB NOT NULL, name BLOB NOT NULL) WITHOUT ROWID;
"""
_log = limited_logger(__name__)

LIMITS: Final = (
    "a file that a local process renames or moves is stale to clients until they look it up again, and of several hard "
    "links the one seen last counts"
)

Place = tuple[bytes, bytes]
"""Handle of the directory, name in it."""


class Places:
    """The table, written and read by one thread of its own. Keys are whole NFS handles."""

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, "places.sqlite")
        self._thread = ThreadPoolExecutor(1, "places")
        self._fresh: dict[bytes, Place] = {}
        self._writing: dict[bytes, Place] = {}
        self._database: sqlite3.Connection
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Open the table. Raises OSError."""
        try:
            await self._loop.run_in_executor(self._thread, self._open)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"{self._path}: {error}") from error

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(descriptor)
        self._database = sqlite3.connect(self._path)
        self._database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)

    def saw(self, file: bytes, parent: bytes, name: bytes) -> None:
        """A file was found under a name. Written soon."""
        place = (parent, name)
        if self._fresh.get(file) == place or self._writing.get(file) == place:
            return
        self._fresh[file] = place
        if len(self._fresh) == 1 and not self._writing:
            self._loop.call_soon(contain, None, self._write_soon)

    def _write_soon(self) -> None:
        if not self._fresh or self._writing:
            return
        self._writing, self._fresh = self._fresh, {}
        rows = [(file, *place) for file, place in self._writing.items()]
        self._loop.run_in_executor(self._thread, self._write, rows).add_done_callback(self._written)

    def _write(self, rows: list[tuple[bytes, bytes, bytes]]) -> None:
        with self._database:
            self._database.executemany(
                "INSERT INTO places VALUES (?, ?, ?) ON CONFLICT (file) DO UPDATE "
                "SET parent = excluded.parent, name = excluded.name "
                "WHERE parent != excluded.parent OR name != excluded.name",
                rows,
            )

    def _written(self, done: asyncio.Future[None]) -> None:
        self._writing = {}
        error = done.exception()
        if error is not None:
            # It costs handles their survival, not the calls that made them.
            _log.error("%s: %s", self._path, error)
        self._write_soon()

    async def of(self, file: bytes) -> Place | None:
        """Where a file was last seen; None when that is not known."""
        place = self._fresh.get(file) or self._writing.get(file)
        return place or await self._loop.run_in_executor(self._thread, self._read, file)

    def _read(self, file: bytes) -> Place | None:
        row = self._database.execute("SELECT parent, name FROM places WHERE file = ?", (file,)).fetchone()
        return None if row is None else (bytes(row[0]), bytes(row[1]))

    async def close(self) -> None:
        """Write what is not written yet, close the table."""
        rows = [(file, *place) for file, place in {**self._writing, **self._fresh}.items()]
        self._fresh = {}

        def finish() -> None:
            if rows:
                self._write(rows)
            self._database.close()

        await self._loop.run_in_executor(self._thread, finish)
        self._thread.shutdown()
