"""Answers of a running server as lines of text, and its statistics as rates.

Owns the shapes by command, and :func:`between`, which the live screen uses too. Imports the tables only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nfsd.tables import columns
from rpcrdma.shown import many

Answer = Mapping[str, Any]


def octets(count: float) -> str:
    """Octets for people: 1.5M."""
    for unit in ("", "K", "M", "G", "T"):
        if abs(count) < 1000 or unit == "T":
            return f"{count:.0f}{unit}" if unit == "" or count >= 99.95 else f"{count:.1f}{unit}"
        count /= 1024
    raise AssertionError


def number(count: float) -> str:
    """A count or a rate for people: 12, 3.4k, 1.2M."""
    for unit in ("", "k", "M", "G"):
        if abs(count) < 1000 or unit == "G":
            return f"{count:.0f}{unit}" if unit == "" or count >= 99.95 else f"{count:.1f}{unit}"
        count /= 1000
    raise AssertionError


def duration(seconds: float) -> str:
    """A time for people: 12µs, 3.4ms, 1.2s."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f}µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g}ms"
    return f"{seconds:.1f}s"


def mean(amount: Mapping[str, float]) -> str:
    """The mean time of some calls."""
    calls = amount.get("calls", amount.get("count", 0))
    return duration(amount["seconds"] / calls) if calls else "-"


def quantile(bounds: Sequence[float], buckets: Sequence[float], part: float) -> float:
    """The time that this part of the calls did not exceed: at most twice too long. 0 without calls."""
    whole = sum(buckets)
    so_far = 0.0
    for bound, count in zip((*bounds, 2 * bounds[-1]), buckets, strict=True):
        so_far += count
        if whole and so_far >= part * whole:
            return bound
    return 0.0


def between(before: Answer, after: Answer) -> dict[str, Any]:
    """Statistics with what has grown between two looks in place of what has grown since the start; and ``elapsed``."""
    grown = {**after, "elapsed": after["uptime"] - before["uptime"]}
    for name in ("operations", "rdma", "iwarp"):
        grown[name] = {key: value - before[name].get(key, 0) for key, value in after[name].items()}
    for name in ("exports", "clients"):
        grown[name] = {
            key: {field: value - before[name].get(key, {}).get(field, 0) for field, value in amount.items()}
            for key, amount in after[name].items()
        }
    earlier = {row["call"]: row for row in before["calls"]}
    grown["calls"] = [_grown(row, earlier.get(row["call"])) for row in after["calls"]]
    grown["cpu"] = after["cpu"] - before["cpu"]
    return grown


def _grown(row: Answer, before: Answer | None) -> dict[str, Any]:
    if before is None:
        return dict(row)
    return {
        **row,
        "count": row["count"] - before["count"],
        "seconds": row["seconds"] - before["seconds"],
        "buckets": [now - then for now, then in zip(row["buckets"], before["buckets"], strict=True)],
    }


# -- tables ------------------------------------------------------------------------------------------------------
def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], nothing: str) -> list[str]:
    if not rows:
        return [nothing]
    return columns([list(heads), *([str(cell) for cell in row] for row in rows)])


def _clients(answer: Answer) -> list[str]:
    heads = ["CLIENT", "VERSION", "STATE", "LEASE", "SESS", "OPENS", "LOCKS", "DELEG", "CONNECTIONS", "CALLS", "READ",
             "WRITTEN", "MEAN", "ID", "NAME"]  # fmt: skip
    rows = [
        [
            row["client"], row["version"] or "-", row["state"] or "-",
            "-" if row["lease"] is None else f"{row['lease']:.0f}s",
            row["sessions"], row["opens"], row["locks"], row["delegations"],
            " ".join(f"{count} {netid}" for netid, count in row["connections"].items()) or "-",
            number(row["calls"]), octets(row["read"]), octets(row["written"]), mean(row), row["id"] or "-", row["name"],
        ]
        for row in answer["rows"]
    ]  # fmt: skip
    _add(heads, rows, "HELD", [_held_back(row) for row in answer["rows"]])
    _add(heads, rows, "RATE", [_by_export(row["rates"]) for row in answer["rows"]])
    _add(heads, rows, "WEIGHT", [_by_export(row["weights"]) for row in answer["rows"]])
    _add(heads, rows, "PROCESS", [str(row.get("process", "")) for row in answer["rows"]])
    return _table(heads, rows, "no clients")


