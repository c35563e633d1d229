"""The requests of the control socket. The inspector, the steering and the statistics answer them.

Owns the names and the fields of requests, which are checked here. Imports the inspector, the steering and statistics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import astuple
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nfsd.control import Command
from nfsd.inspector import MOST_ROWS, MOST_ROWS_EVER, Inspector, Row
from nfsd.read_only import ReadOnlySwitch
from nfsd.statistics import Statistics
from nfsd.steering import Steering
from rpcrdma.rpc.rpcbind import Service

_LONGEST_WAIT = 3600.0


def commands(
    inspector: Inspector, steering: Steering, statistics: Statistics, switch: ReadOnlySwitch
) -> dict[str, Command]:
    """What :class:`nfsd.control.Control` is to know."""
    found: dict[str, Command] = {
        name: _table(getattr(inspector, name))
        for name in ("clients", "sessions", "opens", "locks", "inflight", "exports")
    }

    async def stats(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked)
        return statistics.snapshot()

    async def evict(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked, "client")
        return await steering.evict(_text(asked, "client"))

    async def forget(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked, "client")
        return await steering.forget(_text(asked, "client"))

    async def drain(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked, "export", "seconds", "dry_run")
        return await steering.drain(_text(asked, "export"), seconds_in(asked), asked.get("dry_run") is True)

    async def log_level(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked, "level")
        return await steering.log_level(_text(asked, "level"))

    async def reload(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked, "dry_run")
        return await steering.reload(asked.get("dry_run") is True)

    async def read_only(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked, "on", "seconds")
        on = asked.get("on")
        if on is None:
            return {"read_only": switch.on}
        if not isinstance(on, bool):
            raise ValueError("on must be true or false")
        return await switch.turn(on, seconds_in(asked))

    async def processes(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked)
        return {"rows": [], "left_out": 0}

    async def restart(asked: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("one process serves alone: restart the service, or set server.processes")

    return found | {
        "stats": stats, "evict": evict, "forget": forget, "drain": drain, "log-level": log_level, "reload": reload,
        "read-only": read_only, "processes": processes, "restart": restart,
    }  # fmt: skip


def of_portion(
    collectors: Iterable[Collector], readiness: Callable[[], dict[str, Any]], served: Callable[[], list[Service]]
) -> dict[str, Command]:
    """What the supervisor asks one of several processes besides."""

    async def metrics(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked)
        return {"families": [as_plain(family) for collector in collectors for family in collector.collect()]}

    async def listening(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked)
        return readiness() | {"services": [astuple(service) for service in served()]}

    return {"metrics": metrics, "listening": listening}


def as_plain(family: Metric) -> Row:
    """A metric for JSON."""
    samples = [[sample.name, sample.labels, sample.value] for sample in family.samples]
    return {"name": family.name, "type": family.type, "text": family.documentation, "samples": samples}


def _table(find: Callable[[], Awaitable[list[Row]]]) -> Command:
    async def answer(asked: dict[str, Any]) -> dict[str, Any]:
        only(asked, "limit")
        limit = asked.get("limit", MOST_ROWS)
        if type(limit) is not int or not 1 <= limit <= MOST_ROWS_EVER:
            raise ValueError(f"limit must be from 1 to {MOST_ROWS_EVER}")
        rows = await find()
        return {"rows": rows[:limit], "left_out": max(0, len(rows) - limit)}

    return answer


def only(asked: dict[str, Any], *known: str) -> None:
    """See that a request has no other fields. Raises ValueError."""
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise ValueError(f"not a request: {', '.join(unknown)}")


def seconds_in(asked: dict[str, Any]) -> float:
    """How long an order may take at most. Raises ValueError."""
    seconds = asked.get("seconds", 10.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LONGEST_WAIT:
        raise ValueError("seconds must be from 0 to 3600")
    return seconds


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")
    return value
