"""Kerberos, TLS and refusals for Prometheus.

Owns :class:`SecurityCollector`. Like :mod:`nfsd.metrics` it only reads numbers that are kept anyway, from a thread of
its own. docs/metrics.md lists every metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from nfsd.exports import REFUSALS, ExportTable
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.tls.counts import BOUNDS, RESULTS, Counts

_PREFIX: Final = "rdma_nfsd_"


class SecurityCollector(Collector):
    """How callers and connections are known and secured, and who was refused for want of that."""

    def __init__(
        self, dispatchers: Mapping[str, Dispatcher], exports: ExportTable, tls: Callable[[], Counts | None]
    ) -> None:
        self._dispatchers, self._exports, self._tls = dispatchers, exports, tls

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        refused = CounterMetricFamily(
            _PREFIX + "export_refusals", "Calls not let to an export, by what was not as it demands", labels=["reason"]
        )
        for reason in REFUSALS:
            refused.add_metric([reason], self._exports.refusals[reason])
        yield refused
        yield from self._kerberos()
        yield from _tls(self._tls() or Counts())

    def _kerberos(self) -> Iterator[Metric]:
        contexts = GaugeMetricFamily(_PREFIX + "gss_contexts", "Security contexts of RPCSEC_GSS")
        events = CounterMetricFamily(_PREFIX + "gss_events", "What has become of contexts and calls", labels=["event"])
        calls = CounterMetricFamily(_PREFIX + "gss_calls", "Calls with a good signature", labels=["service"])
        acceptors = {dispatcher.gss for dispatcher in self._dispatchers.values()} - {None}
        contexts.add_metric([], sum(len(acceptor.table) for acceptor in acceptors if acceptor is not None))
        for acceptor in acceptors:
            if acceptor is not None:
                for event, count in acceptor.events().items():
                    events.add_metric([event], count)
        found: dict[str, int] = dict.fromkeys(("krb5", "krb5i", "krb5p"), 0)
        for dispatcher in self._dispatchers.values():
            for service, count in ({} if dispatcher.secured is None else dispatcher.secured.calls()).items():
                found[service] += count
        for service, count in found.items():
            calls.add_metric([service], count)
        yield from (contexts, events, calls)


def _tls(counts: Counts) -> Iterator[Metric]:
    """Without TLS all is there, too, and nothing is counted."""
    connections = GaugeMetricFamily(
        _PREFIX + "tls_connections", "Connections that are secured now, by their words of xprtsec", labels=["security"]
    )
    for security in ("tls", "mtls"):
        connections.add_metric([security], counts.connections[security])
    in_kernel = GaugeMetricFamily(
        _PREFIX + "tls_kernel_connections", "Secured connections for which the kernel enciphers what is sent"
    )
    in_kernel.add_metric([], counts.in_kernel)
    handshakes = CounterMetricFamily(_PREFIX + "tls_handshakes", "Handshakes, by how they ended", labels=["result"])
    for result in RESULTS:
        handshakes.add_metric([result], counts.handshakes[result])
    seconds = HistogramMetricFamily(_PREFIX + "tls_handshake_duration_seconds", "Handshakes that ended well")
    so_far, buckets = 0, []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), list(counts.buckets), strict=True):
        so_far += count
        buckets.append((bound, float(so_far)))
    seconds.add_metric([], buckets, counts.seconds)
    distrusted = CounterMetricFamily(
        _PREFIX + "tls_distrusted", "Connections ended whose client's certificate is to be checked again"
    )
    distrusted.add_metric([], counts.distrusted)
    expiry = GaugeMetricFamily(
        _PREFIX + "tls_expiry_timestamp_seconds",
        "When the first certificate or list of a file expires",
        labels=["file"],
    )
    for file, until in counts.expiries.items():
        expiry.add_metric([file], until)
    yield from (connections, in_kernel, handshakes, seconds, distrusted, expiry)
