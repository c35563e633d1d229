"""One of several processes that serve together (``server.processes``): what it has of the whole.

Owns :class:`Portion`, which the supervisor makes and the process lives by: its number, the sockets it inherits, its
directory, and its part of what all processes may use together. Imports the configuration.

What is bounded for the whole server is divided, so that the processes together keep to it: memory, connections, calls,
what clients make the server remember, and the rate of an export. What is bounded for a client stays as it is, since a
client has one process (:mod:`rpcrdma.server.spread`), as far as that one has so much itself. Threads of an export are
each process's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from nfsd.config import Config, Limits, Listen, Nfs4Limits
from nfsd.exports import Export
from nfsd.planned import Place
from rpcrdma.paces import Bound

_SHARED: Final = ("memory", "connections", "all_calls", "open_files", "replay_memory")
_OF_A_HOST: Final = {"host_memory": "memory", "connection_memory": "memory", "host_connections": "connections"} | {
    "host_calls": "all_calls", "host_open_files": "open_files"
}  # fmt: skip
"""Bounds of one client, and what they cannot be more than."""
_SHARED_STATE: Final = (
    "octets", "clients", "unconfirmed_clients", "all_cached_octets", "opens", "open_owners", "lock_owners",
    "lock_states", "locks", "waiters", "copies", "delegations",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Portion:
    """Of one process. It is handed on as the supervisor has it, with the configuration (pickle)."""

    index: int
    """From 0."""
    count: int
    state_dir: str
    """That of the whole server; the process has one of its own below (:func:`state_dir_of`)."""
    on_devices: frozenset[str] = frozenset()
    """The URLs of listeners that RDMA devices may serve. A device's port can have one listener only."""
    sockets: dict[Place, list[int]] = field(default_factory=dict)
    """Descriptors of sockets that listen already."""
    failed: dict[Place, int] = field(default_factory=dict)
    """The errno where there is none."""
    leash: int = -1
    """A descriptor that can be read as soon as there is no supervisor any more."""
    read_only: bool = False
    """Whether nothing may be changed, which may have been turned on and off since the configuration was read."""

    def of(self, config: Config) -> Config:
        """The configuration of this process."""
        server, count = config.server, self.count
        audit = server.audit
        if audit.file is not None:
            audit = replace(audit, file=f"{audit.file}-{self.index}")
        nfs4 = replace(server.nfs4, limits=_divided(server.nfs4.limits, _SHARED_STATE, count))
        return replace(
            config,
            server=replace(
                server,
                state_dir=state_dir_of(self.state_dir, self.index, count),
                rpcbind=False,
                metrics=replace(server.metrics, listen=None),
                audit=audit,
                nfs4=nfs4,
                limits=_limits(server.limits, count),
            ),
            exports=tuple(_paced(export, count) for export in config.exports),
        )

    def listeners(self, entries: Iterable[Listen]) -> Iterator[Listen]:
        """Those of NFS that this process starts. Listeners over devices are dealt out, the first to process 0; the
        others are everybody's, with a socket for each."""
        dealt = 0
        for entry in entries:
            if entry.url not in self.on_devices:
                yield replace(entry, provider="softiwarp") if entry.address.scheme == "rdma" else entry
                continue
            if dealt % self.count == self.index:
                yield entry
            dealt += 1


def state_dir_of(state_dir: str, index: int, count: int) -> str:
    """Where a process keeps what is its own. Another number of processes has other directories."""
    return state_dir if count == 1 else os.path.join(state_dir, f"processes-{count}", str(index))


def _divided(limits: Nfs4Limits, names: Iterable[str], count: int) -> Nfs4Limits:
    changed: dict[str, Any] = {}
    for name in names:
        value = getattr(limits, name)
        changed[name] = max(1, value // count) if value else 0
    return replace(limits, **changed)


def _limits(limits: Limits, count: int) -> Limits:
    changed: dict[str, Any] = {}
    for name in _SHARED:
        value = getattr(limits, name)
        changed[name] = value if value is None else max(1, value // count)
    for name, whole in _OF_A_HOST.items():
        value, most = getattr(limits, name), changed[whole]
        changed[name] = value if value is None or most is None else min(value, most)
    return replace(limits, **changed)


def _paced(export: Export, count: int) -> Export:
    rate = export.rate
    return replace(export, rate=Bound(*(value and max(1, value // count) for value in rate))) if any(rate) else export


assert {*_SHARED, *_OF_A_HOST} <= {one.name for one in fields(Limits)}
