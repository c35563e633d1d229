"""Numbers for Prometheus, read on request from the counters that the server keeps anyway.

Owns :class:`ServerCollector`. A thread of the endpoint asks it, so it only reads plain numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from rpcrdma.copying import copied
from rpcrdma.hosts import Hosts
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher

_PREFIX = "rdma_nfsd_"


def program_version() -> str:
    """The installed version of this program."""
    try:
        return version("rdma-nfsd")
    except PackageNotFoundError:
        return "unknown"


class OpenFiles(Protocol):
    """What is known of files kept open (:class:`nfsd.vfs.shares.Shares`)."""

    events: Counter[str]

    def statistics(self) -> Mapping[str, int]:
        """How many there are, by kind."""


class ServerCollector(Collector):
    """All metrics of a server. ``connections`` gives (address, open, accepted, refused) per listener, ``rdma`` the
    transport's counters by listener, ``workers`` the executor's numbers, ``callbacks`` those of NFSv4's callbacks by
    operation and result, ``copies`` those of asynchronous copies, ``delegations`` those held now and what has become
    of the others, ``state`` how much is remembered for clients, and how often that was too much, ``recalled`` the
    entries of directories listed from memory."""

    def __init__(
        self,
        dispatchers: Mapping[str, Dispatcher],
        pool: Pool,
        connections: Callable[[], list[tuple[str, int, int, int]]],
        rdma: Callable[[], dict[str, Mapping[str, int]]],
        workers: Callable[[], Mapping[str, int]],
        callbacks: Callable[[], Mapping[tuple[str, str], int]] = dict,
        copies: Callable[[], Mapping[str, int]] = dict,
        delegations: Callable[[], Mapping[str, int]] = dict,
        losses: Callable[[], int] = int,
        state: Callable[[], Mapping[str, int]] = dict,
        hosts: Hosts | None = None,
        files: OpenFiles | None = None,
        read_only: Callable[[], bool] = bool,
        recalled: Callable[[], int] = int,
    ) -> None:
        self._dispatchers, self._pool, self._hosts = dispatchers, pool, hosts
        self._connections, self._rdma, self._workers = connections, rdma, workers
        self._callbacks, self._copies, self._delegations = callbacks, copies, delegations
        self._losses = losses
        self._state = state
        self._files = files
        self._read_only = read_only
        self._recalled = recalled

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        yield InfoMetricFamily(_PREFIX + "build", "The running program", {"version": program_version()})
        yield from self._rpc()
        yield from self._transports()
        memory = GaugeMetricFamily(_PREFIX + "memory_bytes", "Message and data buffers", labels=["kind"])
        for kind in ("limit", "mapped", "resident", "in_use"):
            memory.add_metric([kind], getattr(self._pool, kind))
        yield memory
        switch = GaugeMetricFamily(_PREFIX + "read_only", "1 while nothing may be changed on the whole server")
        switch.add_metric([], int(self._read_only()))
        yield switch
        copied_bytes = CounterMetricFamily(_PREFIX + "copied_bytes", "Messages and data copied from buffer to buffer")
        copied_bytes.add_metric([], copied())
        yield copied_bytes
        workers = GaugeMetricFamily(_PREFIX + "workers", "The pool of threads that wait for disks", labels=["kind"])
        for kind, value in self._workers().items():
            workers.add_metric([kind], value)
        yield workers
        losses = CounterMetricFamily(_PREFIX + "write_back_failures", "Times that written data did not reach the disk")
        losses.add_metric([], self._losses())
        yield losses
        recalled = CounterMetricFamily(_PREFIX + "recalled_entries", "Entries of directories listed from memory")
        recalled.add_metric([], self._recalled())
        yield recalled
        labels = ["operation", "result"]
        callbacks = CounterMetricFamily(_PREFIX + "callbacks", "Calls of ours to NFSv4 clients", labels=labels)
        for key, value in list(self._callbacks().items()):
            callbacks.add_metric(list(key), value)
        yield callbacks
        copies = CounterMetricFamily(_PREFIX + "copy_events", "Asynchronous copies of NFSv4.2", labels=["event"])
        for event, value in self._copies().items():
            copies.add_metric([event], value)
        yield copies
        delegations = dict(self._delegations())
        held = GaugeMetricFamily(_PREFIX + "delegations", "Files and directories delegated to NFSv4 clients")
        held.add_metric([], delegations.pop("held", 0))
        events = CounterMetricFamily(_PREFIX + "delegation_events", "What became of delegations", labels=["event"])
        for event, value in delegations.items():
            events.add_metric([event], value)
        yield from (held, events)
        state = GaugeMetricFamily(_PREFIX + "state", "What clients make the server remember", labels=["kind"])
        for kind, value in self._state().items():
            state.add_metric([kind], value)
        yield state
        yield from self._open_files()

    def _open_files(self) -> Iterator[Metric]:
        if self._files is None:
            return
        held = GaugeMetricFamily(_PREFIX + "open_files", "Files kept open for clients", labels=["kind"])
        for kind, value in self._files.statistics().items():
            held.add_metric([kind], value)
        events = CounterMetricFamily(
            _PREFIX + "open_file_events", "Opens that waited for others to close, or were refused", labels=["event"]
        )
        for event, value in list(self._files.events.items()):
            events.add_metric([event], value)
        yield from (held, events)

    def _rpc(self) -> Iterator[Metric]:
        labels = ["program", "version", "procedure"]
        calls = CounterMetricFamily(_PREFIX + "rpc_calls", "Calls that are over", labels=labels)
        native = CounterMetricFamily(_PREFIX + "rpc_native", "Calls that were answered natively", labels=labels)
        declined = CounterMetricFamily(
            _PREFIX + "declined",
            "Calls offered to native code and not answered by it, by procedure or operation of a COMPOUND, and reason",
            labels=[*labels, "reason"],
        )
        waited = CounterMetricFamily(
            _PREFIX + "waited",
            "Times that a native call waited, and for what, likewise",
            labels=[*labels, "reason"],
        )
        errors = CounterMetricFamily(_PREFIX + "rpc_errors", "Calls that ended in an RPC error or none", labels=labels)
        seconds = CounterMetricFamily(_PREFIX + "rpc_seconds", "From dispatch to reply", labels=labels)
        refused = CounterMetricFamily(_PREFIX + "rpc_refused", "Calls that reached no procedure", labels=["service"])
        running = GaugeMetricFamily(_PREFIX + "rpcs_in_flight", "Calls that are waiting", labels=["service"])
        hits = CounterMetricFamily(_PREFIX + "replay_hits", "Retransmissions answered once only", labels=["service"])
        entries = GaugeMetricFamily(_PREFIX + "replay_entries", "Replies kept", labels=["service"])
        for service, dispatcher in self._dispatchers.items():
            for row in dispatcher.rows.values():
                key = [str(part) for part in row.label]
                calls.add_metric(key, row.calls)
                native.add_metric(key, row.native_calls)
                errors.add_metric(key, row.errors)
                seconds.add_metric(key, row.seconds)
            for what, reason, count in dispatcher.declined():
                declined.add_metric([*what, reason], count)
            for what, reason, count in dispatcher.waited():
                waited.add_metric([*what, reason], count)
            refused.add_metric([service], dispatcher.refused)
            waiting = len(dispatcher.running) + len(dispatcher.held) + len(dispatcher.securing)
            running.add_metric([service], waiting)
            hits.add_metric([service], dispatcher.replay.hits)
            entries.add_metric([service], len(dispatcher.replay))
        yield from (calls, native, declined, waited, errors, seconds, refused, running, hits, entries)

    def _transports(self) -> Iterator[Metric]:
        is_open = GaugeMetricFamily(_PREFIX + "connections", "Open connections", labels=["listener"])
        accepted = CounterMetricFamily(_PREFIX + "connections_accepted", "Connections accepted", labels=["listener"])
        refused = CounterMetricFamily(_PREFIX + "connections_refused", "Connections refused", labels=["listener"])
        for listener, now, taken, rejected in self._connections():
            is_open.add_metric([listener], now)
            accepted.add_metric([listener], taken)
            refused.add_metric([listener], rejected)
        rdma = CounterMetricFamily(_PREFIX + "rdma_events", "RPC-over-RDMA's counters", labels=["listener", "event"])
        for listener, counters in self._rdma().items():
            for event, value in counters.items():
                rdma.add_metric([listener, event], value)
        yield from (is_open, accepted, refused, rdma)
        yield from self._shares()

    def _shares(self) -> Iterator[Metric]:
        short = CounterMetricFamily(_PREFIX + "memory_short", "Buffers that could not be had", labels=["bound"])
        for bound in ("account", "host", "pool"):
            short.add_metric([bound], getattr(self._pool, "short_of_" + bound))
        yield short
        if self._hosts is None:
            return
        held = GaugeMetricFamily(_PREFIX + "clients_hold", "What clients hold, all or most of one", labels=["kind"])
        for kind, value in self._hosts.statistics().items():
            held.add_metric([kind], value)
        events = CounterMetricFamily(
            _PREFIX + "connection_events", "Connections refused, closed, delayed, by reason", labels=["event"]
        )
        for event, value in list(self._hosts.events.items()):
            events.add_metric([event], value)
        yield from (held, events)
