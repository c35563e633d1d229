"""Starting the listeners of a configuration: each by itself, so that one that cannot start stops no other.

Owns :class:`Listeners`; imports the servers of :mod:`rpcrdma` and the embedded provider.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass

from nfsd.config import Address, Limits, Listen
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.server.rdma import RdmaServer, RdmaServerOptions
from rpcrdma.server.tcp import TcpLimits, TcpListener
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import LARGEST_FPDU, SoftIwarp, SoftIwarpOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A listener that accepts connections."""

    address: Address
    """With the real port."""
    service: str
    """``nfs`` or ``mountd``."""
    provider: str = ""
    """Of RDMA listeners: its name."""
    tcp: TcpListener | None = None
    rdma: RdmaServer | None = None

    def __str__(self) -> str:
        return f"{self.address} ({self.provider})" if self.provider else str(self.address)


class Listeners:
    """The listeners there are."""

    def __init__(self, pool: Pool, limits: Limits) -> None:
        self.started: list[Started] = []
        self.failures: list[str] = []
        """What could not be started, and why."""
        self._pool, self._limits = pool, limits
        self._providers: list[SoftIwarp] = []

    def of(self, service: str) -> list[Started]:
        """Those of one service."""
        return [started for started in self.started if started.service == service]

    async def start(self, entries: Iterable[Listen], dispatcher: Dispatcher) -> None:
        """Start what serves NFS."""
        for entry in entries:
            address = entry.address
            try:
                if address.scheme == "tcp":
                    self._start_tcp(address, dispatcher, "nfs")
                else:
                    await self._start_rdma(entry, dispatcher)
            except (OSError, ValueError) as error:
                self._failed(f"cannot listen on {address}: {_reason(error)}")

    def start_mountd(self, hosts: Iterable[str], port: int, dispatcher: Dispatcher) -> None:
        """Start MOUNT on these hosts."""
        for host in mount_hosts(hosts):
            address = Address("tcp", host, port)
            try:
                self._start_tcp(address, dispatcher, "mountd")
            except OSError as error:
                self._failed(f"cannot listen on {address} for MOUNT (NFSv3): {_reason(error)}")

    def _failed(self, message: str) -> None:
        self.failures.append(message)
        _log.error("%s", message)

    def _start_tcp(self, address: Address, dispatcher: Dispatcher, service: str) -> None:
        limits = TcpLimits(
            max_calls=self._limits.calls,
            max_connections=self._limits.connections,
            connection_memory=self._limits.connection_memory,
            idle_time=self._limits.idle_time,
            transfer_time=self._limits.transfer_time,
        )
        listener = TcpListener(dispatcher, self._pool, asyncio.get_running_loop(), limits)
        listener.listen(address.host, address.port)
        self.started.append(Started(Address("tcp", *listener.address), service, tcp=listener))

    async def _start_rdma(self, entry: Listen, dispatcher: Dispatcher) -> None:
        if entry.provider == "verbs":
            raise OSError("there is no verbs provider in this build; use provider: softiwarp")
        options = SoftIwarpOptions(crc=entry.crc, max_connections=self._limits.connections)
        provider = SoftIwarp(self._pool, options)
        server = RdmaServer(
            provider,
            self._pool,
            dispatcher,
            RdmaServerOptions(
                responder=ResponderOptions(
                    send_size=entry.send_size,
                    receive_size=entry.receive_size,
                    credits=entry.credits,
                    version_two=entry.version_two,
                ),
                max_connections=self._limits.connections,
                connection_memory=self._limits.connection_memory,
            ),
        )
        address = entry.address
        listener = await server.listen(ListenAddress(address.host, address.port))
        self._providers.append(provider)
        real = Address("rdma", listener.address.host, listener.address.port)
        self.started.append(Started(real, "nfs", provider.name, rdma=server))

    def connections(self) -> list[tuple[str, int, int, int]]:
        """(address, open, accepted, refused) of every listener."""
        rows = []
        for started in self.started:
            if started.tcp is not None:
                tcp = started.tcp
                rows.append((str(started.address), len(tcp.connections), tcp.accepted, tcp.refused))
            elif started.rdma is not None:
                rdma = started.rdma
                rows.append((str(started.address), len(rdma.connections), rdma.accepted, rdma.rejected))
        return rows

    def rdma_counters(self) -> dict[str, Mapping[str, int]]:
        """RPC-over-RDMA's counters of every RDMA listener."""
        return {str(s.address): dict(s.rdma.counters.items()) for s in self.started if s.rdma is not None}

    def iwarp_counters(self) -> Mapping[str, int]:
        """What the embedded provider has done so far: FPDUs, octets, operations, Terminates, by name."""
        total: collections.Counter[str] = collections.Counter()
        largest = 0
        for provider in self._providers:
            counters = provider.statistics()
            largest = max(largest, counters.pop(LARGEST_FPDU))
            total.update(counters)
        return {**total, LARGEST_FPDU: largest}

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, answer what was taken, and return when that is done or ``seconds`` are over."""
        drains: list[Coroutine[None, None, None]] = []
        for started in self.started:
            if started.tcp is not None:
                drains.append(started.tcp.drain(seconds))
            if started.rdma is not None:
                drains.append(started.rdma.close(seconds))
        await asyncio.gather(*drains)

    async def close(self) -> None:
        """Close what is still open."""
        for started in self.started:
            if started.tcp is not None:
                started.tcp.close()
        for provider in self._providers:
            await provider.close()


def mount_hosts(hosts: Iterable[str]) -> list[str]:
    """Where MOUNT listens: each host once, and only the address for all where there is one."""
    unique = list(dict.fromkeys(hosts))
    if "::" in unique:
        return ["::"]
    if "0.0.0.0" in unique:
        return [host for host in unique if host == "0.0.0.0" or ":" in host]
    return unique


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
