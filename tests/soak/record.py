"""What the clients have done, key by key, and what was found wrong.

Keys live for one *era*, some seconds, so that no history becomes too long to be checked. When an era is over its
histories are checked and forgotten.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.soak.histories import UNKNOWN, Lock, Model, Name, Operation, Register, Undecided, explained, told

MODELS: dict[str, Model] = {
    "data": Register(), "locked": Register(), "renamed": Register(), "name": Name(), "lock": Lock(),
}  # fmt: skip
"""By the kind of key."""
Key = tuple[str, int, int]
"""Kind, era, number."""


class Again(Exception):
    """The server said that nothing was done: the call is as if it had never been made."""


class Record:
    """Of one run."""

    def __init__(self) -> None:
        self.era = 0
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        """Operations by name, and what else happened to clients."""
        self.checked: Counter[str] = Counter()
        """Histories that were explained, by kind of key; and operations in them."""
        self.serves_since = 0.0
        """When the server has begun its life of now (CLOCK_MONOTONIC)."""
        self.found: Callable[[], None] = lambda: None
        """Called at each finding."""
        self._histories: dict[Key, list[Operation]] = defaultdict(list)
        self._cuts: list[tuple[float, float]] = []
        self._over = 0
        """Histories of eras before this one have been checked; what still happens to their keys is not recorded."""

    def finding(self, text: str) -> None:
        """Something that no server may do."""
        self.findings.append(f"{time.strftime('%H:%M:%S')} {text}")
        self.found()

    @contextmanager
    def operation(self, client: str, kind: str, key: Key, value: object = None) -> Iterator[Operation]:
        """Record one. Whoever carries it out sets ``result``; if that ends with an exception the outcome is unknown,
        and if with Again, there was no operation."""
        made = Operation(client, kind, value, time.monotonic())
        history = self._histories[key] if key[1] >= self._over else []
        history.append(made)
        self.counts[f"{key[0]} {kind}"] += 1
        try:
            yield made
            made.ended = time.monotonic()
        except Again:
            history.remove(made)
            raise
        except BaseException:
            self.counts["without an answer"] += 1
            raise

    def perhaps(self, client: str, kind: str, key: Key, value: object, begun: float) -> None:
        """This may have been done, once, between then and now; nobody was told."""
        if key[1] >= self._over:
            self._histories[key].append(Operation(client, kind, value, begun, time.monotonic(), perhaps=True))

    def released(self, client: str, key: Key, begun: float) -> None:
        """The client has lost a lock, or never had it, some time between then and now."""
        self._histories[key].append(Operation(client, "release", None, begun, time.monotonic()))

    def cut(self, begun: float) -> None:
        """The power was off from then to now."""
        self._cuts.append((begun, time.monotonic()))
        self.counts["power cuts"] += 1

    def check(self, until: int) -> None:
        """Look at all histories of eras before that one, and forget them."""
        self._over = until
        for key in [key for key in self._histories if key[1] < until]:
            history = self._histories.pop(key)
            kind = key[0]
            if kind != "lock":
                history += [Operation("", "cut", None, *cut) for cut in self._cuts]
            try:
                if explained(history, MODELS[kind]):
                    self.checked[kind] += 1
                    self.checked["operations"] += len(history)
                else:
                    self.finding(
                        f"no order explains what happened to {kind} {key[2]} of era {key[1]}:\n{told(history)}"
                    )
            except Undecided as why:
                self.counts["undecided"] += 1
                self.counts["undecided operations"] += len(history)
                print(f"undecided: {kind} {key[2]} of era {key[1]}: {why}", flush=True)
        if not self._histories:
            self._cuts.clear()

    def unknown(self) -> int:
        """Operations under way, or without an answer, in eras that are not yet checked."""
        return sum(one.ended == UNKNOWN for history in self._histories.values() for one in history)
