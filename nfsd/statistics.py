"""One look at all counters of a running server, for ``rdma-nfsd stats``, ``rdma-nfsd top`` and the web page.

Owns :class:`Statistics`. Counters count from the start; to show rates, look twice. The loop's thread reads them.
Imports the inspector and the server's parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from nfsd.inspector import Inspector, Parts, Row
from nfsd.metrics import program_version
from nfsd.usage import Amount
from nfsd.usage_metrics import SHOWN_CLIENTS, busiest, operation_name
from rpcrdma.hosts import Hosts
from rpcrdma.memory import Pool
from rpcrdma.rpc.tally import BOUNDS

_NFS4: Final = (100003, 4)
_LONG: Final = 1.0
"""Seconds after which a call that waits is worth a line."""
_MOST_CALLS: Final = 20


class Statistics:
    """Looks at the counters."""

    def __init__(
        self,
        parts: Parts,
        inspector: Inspector,
        pool: Pool,
        read_only: Callable[[], bool] = lambda: False,
        stranger: Callable[[], str] = str,
    ) -> None:
        """``stranger``: a host that was refused lately, since no export is for it; empty: none was."""
        self._parts, self._inspector, self._pool, self._read_only = parts, inspector, pool, read_only
        self._stranger = stranger
        self._started = time.monotonic()

    def snapshot(self) -> dict[str, Any]:
        """Everything, once."""
        parts = self._parts
        usage, exports = parts.exports.usage, {export.id: export.pseudo for export in parts.exports.exports}
        by_export = {name: Amount() for name in exports.values()}
        by_export |= {exports[id_]: amount for id_, amount in usage.by_export().items() if id_ in exports}
        engine = parts.engine
        calls = self._inspector.calls()
        hosts = parts.listeners.hosts
        return {
            "version": program_version(),
            "time": time.time(),
            "uptime": time.monotonic() - self._started,
            "cpu": time.process_time(),
            "bounds": list(BOUNDS),
            "calls": list(self._calls()),
            "operations": {operation_name(number): count for number, count in parts.nfs4.counts.all().items()},
            "exports": {name: asdict(amount) for name, amount in by_export.items()},
            "clients": {name: asdict(amount) for name, amount in busiest(usage.by_client(), SHOWN_CLIENTS).items()},
            "connections": [
                dict(zip(("listener", "open", "accepted", "refused"), row, strict=True))
                for row in parts.listeners.connections()
            ],
            "rdma": _total(parts.listeners.rdma_counters().values()),
            "credits": dict(parts.listeners.credits()),
            "devices": {name: dict(counters) for name, counters in parts.listeners.device_counters().items()},
            "iwarp": dict(parts.listeners.iwarp_counters()),
            "memory": {name: getattr(self._pool, name) for name in ("limit", "mapped", "resident", "in_use")},
            "workers": dict(parts.service.executor.statistics()),
            "held": engine.held(engine.clients.all()),
            "delegations": parts.nfs4.recalls.statistics(),
            "grace": round(max(0.0, engine.grace.ends - engine.now()), 1) if engine.grace.active else 0.0,
            "hosts": dict(hosts.statistics()),
            "read_only": self._read_only(),
            "inflight": calls[:_MOST_CALLS],
            "waiting": len(calls),
            "notes": list(self._notes(calls, hosts)),
        }

    def _calls(self) -> Iterator[Row]:
        """Each procedure, and what COMPOUNDs are about, with its times by bucket."""
        for dispatcher in list(self._parts.dispatchers.values()):
            for (program, version, number), row in dispatcher.rows.items():
                if (program, version) == _NFS4 and number == 1:
                    for operation, (buckets, seconds) in row.latencies.rows().items():
                        if operation:
                            yield _timed(f"v4 {operation_name(operation)}", buckets, seconds)
                    continue
                buckets, seconds = row.latencies.of(number)
                if any(buckets):
                    name, _, procedure = row.label
                    yield _timed(f"{'' if name == 'nfs' else name + ' '}v{version} {procedure}", buckets, seconds)

    def _notes(self, calls: list[Row], hosts: Hosts) -> Iterator[str]:
        """What is slow now, and why, in sentences."""
        if self._read_only():
            yield "the whole server is read-only: changes are answered ROFS (rdma-nfsd read-only off ends that)"
        workers = self._parts.service.executor.statistics()
        if workers["queued"]:
            yield (
                f"{workers['queued']} jobs wait for a thread: {workers['running']} of {workers['threads']} "
                "threads wait for disks"
            )
        late = [call for call in calls if call["seconds"] >= _LONG]
        if late:
            oldest = max(late, key=lambda call: call["seconds"])
            where = f" on {oldest['export']}" if oldest["export"] else ""
            some = "1 call has" if len(late) == 1 else f"{len(late)} calls have"
            yield f"{some} waited for more than {_LONG:.0f} s; the oldest: {oldest['call']} of " + (
                f"{oldest['client']}{where}, {oldest['seconds']:.1f} s"
                + (f" ({oldest['why']})" if oldest["why"] else "")
            )
        slowed = [host for host, pace in self._parts.exports.prices.paces.all().items() if pace.held]
        if slowed:
            named = ", ".join(slowed[:3]) + ("…" if len(slowed) > 3 else "")
            yield f"{len(slowed)} clients go faster than their rates, and are read from later: {named}"
        if stranger := self._stranger():
            yield f"{stranger} is refused: no export is for it (the log has the line that would admit it)"
        if self._pool.pressed:
            yield f"buffers are short: {self._pool.in_use >> 20} of {self._pool.limit >> 20} MiB are in use"
        if waiting := hosts.in_progress.waiting:
            yield f"{len(waiting)} connections wait until there are fewer calls of their client (limits.host_calls)"
        engine = self._parts.engine
        if engine.grace.active:
            left = max(0.0, engine.grace.ends - engine.now())
            yield f"the grace period has {left:.0f} s left: new opens and locks wait for it"
        elif engine.grace.elsewhere:
            yield "clients of another server may reclaim what they had there: new opens and locks wait for it"
        recalling = engine.delegations.recalling
        if recalling:
            yield f"{recalling} delegations are being recalled: whoever wants the files waits"


def _timed(what: str, buckets: list[int], seconds: float) -> Row:
    return {"call": what, "count": sum(buckets), "seconds": seconds, "buckets": buckets}


def _total(counters: Any) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for one in counters:
        for name, value in one.items():
            found[name] = found.get(name, 0) + value
    return found
