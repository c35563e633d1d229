"""Which stable storage a configuration asks for. Imports the configuration, and the kinds there are."""

from __future__ import annotations

import logging
import os

from nfsd.config import Server
from nfsd.stable.interface import StableStorage
from nfsd.stable.rados.storage import RadosStorage
from nfsd.stable.sqlite import SqliteStorage

_log = logging.getLogger(__name__)


def stable_storage(server: Server) -> StableStorage:
    """The one of this server."""
    pool = server.stable_storage.rados
    if pool is None:
        return SqliteStorage(server.state_dir)
    return RadosStorage(pool, server.name or "", server.state_dir, _end)


def _end(why: str) -> None:
    """End at once: every further answer could contradict the server that has the clients now."""
    _log.critical("%s; this server ends at once", why)
    os._exit(70)
