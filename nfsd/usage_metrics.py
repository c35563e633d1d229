"""Usage and times for Prometheus: operations, exports, clients, and NFSv4's state.

Owns :class:`UsageCollector`. Like :mod:`nfsd.metrics` it only reads numbers that are kept anyway, from a thread of its
own. It tells clients apart up to a bound, those with most calls first. docs/metrics.md lists every metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from nfsd.exports import ExportTable
from nfsd.protocol.nfs4_ops import OPERATIONS
from nfsd.state import StateEngine
from nfsd.usage import OTHERS, Amount
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v4.server import Nfs4Server
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.tally import BOUNDS

_PREFIX: Final = "rdma_nfsd_"
SHOWN_CLIENTS: Final = 100
"""Clients told apart; those with fewer calls are one together."""
_NFS: Final = 100003
_BOUNDS: Final = [*(f"{bound:.9g}" for bound in BOUNDS), "+Inf"]


def operation_name(number: int) -> str:
    """READ for 25."""
    return OPERATIONS[number].name.removeprefix("OP_") if number in OPERATIONS else "ILLEGAL"


class UsageCollector(Collector):
    """Metrics of what was done for whom."""

    def __init__(
        self, dispatchers: Mapping[str, Dispatcher], exports: ExportTable, nfs4: Nfs4Server, nfs3: Nfs3Procedures
    ) -> None:
        self._dispatchers, self._exports, self._nfs4, self._nfs3 = dispatchers, exports, nfs4, nfs3

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        yield from self._latencies()
        yield from self._operations()
        exports, usage = self._exports, self._exports.usage
        names = {export.id: export.pseudo for export in exports.exports}
        by_export = {names[id_]: amount for id_, amount in usage.by_export().items() if id_ in names}
        yield from _amounts("export", {**{name: Amount() for name in names.values()}, **by_export})
        served = GaugeMetricFamily(
            _PREFIX + "export_served", "Whether an export's directory is there, so that it is served", labels=["export"]
        )
        for name in names.values():
            served.add_metric([name], 1)
        for one in list(self._nfs4.service.absent.values()):
            served.add_metric([one.export.pseudo], 0)
        yield served
        yield from _amounts("client", busiest(usage.by_client(), SHOWN_CLIENTS))
        yield from _state(self._nfs4.engine)
        files = GaugeMetricFamily(_PREFIX + "file_descriptors_kept", "Files that a descriptor is kept of")
        files.add_metric([], len(self._nfs4.service.nodes))
        yield files

    def _latencies(self) -> Iterator[Metric]:
        labels = ["program", "version", "procedure"]
        calls = HistogramMetricFamily(
            _PREFIX + "rpc_duration_seconds", "Calls by their time to the reply", labels=labels
        )
        compounds = HistogramMetricFamily(
            _PREFIX + "nfs4_compound_duration_seconds",
            "COMPOUNDs by their time to the reply and by what they are about",
            labels=["operation"],
        )
        for dispatcher in list(self._dispatchers.values()):
            for (program, version, procedure), row in dispatcher.rows.items():
                if (program, version) != (_NFS, 4):
                    found, seconds = row.latencies.of(procedure)
                    if any(found):
                        calls.add_metric([row.label[0], str(version), row.label[2]], cumulated(found), seconds)
                elif procedure == 1:
                    for number, (found, seconds) in row.latencies.rows().items():
                        if number:
                            compounds.add_metric([operation_name(number)], cumulated(found), seconds)
        yield from (calls, compounds)

    def _operations(self) -> Iterator[Metric]:
        operations = CounterMetricFamily(_PREFIX + "nfs4_operations", "Operations in COMPOUNDs", labels=["operation"])
        for number, count in self._nfs4.counts.all().items():
            operations.add_metric([operation_name(number)], count)
        labels = ["version", "operation", "status"]
        errors = CounterMetricFamily(_PREFIX + "nfs_errors", "Operations answered with a failure", labels=labels)
        statuses = dict(self._exports.usage.statuses)
        absent = (3, "LOOKUP", "NOENT")
        statuses[absent] = statuses.get(absent, 0) + self._nfs3.absent
        for (version, operation, status), count in statuses.items():
            if count:
                errors.add_metric([str(version), operation.removeprefix("OP_"), status], count)
        yield from (operations, errors)


def cumulated(buckets: Sequence[int]) -> Sequence[tuple[str, float]]:
    """Bounds and cumulative counts, as a histogram has them."""
    found, so_far = [], 0
    for bound, count in zip(_BOUNDS, buckets, strict=True):
        so_far += count
        found.append((bound, float(so_far)))
    return found


def busiest(clients: Mapping[str, Amount], most: int) -> dict[str, Amount]:
    """The clients with most calls, and what all the rest have done together."""
    found: dict[str, Amount] = {}
    for client in sorted(clients, key=lambda name: (name == OTHERS, -clients[name].calls)):
        name = client if len(found) < most else OTHERS
        found.setdefault(name, Amount()).add(clients[client])
    return found


def _amounts(what: str, amounts: Mapping[str, Amount]) -> Iterator[Metric]:
    """Counters of exports, or of clients, by name."""
    for field, name, help_ in (
        ("calls", "calls", "Calls"),
        ("errors", "errors", "Calls answered with a failure, whatever it was"),
        ("read", "read_bytes", "Octets read"),
        ("written", "written_bytes", "Octets written"),
        ("seconds", "duration_seconds", "Time from call to reply, all calls together"),
    ):
        family = CounterMetricFamily(f"{_PREFIX}{what}_{name}", f"{help_}, by {what}", labels=[what])
        for label, amount in amounts.items():
            family.add_metric([label], getattr(amount, field))
        yield family


def _state(engine: StateEngine) -> Iterator[Metric]:
    clients = GaugeMetricFamily(_PREFIX + "nfs4_clients", "Client records of NFSv4", labels=["state"])
    records = engine.clients.all()
    counts = {"active": 0, "courtesy": 0, "unconfirmed": 0}
    for record in records:
        counts["courtesy" if record.courtesy else "active" if record.confirmed else "unconfirmed"] += 1
    for name, count in counts.items():
        clients.add_metric([name], count)
    held = GaugeMetricFamily(_PREFIX + "nfs4_held", "What clients of NFSv4 and locks of NFSv3 hold", labels=["kind"])
    for name, count in engine.held(records).items():
        held.add_metric([name], count)
    grace = GaugeMetricFamily(_PREFIX + "grace_seconds", "Seconds left of the grace period; 0: it is over")
    grace.add_metric([], max(0.0, engine.grace.ends - engine.now()) if engine.grace.active else 0.0)
    yield from (clients, held, grace)