def _add(heads: list[str], rows: Sequence[list[object]], head: str, cells: Sequence[str]) -> None:
    """Add a column before the last one, if there is something in it."""
    if any(cells):
        heads.insert(-1, head)
        for row, cell in zip(rows, cells, strict=True):
            row.insert(-1, cell or "-")


def _held_back(row: Answer) -> str:
    """For how long a client was, for going faster than its rates; and whether it is."""
    if not (row["slowed"] or row["slowed_seconds"]):
        return ""
    return duration(row["slowed_seconds"]) + (", now" if row["slowed"] else "")


def _by_export(values: Answer) -> str:
    return "; ".join(f"{value} on {export}" if export else str(value) for export, value in values.items())


def _for(row: Answer) -> str:
    """Whom an export is for, with their rates and weights."""
    words = []
    for host in row["for"]:
        own = [row["rates"][host]] if host in row["rates"] else []
        own += [f"weight {row['weights'][host]}"] if host in row["weights"] else []
        words.append(f"{host} ({', '.join(own)})" if own else host)
    return " ".join(words) or "nobody"


def _sessions(answer: Answer) -> list[str]:
    heads = ["SESSION", "CLIENT", "VERSION", "SLOTS", "BUSY", "CALLBACKS", "CONNECTIONS"]
    rows = [
        [row["session"], row["client"], row["version"], row["slots"], row["busy"], row["callbacks"],
         ", ".join(row["connections"]) or "none"]
        for row in answer["rows"]
    ]  # fmt: skip
    return _table(heads, rows, "no sessions")


def _opens(answer: Answer) -> list[str]:
    heads = ["CLIENT", "VERSION", "EXPORT", "ACCESS", "DENY", "FILE"]
    rows = [
        [row["client"], row["version"], row["export"], row["access"], row["deny"], row["file"]]
        for row in answer["rows"]
    ]
    return _table(heads, rows, "no file is open")


def _locks(answer: Answer) -> list[str]:
    heads = ["CLIENT", "VERSION", "EXPORT", "KIND", "FROM", "LENGTH", "STATE", "FILE"]
    rows = [
        [row["client"], row["version"], row["export"], "write" if row["exclusive"] else "read", row["start"],
         "to the end" if row["length"] is None else row["length"], "held" if row["held"] else "waits", row["file"]]
        for row in answer["rows"]
    ]  # fmt: skip
    return _table(heads, rows, "nothing is locked")


def _inflight(answer: Answer) -> list[str]:
    heads = ["CLIENT", "OVER", "XID", "CALL", "EXPORT", "FOR", "BECAUSE OF"]
    rows = [
        [
            row["client"],
            row["over"],
            row["xid"],
            row["call"],
            row["export"] or "-",
            duration(row["seconds"]),
            row["why"] or "-",
        ]
        for row in answer["rows"]
    ]
    return _table(heads, rows, "no call is waiting")


def _exports(answer: Answer) -> list[str]:
    heads = ["EXPORT", "ACCESS", "SQUASH", "CLIENTS", "OPENS", "WAITING", "CALLS", "ERRORS", "READ", "WRITTEN", "MEAN",
             "DIRECTORY", "FOR"]  # fmt: skip
    rows = [
        [row["export"], row["access"], row["squash"], row["clients"], row["opens"], row["waiting"],
         number(row["calls"]), number(row["errors"]), octets(row["read"]), octets(row["written"]), mean(row),
         row["path"], _for(row)]
        for row in answer["rows"]
    ]  # fmt: skip
    _add(heads, rows, "RATE", ["" if row["rate"] == "none" else row["rate"] for row in answer["rows"]])
    absent = [f"{row['export']} is not served: {row['absent']}" for row in answer["rows"] if row.get("absent")]
    return _table(heads, rows, "nothing is exported") + ["", *absent] * bool(absent)


