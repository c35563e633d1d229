"""What ``rdma-nfsd top`` shows: two looks at a server's statistics as tables of rates.

Owns :class:`Screen`; imports the shapes, and the library that draws (rich, an optional dependency).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nfsd.admin.shapes import Answer, between, duration, mean, number, octets, quantile

ORDERS: Final[Mapping[str, Callable[[Mapping[str, float]], float]]] = {
    "octets": lambda amount: amount["read"] + amount["written"],
    "calls": lambda amount: amount["calls"],
    "time": lambda amount: amount["seconds"],
}
"""What exports and clients can be sorted by."""
_BUSY: Final = 0.9
"""Of one processor; the loop has one thread."""


class Screen:
    """Remembers the latest looks, and draws them."""

    def __init__(self, order: str = "octets") -> None:
        self.order = order
        self.paused = False
        self.trouble = ""
        """Why there is no newer look."""
        self._last: Answer | None = None
        self._shown: dict[str, Any] | None = None

    def look(self, answer: Answer) -> None:
        """Take a newer look."""
        self.trouble = ""
        if self._last is not None and answer["uptime"] < self._last["uptime"]:
            self._last = None  # it was restarted
        if self._last is not None and not self.paused:
            self._shown = between(self._last, answer)
        self._last = answer

    def next_order(self) -> None:
        """Sort by something else."""
        names = list(ORDERS)
        self.order = names[(names.index(self.order) + 1) % len(names)]

    def draw(self, height: int = 50) -> RenderableType:
        """The screen, for so many lines."""
        now = self._shown
        if now is None:
            return Text(self.trouble or "looking…")
        rows = max(3, (height - 22) // 3)
        parts: list[RenderableType] = [self._head(now), self._slow(now)]
        parts.append(self._users("EXPORT", now["exports"], now["elapsed"], rows))
        parts.append(self._users("CLIENT", now["clients"], now["elapsed"], rows))
        parts.append(_calls(now, rows))
        parts.append(_rdma(now))
        parts.append(_held(now))
        return Group(*parts)

    def _head(self, now: Answer) -> Text:
        per = 1 / now["elapsed"] if now["elapsed"] else 0.0
        amounts = now["exports"].values()
        calls = sum(row["count"] for row in now["calls"])
        words = [
            f"rdma-nfsd {now['version']}",
            f"up {_long(now['uptime'])}",
            f"CPU {100 * now['cpu'] * per:.0f} %",
            f"{number(calls * per)} calls/s",
            f"{octets(sum(one['read'] for one in amounts) * per)}/s read",
            f"{octets(sum(one['written'] for one in amounts) * per)}/s written",
            f"{sum(one['open'] for one in now['connections'])} connections",
            f"{now['waiting']} calls waiting",
        ]
        head = Text(" · ".join(words), style="bold")
        keys = f"\n[q]uit  [s]ort: {self.order}  [p]ause"
        return head + Text(keys + (" (paused)" if self.paused else ""), style="dim")

    def _slow(self, now: Answer) -> RenderableType:
        notes = list(now["notes"])
        busy = now["cpu"] / now["elapsed"] if now["elapsed"] else 0.0
        if busy >= _BUSY:
            notes.append(f"the server's thread is busy: {100 * busy:.0f} % of a processor")
        starved = now["rdma"].get("starved_grants", 0)
        if starved:
            notes.append(f"{starved} replies over RDMA granted fewer credits than asked for: no memory for Receives")
        if self.trouble:
            notes.append(self.trouble)
        late = [_late(row) for row in now["inflight"][:3] if row["seconds"] >= 0.1]
        text = Text("\n".join([*notes, *late]) or "nothing is slow", style="yellow" if notes or late else "green")
        return Panel(text, title="slow, and why", title_align="left")

    def _users(self, what: str, amounts: Mapping[str, Mapping[str, float]], elapsed: float, rows: int) -> Table:
        table = _table([what, "CALLS/S", "ERRORS/S", "READ/S", "WRITTEN/S", "MEAN"])
        per = 1 / elapsed if elapsed else 0.0
        found = sorted(amounts.items(), key=lambda item: (-ORDERS[self.order](item[1]), item[0]))
        for name, one in found[:rows]:
            table.add_row(
                Text(name),
                number(one["calls"] * per),
                number(one["errors"] * per),
                octets(one["read"] * per),
                octets(one["written"] * per),
                mean(one),
            )
        _more(table, len(found) - rows)
        return table


def _late(row: Answer) -> str:
    why = f" ({row['why']})" if row["why"] else ""
    return f"{row['call']} of {row['client']} on {row['export'] or 'no export'} waits, {row['seconds']:.1f} s{why}"


def _calls(now: Answer, rows: int) -> Table:
    table = _table(["OPERATION", "CALLS/S", "MEAN", "P50", "P99", "TIME"])
    found = sorted((row for row in now["calls"] if row["count"]), key=lambda row: -row["count"])
    whole = sum(row["seconds"] for row in found)
    for row in found[:rows]:
        table.add_row(
            Text(row["call"]),
            number(row["count"] / now["elapsed"]),
            mean(row),
            *(duration(quantile(now["bounds"], row["buckets"], part)) for part in (0.5, 0.99)),
            f"{100 * row['seconds'] / whole:.0f} %" if whole > 0 else "-",
        )
    _more(table, len(found) - rows)
    return table


def _rdma(now: Answer) -> RenderableType:
    per = 1 / now["elapsed"] if now["elapsed"] else 0.0
    counters, granted = now["rdma"], now["credits"]
    rates = [
        f"{label} {number(counters.get(name, 0) * per)}/s"
        for label, name in (
            ("calls", "calls"),
            ("RDMA Reads", "reads"),
            ("RDMA Writes", "writes"),
            ("long calls", "long_calls"),
            ("long replies", "long_replies"),
            ("invalidations", "invalidations"),
        )
    ]
    for name, word in (("read_bytes", "Read"), ("write_bytes", "Write")):
        rates.append(f"{octets(counters.get(name, 0) * per)}/s by {word}")
    grants = f"credits {granted['limit']}, in use {granted['outstanding']}, Receives {granted['posted']}"
    devices = [f"{name}: {_words(counters)}" for name, counters in now["devices"].items()]
    lines = [" · ".join(rates), " · ".join([grants, *devices])]
    return _named("RDMA", lines)


def _held(now: Answer) -> RenderableType:
    memory, workers = now["memory"], now["workers"]
    grace = f"{now['grace']:.0f} s left" if now["grace"] else "over"
    lines = [
        f"in use {octets(memory['in_use'])} · resident {octets(memory['resident'])} · mapped {octets(memory['mapped'])}"
        f" · limit {octets(memory['limit'])} · threads {workers['running']} of {workers['threads']} busy, "
        f"{workers['queued']} jobs wait",
        _words(now["held"]) + f" · grace period {grace}",
    ]
    return _named("MEMORY", lines)


def _words(counters: Mapping[str, int]) -> str:
    return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in counters.items())


def _named(name: str, lines: Iterable[str]) -> RenderableType:
    return Group(Text(name.ljust(200), style="reverse", no_wrap=True, overflow="crop"), Text("\n".join(lines)))


def _table(heads: Sequence[str]) -> Table:
    table = Table(box=None, expand=True, header_style="reverse", pad_edge=False)
    for place, head in enumerate(heads):
        first = place == 0 or not head
        table.add_column(
            head, justify="left" if first else "right", ratio=3 if head and first else 1, no_wrap=bool(head)
        )
    return table


def _more(table: Table, count: int) -> None:
    if count > 0:
        table.add_row(f"… and {count} more", style="dim")


def _long(seconds: float) -> str:
    """A long time: 3d 4h, 5h 12m, 3m 7s."""
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    found: list[str] = []
    for unit, size in units:
        count, seconds = divmod(int(seconds), size)
        if count or found:
            found.append(f"{count}{unit}")
    return " ".join(found[:2]) or "0s"
