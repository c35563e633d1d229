"""Usage of exports: calls, errors, octets and time, by client and export; and statuses by operation.

Owns :class:`Usage`; the export table has one. The native and the general path count in its tallies; the native one
does so directly. The number of clients is bounded: those beyond it are shown as one. A client that makes no calls for
a while is forgotten when others come; what it did still counts for the export. Imports tallies.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rpcrdma.rpc.tally import Tally

MOST: Final = 1024
"""Clients' tallies, one for each export that they use."""
_IDLE: Final = 120.0
"""Seconds without a call after which a client may be forgotten."""
OTHERS: Final = "others"
"""What clients beyond the bound are called."""
_MOST_OTHERS: Final = 4096
"""Tallies of clients beyond the bound. They are counted one by one, so that each is charged for what it does."""


@dataclass(slots=True)
class Amount:
    """What calls amount to, read out."""

    calls: int = 0
    errors: int = 0
    read: int = 0
    written: int = 0
    seconds: float = 0.0

    def add(self, tally: Tally | Amount) -> None:
        """Count that as well."""
        self.calls += tally.calls
        self.errors += tally.errors
        self.read += tally.read
        self.written += tally.written
        self.seconds += tally.seconds


class Usage:
    """All tallies of a server."""

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._others: dict[tuple[str, int], Tally] = {}
        """Of clients that are called others, the first to come first."""
        self._past: dict[int, Amount] = {}
        """By export: of clients that are forgotten."""
        self._looked = clock()
        self._calls: dict[tuple[str, int], int] = {}
        """Calls of each at the last look."""
        self.on_forgotten: Callable[[], None] = lambda: None
        """Called when tallies are no longer looked at: whoever has remembered one must ask again."""
        self.statuses: Counter[tuple[int, str, str]] = Counter()
        """Failures by version of NFS, operation and status."""

    def of(self, client: str, export: int) -> Tally:
        """The tally of a client, by its canonical address, on an export, by its id."""
        found = self._tallies.get((client, export))
        if found is None:
            if len(self._tallies) >= self._most and not self._make_room():
                return self._one_of_others(client, export)
            # What it did as one of the others stays theirs.
            found = self._tallies.setdefault((client, export), Tally())
        return found

    def _one_of_others(self, client: str, export: int) -> Tally:
        found = self._others.get((client, export))
        if found is None:
            if len(self._others) >= _MOST_OTHERS:
                for key in list(self._others)[: _MOST_OTHERS // 2]:
                    self._past.setdefault(key[1], Amount()).add(self._others.pop(key))
                self.on_forgotten()
            found = self._others[client, export] = Tally()
        return found

    def _all(self) -> list[tuple[tuple[str, int], Tally]]:
        """Every tally, by the name that its client has here and the export."""
        others = [((OTHERS, export), tally) for (_, export), tally in list(self._others.items())]
        return [*list(self._tallies.items()), *others]

    def _make_room(self) -> bool:
        """Forget who has made no call since the last look; whether there is room then."""
        now = self._clock()
        if now - self._looked < _IDLE:
            return False
        self._looked = now
        for key, tally in list(self._tallies.items()):
            if self._calls.get(key) == tally.calls:
                del self._tallies[key]
                self._past.setdefault(key[1], Amount()).add(tally)
        self._calls = {key: tally.calls for key, tally in self._tallies.items()}
        self.on_forgotten()
        return len(self._tallies) < self._most

    def keep(self, exports: Iterable[int]) -> None:
        """There are only these exports any more."""
        wanted = set(exports)
        for tallies in (self._tallies, self._others):
            for key in [key for key in tallies if key[1] not in wanted]:
                del tallies[key]
        for export in [export for export in self._past if export not in wanted]:
            del self._past[export]

    def by_client(self) -> Mapping[str, Amount]:
        """What each client has done, on all exports."""
        found: dict[str, Amount] = {}
        for (client, _), tally in self._all():
            found.setdefault(client, Amount()).add(tally)
        return found

    def by_export(self) -> Mapping[int, Amount]:
        """What was done on each export, by all clients there ever were."""
        found: dict[int, Amount] = {}
        for export, past in list(self._past.items()):
            found.setdefault(export, Amount()).add(past)
        for (_, export), tally in self._all():
            found.setdefault(export, Amount()).add(tally)
        return found

    def users(self) -> Mapping[int, set[str]]:
        """The clients of each export."""
        found: dict[int, set[str]] = {}
        for (client, export), _ in self._all():
            found.setdefault(export, set()).add(client)
        return found

    def names(self, exports: Mapping[int, str]) -> Mapping[int, str]:
        """The export's name by the identity of a tally."""
        return {id(tally): exports.get(export, "") for (_, export), tally in self._all()}

    def failed(self, version: int, operation: str, status: str) -> None:
        """An operation was answered with a failure."""
        self.statuses[version, operation, status] += 1
