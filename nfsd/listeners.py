"""Starts the listeners of a configuration, each by itself, so that one that cannot start stops no other.

Owns :class:`Listeners`; imports the servers of :mod:`rpcrdma`, the embedded provider and that over devices.

``provider: auto``
    A device if the address has one. Otherwise the embedded provider, and a device as well as soon as there is one.
    Software iWARP then goes on, unless the device is an iWARP device that needs its TCP port. In that case software
    iWARP accepts no new connections, and keeps those that exist.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nfsd.config import Address, Limits, Listen
from nfsd.planned import Place
from nfsd.portions import Portion
from nfsd.tls import Tls
from nfsd.vfs.resources import most_calls, most_connections
from rpcrdma.capture.recorder import Captures
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.firewall import contain, spawn
from rpcrdma.hosts import HostLimits, Hosts
from rpcrdma.memory import Pool
from rpcrdma.paces import Paces
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.server.rdma import RdmaServer, RdmaServerOptions
from rpcrdma.server.tcp import TcpLimits, TcpListener
from rpcrdma.server.udp import UdpListener
from rpcrdma.server.visits import Visits
from rpcrdma.tls.certificates import Files, TlsError
from rpcrdma.tls.counts import Counts
from rpcrdma.verbs import device
from rpcrdma.verbs.device import DeviceOptions
from rpcrdma.verbs.interface import ListenAddress, Listener, Provider
from rpcrdma.verbs.softiwarp import LARGEST_FPDU, SoftIwarp, SoftIwarpOptions

if TYPE_CHECKING:
    from rpcrdma.verbs.device.provider import DeviceProvider

_log = logging.getLogger(__name__)

LOOK_FOR_DEVICES = 2.0
"""Seconds between looks for a device, for listeners that would rather have one."""


@dataclass(frozen=True, slots=True)
class Started:
    """A listener that accepts connections."""

    address: Address
    """With the real port."""
    service: str
    """``nfs``, ``mountd``, ``nlm``, ``nsm`` or ``rpcbind``."""
    provider: str = ""
    """Of RDMA listeners: its name."""
    tcp: TcpListener | None = None
    udp: UdpListener | None = None
    rdma: RdmaServer | None = None

    def __str__(self) -> str:
        return f"{self.address} ({self.provider})" if self.provider else str(self.address)


@dataclass(slots=True)
class _Hopeful:
    """A listener of the embedded provider that stands in for a device."""

    entry: Listen
    address: ListenAddress
    """With the real port."""
    dispatcher: Dispatcher
    server: RdmaServer
    listener: Listener


class Listeners:
    """The listeners there are."""

    def __init__(
        self,
        pool: Pool,
        limits: Limits,
        captures: Captures | None = None,
        descriptors: int = 1 << 20,
        paces: Paces | None = None,
        portion: Portion | None = None,
        each: int = 1,
    ) -> None:
        """``portion``: with sockets that listen already. ``each``: descriptors of a connection."""
        self.hosts = Hosts(pool, host_limits(limits, descriptors, each), paces)
        self.started: list[Started] = []
        self.failures: list[str] = []
        """What could not be started, and why."""
        self._pool, self._limits, self._portion = pool, limits, portion
        self._captures = Captures() if captures is None else captures
        self._providers: list[SoftIwarp] = []
        self._devices: DeviceProvider | None = None
        self._secure: Tls | None = None
        self._hopeful: list[_Hopeful] = []
        self._seen_devices: list[str] = []
        self._look: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        """All of them: NFS's, then each other service's behind its name."""
        words = []
        for service in dict.fromkeys(("nfs", *(one.service for one in self.started))):
            name = {"nfs": "", "rpcbind": "portmapper "}.get(service, f"{service} ")
            words.append(name + " ".join(map(str, self.of(service))))
        return " ".join(words)

    def of(self, service: str) -> list[Started]:
        """Those of one service."""
        return [started for started in self.started if started.service == service]

    @property
    def tls(self) -> Counts | None:
        """What has become of connections that asked for TLS; None: there is none."""
        return None if self._secure is None else self._secure.counts

    def secure(self, files: Files, in_kernel: bool = True) -> None:
        """Have connections secured by TLS that ask for it. To be called before there are listeners. ``in_kernel``:
        whether the kernel may encipher."""
        try:
            self._secure = Tls(files, asyncio.get_running_loop(), in_kernel)
        except (OSError, TlsError) as error:
            self._failed(f"no TLS: {error}")

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
                self._failed(f"cannot listen on {address}: {_with_remedy(error, address)}")

    async def start_service(
        self, service: str, what: str, hosts: Iterable[str], port: int, dispatcher: Dispatcher, *, udp: bool = False
    ) -> None:
        """Start a program other than NFS on these hosts; ``what`` names it in messages. ``udp``: it takes datagrams
        too, at the same port."""
        visits = Visits(self.hosts)
        for host in hosts:
            address = Address("tcp", host, port)
            try:
                self._start_tcp(address, dispatcher, service)
                if udp:
                    inherited = self._inherited(Place(service, "udp", host, port))
                    address = Address("udp", host, self.started[-1].address.port)
                    await self._start_udp(address, dispatcher, service, visits, inherited)
            except OSError as error:
                self._failed(f"cannot listen on {address} for {what}: {_with_remedy(error, address)}")

    def _inherited(self, place: Place) -> socket.socket | None:
        """A socket that listens already. Raises OSError where there was to be one, and is none."""
        if self._portion is None:
            return None
        if place in self._portion.failed:
            number = self._portion.failed[place]
            raise OSError(number, os.strerror(number))
        left = self._portion.sockets.get(place)
        return socket.socket(fileno=left.pop(0)) if left else None

    async def _start_udp(
        self, address: Address, dispatcher: Dispatcher, service: str, visits: Visits, sock: socket.socket | None
    ) -> None:
        listener = UdpListener(dispatcher, visits)
        await listener.listen(address.host, address.port, sock)
        self.started.append(Started(address, service, udp=listener))

    def _failed(self, message: str) -> None:
        self.failures.append(message)
        _log.error("%s", message)

    def _start_tcp(self, address: Address, dispatcher: Dispatcher, service: str) -> None:
        limits = TcpLimits(
            max_calls=self._limits.calls,
            connection_memory=self._limits.connection_memory,
            idle_time=self._limits.idle_time,
            transfer_time=self._limits.transfer_time,
        )
        listener = TcpListener(
            dispatcher, self._pool, asyncio.get_running_loop(), limits, self._captures, self.hosts, self._secure
        )
        listener.listen(address.host, address.port, self._inherited(Place(service, *address)))
        self.started.append(Started(Address("tcp", *listener.address), service, tcp=listener))

    async def _start_rdma(self, entry: Listen, dispatcher: Dispatcher) -> None:
        """Start an RDMA listener where its ``provider`` says."""
        if entry.provider == "verbs":
            await self._start_on_devices(entry, dispatcher)
            return
        if entry.provider == "auto":
            why_not = device.why_not() or await self._no_device_for(entry, dispatcher)
            if not why_not:
                return
            _log.info("%s: provider auto: embedded software iWARP (%s)", entry, why_not)
        provider = SoftIwarp(self._pool, SoftIwarpOptions(crc=entry.crc), self.hosts)
        server = self._rdma_server(provider, entry, dispatcher)
        address = entry.address
        sock = self._inherited(Place("nfs", *address))
        listening = None if sock is None else sock.detach()
        listener = await server.listen(ListenAddress(address.host, address.port, entry.tos, listening))
        self._providers.append(provider)
        self._add_rdma(listener, provider.name, server)
        if entry.provider == "auto" and not device.why_not() and not _is_loopback(address.host):
            real = ListenAddress(address.host, listener.address.port, entry.tos)
            self._hopeful.append(_Hopeful(entry, real, dispatcher, server, listener))
            if self._look is None:
                self._seen_devices = device.device_names()
                self._look_later()

    async def _no_device_for(self, entry: Listen, dispatcher: Dispatcher) -> str:
        """Listen on a device if one has the entry's address; otherwise say why not."""
        names = device.device_names()
        if not names:
            return "this host has no RDMA device"
        if _is_loopback(entry.address.host):
            return "no RDMA device has a loopback address"
        try:
            await self._start_on_devices(entry, dispatcher, wait=False)
        except OSError as error:
            return _reason(error)
        _log.info("%s: provider auto: RDMA devices (%s)", entry, ", ".join(names))
        return ""

    async def _start_on_devices(
        self, entry: Listen, dispatcher: Dispatcher, *, wait: bool = True, port: int | None = None
    ) -> None:
        """Listen on this host's devices; with ``wait`` also when the address has none yet. Raises OSError."""
        if self._devices is None:
            options = DeviceOptions(shared_receives=self._limits.shared_receives)
            self._devices = device.make_provider(self._pool, options)
        server = self._rdma_server(self._devices, entry, dispatcher)
        address = ListenAddress(entry.address.host, entry.address.port if port is None else port, entry.tos)
        listener = await server.listen(address)
        if not wait and not self._devices.is_listening(listener):
            listener.close()
            raise OSError(errno.ENODEV, "no RDMA device has this address")
        self._add_rdma(listener, self._devices.name, server)

    def _rdma_server(self, provider: Provider, entry: Listen, dispatcher: Dispatcher) -> RdmaServer:
        return RdmaServer(
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
                connection_memory=self._limits.connection_memory,
                idle_time=self._limits.idle_time,
            ),
            captures=self._captures,
            hosts=self.hosts,
        )

    def _add_rdma(self, listener: Listener, provider: str, server: RdmaServer) -> None:
        real = Address("rdma", listener.address.host, listener.address.port)
        self.started.append(Started(real, "nfs", provider, rdma=server))

    # Devices that come later

    def _look_for_devices(self) -> None:
        """Every now and then: is there a device that was not there the last time?"""
        self._look = None
        if self._hopeful:
            self._look_later()
        names = device.device_names()
        if set(names) - set(self._seen_devices):
            self._looking = spawn(self._take_devices(names), set())
        self._seen_devices = names

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(LOOK_FOR_DEVICES, contain, None, self._look_for_devices)

    async def _take_devices(self, names: list[str]) -> None:
        """Have the hopeful listeners' addresses served by devices too."""
        for hopeful in list(self._hopeful):
            # On an iWARP device the kernel needs the TCP port; connections live on while it is let go of.
            hopeful.listener.close()
            try:
                await self._start_on_devices(hopeful.entry, hopeful.dispatcher, wait=False, port=hopeful.address.port)
            except OSError as error:
                _log.info("%s: not on a device: %s", hopeful.entry, _reason(error))
            else:
                self._hopeful.remove(hopeful)
                _log.info("%s: provider auto: now on RDMA devices too (%s)", hopeful.entry, ", ".join(names))
            try:
                hopeful.listener = await hopeful.server.listen(hopeful.address)
            except OSError as error:
                _log.info(
                    "%s: software iWARP takes no new connections here (%s), the device does", hopeful.entry, error
                )

    def connections(self) -> list[tuple[str, int, int, int]]:
        """(address, open, accepted, refused) of every listener."""
        rows = []
        for started in self.started:
            if started.tcp is not None:
                tcp = started.tcp
                rows.append((str(started.address), len(tcp.connections), tcp.accepted, tcp.refused))
            elif started.rdma is not None:
                rdma = started.rdma
                rows.append((self._name(started), len(rdma.connections), rdma.accepted, rdma.rejected))
        return rows

    def rdma_counters(self) -> dict[str, Mapping[str, int]]:
        """RPC-over-RDMA's counters of every RDMA listener."""
        return {
            self._name(started): dict(started.rdma.counters.items())
            for started in self.started
            if started.rdma is not None
        }

    def _name(self, started: Started) -> str:
        """The address; with the provider where two have the same."""
        twins = [other for other in self.started if other.address == started.address]
        return str(started) if len(twins) > 1 else str(started.address)

    def credits(self) -> Mapping[str, int]:
        """What clients of RDMA listeners may send, and have sent: calls granted and not answered yet, Receives
        posted."""
        ledgers = [
            connection.responder.credits
            for started in self.started
            if started.rdma is not None
            for connection in started.rdma.connections
        ]
        return {name: sum(getattr(one, name) for one in ledgers) for name in ("limit", "outstanding", "posted")}

    def device_counters(self) -> Mapping[str, Mapping[str, int]]:
        """What each RDMA device in use has done and holds, registered memory among it."""
        return {} if self._devices is None else self._devices.statistics()

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
            for listener in (started.tcp, started.udp):
                if listener is not None:
                    listener.close()
        for task in (self._look, self._looking):
            if task is not None:
                task.cancel()
        for provider in self._providers:
            await provider.close()
        if self._devices is not None:
            await self._devices.close()
        if self._secure is not None:
            self._secure.close()


