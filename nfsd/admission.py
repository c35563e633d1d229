"""Only hosts that may use some export have their calls executed. All others get an answer to NULL, and to nothing else.

Owns :class:`Admission`, which the dispatchers ask before they do anything with a call. For a stranger they make no
state, look up no name, and keep no reply. The answers follow the exports and the name service. The log says once for
each host what would admit it. Linux's server does the same (svcauth_unix_set_client: AUTH_BADCRED, except for NULL).

Imports the exports.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Final

from nfsd.exports import NOT_A_CLIENT, ExportTable, canonical_address
from nfsd.matching import Connection, peer_of
from nfsd.without_file import NAME as COMMAND_LINE
from rpcrdma.rpc.native import Gate

_log = logging.getLogger(__name__)

_REMEMBERED: Final = 4096
"""Hosts whose answer is remembered; beyond it all are forgotten and found out again."""
_TOLD: Final = 64
"""Strangers the log names by address, until the exports change."""
_SHOWN: Final = 3
"""Exports the log names as a place to admit a stranger."""
_NEWS: Final = 10.0
"""Seconds for which a refusal is told."""
_NAMES_GOOD_FOR: Final = 1.0
"""Seconds a native path goes by what a name said."""


class Admission(Gate):
    """The one gate of all programs."""

    def __init__(self, exports: ExportTable) -> None:
        self._exports = exports
        self._known: dict[str, bool] = {}
        self._told: set[str] = set()
        self.turned_away_calls = 0
        """Calls of strangers so far."""
        self._latest = "", 0.0
        """The last of them, and when it came."""
        exports.on_change(self._changed)
        self._changed()

    def _changed(self) -> None:
        self._known.clear()
        self._told.clear()
        self.lasts = _NAMES_GOOD_FOR if self._exports.uses_names else float("inf")
        self.generation += 1

    def learn(self, transport: Connection) -> Awaitable[None] | None:
        """What the name service has yet to say about a host."""
        return self._exports.admit(transport.peer_address)

    def admits(self, transport: Connection) -> bool:
        """Whether some export is for the peer."""
        peer = peer_of(transport)
        known = self._known.get(peer)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[peer] = self._exports.knows(peer)
        return known

    def turned_away(self, transport: Connection) -> None:
        """Tell the log, once for each host, and not of all when there are many."""
        self.turned_away_calls += 1
        peer = canonical_address(transport.peer_address)
        self._latest = peer, time.monotonic()
        if peer in self._told or len(self._told) > _TOLD:
            return
        self._told.add(peer)
        if len(self._told) > _TOLD:
            _log.warning("more hosts are refused that no export is for; the log names no more of them until a reload")
            return
        remedy = f"add it to {self._places()}"
        if any(export.source.startswith(f"{COMMAND_LINE}:") for export in self._exports.exports):
            remedy = f"serve with --client {peer}"
        _log.warning("%s is refused: no export is for it; to admit it, %s", peer, remedy)
        self._exports.observer.denied(transport.peer_address, "", NOT_A_CLIENT, remedy)

    def stranger(self) -> str:
        """The host that was refused last, within some seconds; empty: none was."""
        peer, when = self._latest
        return peer if time.monotonic() - when < _NEWS else ""

    def _places(self) -> str:
        """Where a host could be added, in words."""
        exports = (*self._exports.exports, *self._exports.referrals)
        named = [f"clients: of {one.pseudo}" + (f" ({one.source})" if one.source else "") for one in exports[:_SHOWN]]
        if len(exports) > _SHOWN:
            named.append(f"of one of {len(exports) - _SHOWN} more")
        return " or ".join(named)
