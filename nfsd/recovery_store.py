"""Stable storage of the NFSv4 state engine: client records and the boot epoch, in SQLite (WAL, synchronous=FULL).

One thread writes; changes that wait together are committed together. Imports asyncio, sqlite3 and nfsd.state's records.
"""

from __future__ import annotations

from nfsd.state.engine import StateEngine
from nfsd.state.recovery import Recovered


class RecoveryStore:
    """The database ``nfs4-clients.sqlite`` in the state directory."""

    def __init__(self, state_dir: str) -> None:
        raise NotImplementedError

    async def start(self) -> Recovered:
        """Open or create the database, advance the boot epoch durably, and return what the engine starts from.
        Raises OSError naming the file when it cannot be used."""
        raise NotImplementedError

    async def flush(self, engine: StateEngine) -> None:
        """Return once everything the engine has promised so far is on stable storage. Raises OSError when it cannot
        be: the reply must then not be sent (answer NFS4ERR_SERVERFAULT)."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish outstanding writes, close the database."""
        raise NotImplementedError