def host_limits(limits: Limits, descriptors: int = 1 << 20, each: int = 1) -> HostLimits:
    """The bounds by client address; with few descriptors there are fewer connections and calls than configured."""
    found = HostLimits(
        connections=min(limits.connections, most_connections(descriptors, each)),
        host_connections=limits.host_connections,
        host_memory=limits.host_memory or max(limits.memory // 4, limits.connection_memory),
        calls=min(limits.all_calls, most_calls(descriptors)),
        host_calls=min(limits.host_calls, max(1, most_calls(descriptors) // 2)),
    )
    if found.connections < limits.connections or found.calls < limits.all_calls:
        _log.log(
            logging.WARNING if found.connections < limits.connections else logging.INFO,
            "this process may have %d descriptors: %d connections and %d calls at a time",
            descriptors, found.connections, found.calls,
        )  # fmt: skip
    return found


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def may_be_on_device(entry: Listen) -> bool:
    """Whether an RDMA device may serve this listener of NFS."""
    if entry.address.scheme != "rdma" or entry.provider == "softiwarp":
        return False
    return entry.provider == "verbs" or bool(not device.why_not() and device.device_names())


def remedy_for(error: OSError, host: str, port: int) -> str:
    """What to do when a port cannot be had."""
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this host: write one that is (ip address), or 0.0.0.0 or [::] for all"
    if error.errno == errno.EADDRINUSE:
        return f"stop what has it (ss -lntup 'sport = :{port}'), or choose another port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one, or run the server with it"
    if error.errno == errno.EAFNOSUPPORT:
        return "this host has no IPv6; write an IPv4 address"
    return "see ip address for the addresses of this host"


def _with_remedy(error: Exception, address: Address) -> str:
    if isinstance(error, OSError) and error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EACCES):
        return f"{_reason(error)}; {remedy_for(error, address.host, address.port)}"
    return _reason(error)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
