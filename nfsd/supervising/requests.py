"""The requests of the supervisor's control socket: asked of all processes, or of the supervisor itself.

Owns :class:`Requests`. Imports the asking and the rules for putting answers together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from nfsd.control import Command
from nfsd.inspector import MOST_ROWS
from nfsd.requests import only, seconds_in
from nfsd.supervising import answers
from nfsd.supervising.asking import Silent, ask
from nfsd.supervising.totals import Seen

_log = logging.getLogger(__name__)

_PATIENCE: Final = 30.0
_WEB_PATIENCE: Final = 1.5
"""Less than the page's, for which one process that does not answer must not hide the others."""
_LONG: Final = 60.0
"""Besides the seconds that an administrator gives an act."""


class Together(Protocol):
    """What the supervisor can be asked for."""

    def directories(self) -> Mapping[int, str]:
        """The state directory of each process that serves."""

    def lives(self) -> Mapping[int, int]:
        """How often each process has been started."""

    def rows(self) -> list[dict[str, Any]]:
        """A row of each process."""

    def set_read_only(self, on: bool) -> None:
        """Remember for processes that are started from now on."""

    def drained(self, export: str) -> None:
        """Likewise."""

    async def reload(self) -> None:
        """Take up the file for those that are started from now on. Raises ValueError."""

    async def restart(self, index: int | None) -> int:
        """Start processes again, one after the other; how many. Raises ValueError."""


class Requests:
    """Asks."""

    def __init__(self, together: Together) -> None:
        self._together = together

    async def all(self, command: str, patience: float = _PATIENCE, **fields: Any) -> dict[int, dict[str, Any]]:
        """The answers of those that answer. Raises ValueError when all of those that do are against it."""
        good, refusals, _ = await self._everybody(command, patience, **fields)
        if not good:
            raise next(iter(refusals.values()), ValueError("no process answers; see `rdma-nfsd processes`"))
        return good

    async def _everybody(
        self, command: str, patience: float, **fields: Any
    ) -> tuple[dict[int, dict[str, Any]], dict[int, ValueError], list[int]]:
        """The answers of those that answer, what others have against it, and which are silent."""
        directories = self._together.directories()
        asked = (ask(directory, command, patience, **fields) for directory in directories.values())
        found = await asyncio.gather(*asked, return_exceptions=True)
        good, refusals, silent = {}, {}, []
        for index, one in zip(directories, found, strict=True):
            if isinstance(one, dict):
                good[index] = one
            elif isinstance(one, ValueError):
                refusals[index] = one
            elif isinstance(one, Silent):
                _log.warning("process %d: no answer to %s: %s", index, command, one)
                silent.append(index)
            else:
                raise one
        return good, refusals, silent

    async def _order(
        self, command: str, asked: dict[str, Any], patience: float = _PATIENCE, *, unanimous: bool = True
    ) -> dict[str, Any]:
        """Have all do something. Raises ValueError as well where one that serves has not answered, as its clients might
        keep what was taken from them; and, if all must agree, where one is against it."""
        lives = self._together.lives()
        good, refusals, silent = await self._everybody(command, patience, **asked)
        for index in silent:
            # Who has ended meanwhile is started again, with what is so by then.
            if index in self._together.directories() and self._together.lives()[index] == lives[index]:
                raise ValueError(
                    f"process {index} has not answered, and may go on as before: `rdma-nfsd restart {index}` ends that"
                )
        if refusals and (unanimous or not good):
            index, refusal = next(iter(refusals.items()))
            raise ValueError(f"process {index}: {refusal}; the others have done it") if good else refusal
        if not good:
            raise ValueError("no process answers; see `rdma-nfsd processes`")
        return answers.acted(good)

    async def statistics(self) -> dict[str, Any]:
        """For the page."""
        return answers.statistics(await self.all("stats", _WEB_PATIENCE))

    async def readiness(self) -> dict[str, Any]:
        """Whether all serve, and what."""
        found = await self.all("listening", _WEB_PATIENCE)
        rows = self._together.rows()
        return {
            "ready": all(row["state"] == "serving" and found.get(row["process"], {}).get("ready") for row in rows),
            "listeners": list(dict.fromkeys(name for one in found.values() for name in one["listeners"])),
            "failures": list(dict.fromkeys(text for one in found.values() for text in one["failures"])),
            "read_only": any(one["read_only"] for one in found.values()),
            "processes": [row["state"] for row in rows],
        }

    async def metrics(self) -> dict[int, Seen]:
        """What each has counted, in which of its lives."""
        lives = self._together.lives()
        try:
            found = await self.all("metrics", _WEB_PATIENCE)
        except ValueError:
            return {}
        return {index: Seen(lives[index], one["families"]) for index, one in found.items()}

    def commands(self) -> dict[str, Command]:
        """What :class:`nfsd.control.Control` is to know."""

        async def stats(asked: dict[str, Any]) -> dict[str, Any]:
            return answers.statistics(await self.all("stats", **asked))

        async def processes(asked: dict[str, Any]) -> dict[str, Any]:
            return {"rows": self._together.rows(), "left_out": 0}

        async def restart(asked: dict[str, Any]) -> dict[str, Any]:
            index = asked.get("process")
            if index is not None and type(index) is not int:
                raise ValueError("process must be a number")
            return {"restarted": await self._together.restart(index)}

        return {name: self._table(name) for name in answers.TABLES} | {
            "stats": stats, "processes": processes, "restart": restart, "evict": self._act("evict"),
            "forget": self._act("forget"), "drain": self._drain, "reload": self._reload,
            "read-only": self._read_only, "log-level": self._log_level,
        }  # fmt: skip

    def _table(self, name: str) -> Command:
        async def answer(asked: dict[str, Any]) -> dict[str, Any]:
            found = await self.all(name, **asked)
            return answers.TABLES[name](found, asked.get("limit", MOST_ROWS))

        return answer

    def _act(self, name: str) -> Command:
        async def answer(asked: dict[str, Any]) -> dict[str, Any]:
            return await self._order(name, asked, unanimous=False)  # a client is with one of them

        return answer

    async def _drain(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = answers.acted(await self.all("drain", _LONG, **{**asked, "dry_run": True}))
        if asked.get("dry_run") is True:
            return found
        self._together.drained(str(asked.get("export")))
        return await self._order("drain", asked, _LONG + seconds_in(asked), unanimous=False)  # some may not have it

    async def _reload(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = answers.acted(await self.all("reload", _LONG, **{**asked, "dry_run": True}))
        if asked.get("dry_run") is True:
            return found
        # First for who is started from now on: nobody who is will know less than the others.
        await self._together.reload()
        return await self._order("reload", asked, _LONG)

    async def _read_only(self, asked: dict[str, Any]) -> dict[str, Any]:
        only(asked, "on", "seconds")
        seconds, on = seconds_in(asked), asked.get("on")
        if isinstance(on, bool):
            self._together.set_read_only(on)
        return await self._order("read-only", asked, _LONG + seconds)

    async def _log_level(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = await self._order("log-level", asked)
        logging.getLogger().setLevel(found["level"].upper())
        return found
