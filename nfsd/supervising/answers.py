"""The administrator's requests, asked of all processes, and their answers made one.

An answer is what one server would give that had all clients: rows stand together, counters are added. So whoever reads
it (:mod:`nfsd.admin`, the page) need not know how many processes there are. Rows of clients, and of what they hold, say
besides which process has the client.

Owns :func:`in_all` and the rules for putting answers together. Imports nothing of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Answer = dict[str, Any]
Answers = Mapping[int, Answer]
"""By the number of the process."""

_GREATEST: Final = frozenset(("uptime", "time", "grace", "largest_fpdu"))
"""Numbers of which the greatest counts, and all whose names begin with ``most``."""
_SAME: Final = frozenset(("bounds", "version"))
_KEYS: Final = {"calls": "call", "connections": "listener"}
"""By which rows of statistics are the same."""
_MOST_CALLS: Final = 20


def total(name: str, values: Sequence[Any]) -> Any:
    """One value for those of several processes, by its name."""
    first = values[0]
    if name in _SAME or isinstance(first, str) or first is None:
        return first
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, int | float):
        return max(values) if name in _GREATEST or name.startswith("most_") else sum(values)
    if isinstance(first, dict):
        names = dict.fromkeys(key for value in values for key in value)
        return {key: total(key, [value[key] for value in values if key in value]) for key in names}
    if name == "buckets":
        return [sum(column) for column in zip(*values, strict=True)]
    return first


def _by(key: str, rows: Sequence[Answer]) -> list[Answer]:
    """Rows that are of the same thing, as one."""
    found: dict[Any, list[Answer]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return [total("", same) for same in found.values()]


def statistics(answers: Answers) -> Answer:
    """Of :class:`nfsd.statistics.Statistics`."""
    found: Answer = total("", list(answers.values()))
    for name, key in _KEYS.items():
        found[name] = _by(key, [row for answer in answers.values() for row in answer[name]])
    calls = [row for answer in answers.values() for row in answer["inflight"]]
    found["inflight"] = sorted(calls, key=lambda row: -float(row["seconds"]))[:_MOST_CALLS]
    found["notes"] = [f"process {index}: {note}" for index, answer in answers.items() for note in answer["notes"]]
    return found


def table(answers: Answers, limit: int) -> Answer:
    """Rows of clients, or of what they hold."""
    rows = [{**row, "process": index} for index, answer in answers.items() for row in answer["rows"]]
    left_out = sum(answer["left_out"] for answer in answers.values())
    return {"rows": rows[:limit], "left_out": left_out + max(0, len(rows) - limit)}


def exports(answers: Answers, limit: int) -> Answer:
    """Rows of exports, which all processes have."""
    rows = _by("export", [row for answer in answers.values() for row in answer["rows"]])
    return {"rows": rows[:limit], "left_out": max(answer["left_out"] for answer in answers.values())}


def acted(answers: Answers) -> Answer:
    """What several processes have done."""
    found: Answer = total("", list(answers.values()))
    for name in ("records", "held", "clients", "changes"):
        if name in found:
            found[name] = [row for answer in answers.values() for row in answer[name]]
    if "closed" in found:
        found["closed"] = all(answer["closed"] for answer in answers.values())
    return found


TABLES: Final[Mapping[str, Callable[[Answers, int], Answer]]] = {
    "clients": table, "sessions": table, "opens": table, "locks": table, "inflight": table, "exports": exports,
}  # fmt: skip
