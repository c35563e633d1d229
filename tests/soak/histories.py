"""Histories of operations, and whether one order of them explains all results: linearizability, as Wing and Gong check
it (Testing and Verifying Concurrent Objects, 1993), with a memory of what was tried.

An operation took effect at one moment between its beginning and its end. One whose outcome nobody was told may take
effect at any later moment, or never. One that a kernel may have had done before, without telling, is there once more,
*perhaps*. A power cut is an operation of its own, after which a value is one that may have
been on the disk: what was last acknowledged as stable, or what was under way after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

UNKNOWN = math.inf
"""The end of an operation whose outcome nobody was told."""
MOST_TRIED = 2_000_000
"""States after which a check is given up."""


@dataclass(slots=True)
class Operation:
    """One operation on one key."""

    client: str
    kind: str
    value: Any
    begun: float
    """CLOCK_MONOTONIC, in seconds; ``ended``, too."""
    ended: float = UNKNOWN
    result: Any = None
    perhaps: bool = False
    """It may have happened between the two times, or never."""

    @property
    def known(self) -> bool:
        """Whether its outcome is known."""
        return self.ended != UNKNOWN


class Model(Protocol):
    """What a key is."""

    initial: Any

    def step(self, state: Any, operation: Operation) -> Iterable[Any]:
        """The states that the operation may lead to with its result; none if it cannot happen in this state."""


Stored = tuple[Any, frozenset[Any]]
"""The value that is seen, and those that may be on the disk."""


def _stored(value: Any) -> Stored:
    return value, frozenset([value])


class _OnDisk:
    """What is on a disk that may lose its power."""

    initial: Stored

    def step(self, state: Stored, operation: Operation) -> Iterator[Stored]:
        seen, on_disk = state
        if operation.kind == "cut":
            yield from map(_stored, on_disk)
            return
        for value in self.effect(seen, operation):
            if value == seen and not self.makes(operation):
                yield state
            elif operation.known:
                yield _stored(value)
            else:
                yield value, on_disk | {value}

    def makes(self, operation: Operation) -> bool:
        """Whether its success says that the value is on the disk."""
        raise NotImplementedError

    def effect(self, seen: Any, operation: Operation) -> Iterator[Any]:
        """The value that an operation leaves; none if it cannot have its result."""
        raise NotImplementedError


class Register(_OnDisk):
    """``write`` of a value, and ``read``, whose result is one: the data of a file, or what a name leads to."""

    initial: Stored = _stored(None)

    def makes(self, operation: Operation) -> bool:
        return operation.kind == "write"

    def effect(self, seen: Any, operation: Operation) -> Iterator[Any]:
        if operation.kind == "write":
            yield operation.value
        elif operation.result == seen:
            yield seen


class Name(_OnDisk):
    """A name that is there or not: ``create`` and ``remove``, whose result is whether they did it, and ``look``, whose
    result is whether it is there."""

    initial: Stored = _stored(False)

    def makes(self, operation: Operation) -> bool:
        return operation.kind != "look" and bool(operation.result)

    def effect(self, seen: Any, operation: Operation) -> Iterator[Any]:
        if operation.kind == "look":
            if operation.result == seen:
                yield seen
            return
        wanted = operation.kind == "create"
        if not operation.known or operation.result == (seen != wanted):
            yield wanted


class Lock:
    """``acquire``, whose result is whether it was granted, and ``release``, after which its client has nothing."""

    initial: str | None = None

    def step(self, state: str | None, operation: Operation) -> Iterator[str | None]:
        mine = operation.client
        if operation.kind == "release":
            yield None if state == mine else state
        elif not operation.known:
            yield mine if state is None else state
        elif operation.result:
            if state is None:
                yield mine
        elif state not in (None, mine):
            yield state


class Undecided(Exception):
    """Too many orders to try them all."""


def needed(history: Sequence[Operation], model: Model) -> list[Operation]:
    """Without writes of unknown outcome that nobody has seen: where an order with one explains everything, so does the
    same order without it."""
    if not isinstance(model, Register):
        return list(history)
    seen = {operation.result for operation in history if operation.kind == "read"}
    return [one for one in history if one.known or one.kind != "write" or one.value in seen]


def _distinct(left: Sequence[int], operations: Sequence[Operation]) -> list[int]:
    """Without those of unknown outcome that do the same as one that began before: it can be done in their place, and
    they, if at all, in its."""
    seen = set()
    distinct = []
    for number in left:
        one = operations[number]
        if not one.known:
            what = one.client if one.kind in ("acquire", "release") else "", one.kind, one.value
            if what in seen:
                continue
            seen.add(what)
        distinct.append(number)
    return distinct


def explained(history: Sequence[Operation], model: Model) -> bool:
    """Whether there is an order of the operations that explains their results. Raises Undecided."""
    operations = sorted(needed(history, model), key=lambda one: (one.ended, one.begun))
    unsure = [replace(one, ended=UNKNOWN) if one.perhaps else one for one in operations]
    everything = sum(1 << number for number, one in enumerate(operations) if one.known)
    tried: set[tuple[int, Any]] = set()
    waiting = [(0, model.initial)]
    while waiting:
        done, state = waiting.pop()
        if done & everything == everything:
            return True
        left = [number for number in range(len(operations)) if not done >> number & 1]
        first_end = operations[left[0]].ended
        # What began after another one's end cannot come before it. The one that ends first is tried first.
        for number in reversed(_distinct(left, operations)):
            if operations[number].begun > first_end:
                continue
            never = [state] if operations[number].perhaps else []
            for after in (*model.step(state, unsure[number]), *never):
                reached = done | 1 << number, after
                if reached not in tried:
                    tried.add(reached)
                    waiting.append(reached)
        if len(tried) > MOST_TRIED:
            raise Undecided(f"{len(history)} operations, {MOST_TRIED} states")
    return False


def told(history: Sequence[Operation]) -> str:
    """A history in lines, by beginnings."""
    start = min((one.begun for one in history), default=0.0)
    lines = []
    for one in sorted(history, key=lambda one: one.begun):
        end = f"{one.ended - start:9.4f}" if one.known else "        ?"
        lines.append(f"{one.begun - start:9.4f} {end}  {one.client:12} {one.kind:8} {one.value!r} -> {one.result!r}")
    return "\n".join(lines)
