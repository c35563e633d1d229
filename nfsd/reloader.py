"""Taking up a changed configuration while clients are served.

Owns :class:`Reloader`. What takes effect at once: the exports, with everything in them, and the log's level. Everything
else of ``server`` is fixed at the start. A file that is wrong changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import fields, replace

from nfsd.config import Config, Server
from nfsd.config_file import ConfigError, load
from nfsd.exports import Export
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.service import FileService
from nfsd.vfs.types import Time
from nfsd.without_file import NAME as COMMAND_LINE

_log = logging.getLogger(__name__)


class Reloader:
    """Knows the configuration in effect."""

    def __init__(self, config: Config, service: FileService, nfs4: Nfs4Server) -> None:
        self.config = config
        self._service = service
        self._nfs4 = nfs4
        self._turn = asyncio.Lock()

    async def read(self) -> Config:
        """The configuration as it is to be now; as it was at the start where the command line was all there was.
        Raises ConfigError, OSError."""
        return self.config if self.config.file == COMMAND_LINE else await asyncio.to_thread(load, self.config.file)

    async def withdraw(self, export: Export) -> int:
        """Serve an export no more, until the configuration is read again; the number of states that clients lose.
        Raises OSError."""
        async with self._turn:
            exports = self._service.exports
            left = [one for one in (*exports.exports, *exports.referrals) if one.id != export.id]
            gone = await self._service.take_exports(left)
            return self._nfs4.exports_changed(gone, Time(*divmod(time.time_ns(), 10**9)))

    async def reload(self) -> bool:
        """Read the file again and take up what it says; whether that was possible. The log says what changed, or what
        is wrong, in which line."""
        async with self._turn:
            try:
                config = await self.read()
                gone = await self._service.take_exports(config.exports)
            except ConfigError as error:
                for problem in error.problems:
                    _log.error("%s", problem)
            except OSError as error:
                _log.error("%s: %s", error.filename, error.strerror)
            else:
                lost = self._nfs4.exports_changed(gone, Time(*divmod(time.time_ns(), 10**9)))
                logging.getLogger().setLevel(config.server.log.level.upper())
                for key in waiting_keys(self.config.server, config.server):
                    _log.warning("server.%s has changed: that takes effect at the next start", key)
                _log.info("reloaded: %s", difference(self.config.exports, config.exports))
                if lost:
                    _log.warning("%d opens and delegations of files no longer exported were taken from clients", lost)
                # What waits for a start is not in effect, and told of again at the next reload.
                self.config = replace(config, server=replace(self.config.server, log=config.server.log))
                return True
            _log.error("not reloaded: everything stays as it was")
            return False


def waiting_keys(before: Server, after: Server) -> list[str]:
    """The keys of ``server`` that differ and cannot change now."""
    names = (field.name for field in fields(Server) if field.name != "log")
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def difference(before: tuple[Export, ...], after: tuple[Export, ...]) -> str:
    """What has changed, in words."""
    old, new = ({export.id: export for export in exports} for exports in (before, after))
    words = [
        f"{word} {' '.join(sorted(export.pseudo for export in found))}"
        for word, found in (
            ("now exported:", [export for id_, export in new.items() if id_ not in old]),
            ("changed:", [export for id_, export in new.items() if id_ in old and old[id_] != export]),
            ("no longer exported:", [export for id_, export in old.items() if id_ not in new]),
        )
        if found
    ]
    return "; ".join(words) or "the exports are the same"
