"""Taking up a changed configuration while clients are served.

Owns :class:`Reloader`. The exports with all their settings, the log's level, and ``read_only`` take effect at once.
Everything else of ``server`` is fixed at the start. A file with mistakes changes nothing. If an export's directory is
not there, the reloader looks for it again every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import fields, replace

from nfsd.config import Config, Server
from nfsd.config_file import ConfigError, bound_of, load
from nfsd.exports import Export
from nfsd.read_only import as_served
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.service import FileService
from nfsd.vfs.types import Time
from nfsd.without_file import NAME as COMMAND_LINE
from rpcrdma.firewall import Ticker, spawn

_log = logging.getLogger(__name__)

LOOK_AGAIN = 5.0
"""Seconds between looks for the directories of exports that are absent."""
_AT_ONCE = ("log", "read_only", "client_rate")
"""Keys of ``server`` that take effect when the file is read again."""


async def _nothing(_: Collection[int]) -> None:
    pass


class Reloader:
    """Knows the configuration in effect."""

    def __init__(
        self,
        config: Config,
        service: FileService,
        nfs4: Nfs4Server,
        portion_of: Callable[[Config], Config] | None = None,
        *,
        read_only: bool | None = None,
    ) -> None:
        """``portion_of``: what this process has of a whole configuration. ``read_only``: as the server was made."""
        self.config = config
        self._portion_of = portion_of or (lambda whole: whole)
        self.read_only = config.server.read_only if read_only is None else read_only
        """Whether nothing may be changed, whatever the exports say."""
        self.before_read_only: Callable[[Collection[int]], Awaitable[None]] = _nothing
        """Awaited before a file that is read again takes from somebody the right to change exports, with their ids."""
        self.after_read_only: Callable[[Collection[int]], None] = lambda _: None
        """Called as soon as that is so."""
        self._service = service
        self._nfs4 = nfs4
        self._turn = asyncio.Lock()
        self._told: dict[int, str] = {}
        """What the log has been told of exports that are absent."""
        self._looking: set[asyncio.Task[None]] = set()
        self._ticker: Ticker | None = None

    def start(self) -> None:
        """Tell of exports that are absent, and begin to look for them."""
        self._tell()
        self._ticker = Ticker(asyncio.get_running_loop(), LOOK_AGAIN, self._look)

    async def close(self) -> None:
        """Look no more."""
        if self._ticker is not None:
            self._ticker.cancel()
        for task in list(self._looking):
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)

    def _look(self) -> None:
        # A look may wait for a device; there is one at a time.
        if self._service.absent and not self._looking:
            spawn(self.find_absent(), self._looking)

    async def find_absent(self) -> None:
        """Serve the exports whose directory has appeared."""
        if not await self._service.can_come_back():
            self._tell()
            return
        async with self._turn:
            before = {id_: one.export for id_, one in self._service.absent.items()}
            exports = self._service.exports
            gone = await self._service.take_exports((*exports.exports, *exports.referrals, *before.values()))
            self._nfs4.exports_changed(gone, Time(*divmod(time.time_ns(), 10**9)))
            for id_ in before.keys() - self._service.absent.keys():
                _log.info("%s is served now: %s is there", before[id_].pseudo, before[id_].path or before[id_].backend)
            self._tell()

    def _tell(self) -> None:
        """One line for each export that has become absent, or is for another reason."""
        told = {id_: one.why for id_, one in self._service.absent.items()}
        for id_, one in self._service.absent.items():
            if self._told.get(id_) != one.why:
                _log.error(
                    "%s: %s is not served: %s; %s (looked for every %.0f s, the others are served)",
                    one.export.place or "exports",
                    one.export.pseudo,
                    one.why,
                    one.remedy,
                    LOOK_AGAIN,
                )
        self._told = told

    async def read(self) -> Config:
        """The configuration as it is to be now; as it was at the start where the command line was all there was.
        Raises ConfigError, OSError."""
        if self.config.file == COMMAND_LINE:
            return self.config
        return self._portion_of(await asyncio.to_thread(load, self.config.file))

    async def withdraw(self, export: Export) -> int:
        """Serve an export no more, until the configuration is read again; the number of states that clients lose.
        Raises OSError."""
        async with self._turn:
            exports = self._service.exports
            absent = [one.export for one in self._service.absent.values()]
            left = [one for one in (*exports.exports, *exports.referrals, *absent) if one.id != export.id]
            gone = await self._service.take_exports(left)
            self._service.roots.drained[export.id] = export
            return self._nfs4.exports_changed(gone, Time(*divmod(time.time_ns(), 10**9)))

    def served(self, config: Config) -> tuple[Export, ...]:
        """The exports of a configuration as they would be served."""
        return as_served(config.exports, self._read_only_with(config))

    def _read_only_with(self, config: Config) -> bool:
        """Whether the server is read-only with a configuration: as it is now, unless the file has changed its mind."""
        changed = config.server.read_only != self.config.server.read_only
        return config.server.read_only if changed else self.read_only

    async def set_read_only(self, on: bool) -> bool:
        """Serve all exports read-only from now on, or as the configuration has them; whether that is a change. Raises
        OSError."""
        async with self._turn:
            if on == self.read_only:
                return False
            configured = {export.id: export for export in self.config.exports}
            exports, absent = self._service.exports, self._service.absent.values()
            here = [*exports.exports, *exports.referrals, *(one.export for one in absent)]
            # What has been drained stays so.
            wanted = as_served([configured.get(export.id, export) for export in here], on)
            gone = await self._service.take_exports(wanted)
            self._nfs4.exports_changed(gone, Time(*divmod(time.time_ns(), 10**9)))
            self.read_only = on
            return True

    async def reload(self) -> bool:
        """Read the file again and take up what it says; whether that was possible. The log says what changed, or what
        is wrong, in which line."""
        async with self._turn:
            try:
                config = await self.read()
                served = self.served(config)
                less = narrowed(self._service.exports.exports, served)
                if less:
                    await self.before_read_only(less)
                gone = await self._service.take_exports(served)
                self._service.roots.drained.clear()
            except ConfigError as error:
                for problem in error.problems:
                    _log.error("%s", problem)
            except OSError as error:
                _log.error("%s: %s", error.filename, error.strerror)
            else:
                self._nfs4.exports.set_client_rate(bound_of(config.server.client_rate))
                if less:
                    self.after_read_only(less)
                self.read_only = self._read_only_with(config)
                self._told.clear()
                self._tell()
                lost = self._nfs4.exports_changed(gone, Time(*divmod(time.time_ns(), 10**9)))
                logging.getLogger().setLevel(config.server.log.level.upper())
                for key in waiting_keys(self.config.server, config.server):
                    _log.warning("server.%s has changed: that takes effect at the next start", key)
                _log.info("reloaded: %s", difference(self.config.exports, config.exports))
                if lost:
                    _log.warning("%d opens and delegations of files no longer exported were taken from clients", lost)
                # What waits for a start is not in effect, and told of again at the next reload.
                self.config = replace(
                    config, server=replace(self.config.server, log=config.server.log, read_only=config.server.read_only)
                )
                return True
            _log.error("not reloaded: everything stays as it was")
            return False


def narrowed(before: Iterable[Export], after: Iterable[Export]) -> frozenset[int]:
    """The ids of exports that somebody may change, and will not, as far as their entries tell."""
    old = {export.id: export for export in before}
    return frozenset(one.id for one in after if one.id in old and _writers(one) != _writers(old[one.id]) and _bars(one))


def _writers(export: Export) -> tuple[bool, list[tuple[str, bool]]]:
    """Who may change an export, in comparable form."""
    own = [(one.host, one.read_only) for one in export.overrides if one.read_only is not None]
    return export.read_only, own


def _bars(export: Export) -> bool:
    """Whether it is read-only for anybody."""
    return export.read_only or any(one.read_only for one in export.overrides)


def waiting_keys(before: Server, after: Server) -> list[str]:
    """The keys of ``server`` that differ and cannot change now."""
    names = (field.name for field in fields(Server) if field.name not in _AT_ONCE)
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