def _stats(answer: Answer) -> list[str]:
    elapsed = answer.get("elapsed")
    per = f"in {elapsed:.1f} s" if elapsed else f"since the start, {answer['uptime']:.0f} s ago"
    lines = [f"rdma-nfsd {answer['version']}: {per}; CPU {answer['cpu']:.1f} s", ""]
    bounds = answer["bounds"]
    busy = sorted((row for row in answer["calls"] if row["count"]), key=lambda row: -row["count"])
    rows = [
        [
            row["call"],
            number(row["count"]),
            mean(row),
            *(duration(quantile(bounds, row["buckets"], p)) for p in (0.5, 0.99)),
        ]
        for row in busy
    ]
    lines += _table(["CALL", "COUNT", "MEAN", "P50", "P99"], rows, "no calls")
    for title, key in (("EXPORT", "exports"), ("CLIENT", "clients")):
        rows = [
            [name, number(one["calls"]), number(one["errors"]), octets(one["read"]), octets(one["written"]), mean(one)]
            for name, one in answer[key].items()
        ]
        lines += ["", *_table([title, "CALLS", "ERRORS", "READ", "WRITTEN", "MEAN"], rows, f"no {key}")]
    for title, key in (("operations", "operations"), ("RDMA", "rdma"), ("memory", "memory"), ("held", "held")):
        words = ", ".join(f"{name} {value}" for name, value in answer[key].items() if value)
        lines += ["", f"{title}: {words or 'nothing yet'}"]
    return lines + [f"note: {note}" for note in answer["notes"]]


# -- acts ----------------------------------------------------------------------------------------------------------
def _given_up(answer: Answer) -> list[str]:
    lines = [f"gave up {row['client']}: {row['held']}" for row in answer["records"]]
    if answer["connections"]:
        lines.append(f"closed {many(answer['connections'], 'connection')}")
    return lines or ["nobody was away"]


def _drained(answer: Answer) -> list[str]:
    lines = [
        f"{row['client']}: {many(row['opens'], 'open')}, {many(row['delegations'], 'delegation')}"
        for row in answer["held"]
    ]
    if answer["dry_run"]:
        return lines or [f"nobody holds anything of {answer['export']}"]
    lines.append(
        f"{answer['export']} is not served until `rdma-nfsd reload`; clients lost {many(answer['lost'], 'state')}"
    )
    if not answer["closed"]:
        lines.append("some of its files are open still: calls are in progress, or its disk is slow")
    return lines


def _level(answer: Answer) -> list[str]:
    return [str(answer["level"])]


def _reloaded(answer: Answer) -> list[str]:
    head = "a dry run" if answer["dry_run"] else "taken up"
    lines = [f"{answer['file']}: {head}: {answer['exports']}"]
    before, after = answer["level"]
    if before != after:
        lines.append(f"log level: {before} -> {after}")
    lines += [f"server.{key}: at the next start" for key in answer["at_restart"]]
    for row in answer["clients"]:
        lines += [f"{row['client']}  {change}" for change in row["changes"]]
    return lines


def _read_only(answer: Answer) -> list[str]:
    lines = ["the whole server is read-only" if answer["read_only"] else "each export is as it is configured"]
    if answer["read_only"] and answer.get("delegations"):
        lines.append(f"{answer['delegations']} write delegations have not come back yet; what comes late is refused")
    return lines


def _processes(answer: Answer) -> list[str]:
    rows = [
        [
            row["process"],
            row["pid"] or "-",
            row["state"],
            f"{row['seconds']:.0f}s",
            row["restarts"],
            f"{row['cpu']:.1f}s",
        ]
        for row in answer["rows"]
    ]
    return _table(["PROCESS", "PID", "STATE", "FOR", "RESTARTS", "CPU"], rows, "one process serves alone")


def _restarted(answer: Answer) -> list[str]:
    return [f"{answer['restarted']} restarted"]


def _faults(answer: Answer) -> list[str]:
    if not answer["rules"]:
        return ["no rules: this server behaves until it gets some"]
    lines = [f"{answer['file']}, seed {answer['seed']}"]
    for row in answer["rules"]:
        said = ", ".join(f"{key}: {value}" for key, value in row["rule"].items())
        lines.append(f"{row['name']}: acted {row['acted']} times on {many(row['matched'], 'call')}: {said}")
    return lines


SHAPES: Final[Mapping[str, Callable[[Answer], list[str]]]] = {
    "clients": _clients,
    "sessions": _sessions,
    "opens": _opens,
    "locks": _locks,
    "inflight": _inflight,
    "exports": _exports,
    "stats": _stats,
    "evict": _given_up,
    "forget": _given_up,
    "drain": _drained,
    "log-level": _level,
    "reload": _reloaded,
    "read-only": _read_only,
    "processes": _processes,
    "restart": _restarted,
    "faults": _faults,
}
