"""The server-wide read-only switch: what exports are while it is on, and how it is thrown while clients are served.
Exports that a reload makes read-only go the same way.

Owns :func:`as_served` and :class:`ReadOnlySwitch`. Every path through the server respects an export that is read-only
for everybody. So the switch makes every export read-only, and nothing else has to know about it. Imports the reloader
and the state engine.

Before the switch is on, write delegations are called back and given some time to come: what their holders have not
written yet is still taken (RFC 8881 section 10.4.5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nfsd.exports import Export
from nfsd.state.records import Delegation
from nfsd.v4.server import Nfs4Server

if TYPE_CHECKING:
    from nfsd.reloader import Reloader

_log = logging.getLogger(__name__)

_PATIENCE: Final = 10.0
"""Seconds that a reload waits for delegations at most."""
_LOOK_AGAIN: Final = 0.02
"""Seconds between looks for delegations that have come back."""


def as_served(exports: Iterable[Export], read_only: bool) -> tuple[Export, ...]:
    """The exports as clients get them, with the switch as it is."""
    return tuple(map(_read_only, exports)) if read_only else tuple(exports)


def _read_only(export: Export) -> Export:
    overrides = tuple(replace(one, read_only=None) for one in export.overrides)
    return replace(export, read_only=True, overrides=overrides)


class ReadOnlySwitch:
    """Turns the switch of a running server. Nothing of it outlives the process."""

    def __init__(self, reloader: Reloader, nfs4: Nfs4Server) -> None:
        self._reloader, self._nfs4 = reloader, nfs4
        # A file that is read again may turn it on as well, or make exports read-only one by one.
        reloader.before_read_only = partial(self._call_back, _PATIENCE)
        reloader.after_read_only = self._call_back_the_rest

    @property
    def on(self) -> bool:
        """Whether nothing may be changed now."""
        return self._reloader.read_only

    async def turn(self, on: bool, seconds: float) -> dict[str, Any]:
        """Turn it on or off. To be on, it waits so many seconds at most for write delegations to come back. Returns
        what is so now, and how many of them are out still. Raises OSError for a directory that cannot be opened."""
        if on and not self.on:
            await self._call_back(seconds)
        changed = await self._reloader.set_read_only(on)
        if on:
            self._call_back_the_rest()
        if changed:
            _log.warning("the whole server is %s now", "read-only" if on else "as its exports say")
        return {"read_only": on, "changed": changed, "delegations": len(self._held())}

    def _held(self, exports: Collection[int] | None = None) -> list[Delegation]:
        """Delegations to write, on these exports or on all."""
        entries = list(self._nfs4.engine.stateids.entries.values())
        held = [one for one in entries if isinstance(one, Delegation) and one.write]
        if exports is None:
            return held
        return [one for one in held if one.opened is not None and one.opened.export_id in exports]

    def _recall(self, delegations: list[Delegation]) -> None:
        for delegation in delegations:
            self._nfs4.engine.delegations.recall(delegation)
        self._nfs4.recalls.send()

    def _call_back_the_rest(self, exports: Collection[int] | None = None) -> None:
        """Those that were given while the others were waited for."""
        self._recall(self._held(exports))

    async def _call_back(self, seconds: float, exports: Collection[int] | None = None) -> None:
        held = self._held(exports)
        self._recall(held)
        loop, table = asyncio.get_running_loop(), self._nfs4.engine.delegations
        until = loop.time() + seconds
        while loop.time() < until and any(map(table.holds, held)):  # noqa: ASYNC110 (an act of a person, not calls)
            await asyncio.sleep(_LOOK_AGAIN)
