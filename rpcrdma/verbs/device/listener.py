"""Listening with RDMA-CM: a listener that waits for its device, and the connect requests it brings.

Owns :class:`DeviceListener` and :class:`DeviceRequest`; imports its siblings and the interface.

A listener on all addresses is told by the kernel of requests on every device, also of those that come later. For both
families it is two: one IPv6 listener for both would do on InfiniBand and RoCE, but iWARP devices would see addresses of
neither family. One on a particular address is bound to the device that has it: when that is absent, or removed, the
listener looks for it every ``retry_interval`` seconds. iWARP devices do not see addresses that come later: for these a
listener on all addresses listens anew.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Lease
from rpcrdma.verbs.device.addresses import AddressWatch, has_iwarp
from rpcrdma.verbs.device.cm import EventChannel, Identifier, Request, device_names
from rpcrdma.verbs.device.device import Device
from rpcrdma.verbs.device.endpoint import Endpoint
from rpcrdma.verbs.device.errors import ABSENT
from rpcrdma.verbs.device.options import DeviceOptions
from rpcrdma.verbs.interface import ConnectRequest, EndpointHandler, ListenAddress

log = limited_logger("rpcrdma.verbs")

ALL = ("::", "0.0.0.0")
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


class Provider(Protocol):
    """What a listener needs of its provider."""

    options: DeviceOptions
    loop: asyncio.AbstractEventLoop
    requests: set[DeviceRequest]

    def channel(self) -> EventChannel:
        """The event channel. Raises OSError where there is no RDMA-CM."""

    def device_of(self, identifier: Identifier) -> Device:
        """The device an identifier is bound to. Raises OSError."""

    def removed(self, identifier: Identifier) -> None:
        """The device that an identifier is bound to was removed."""

    def adopt(self, device: Device, endpoint: Endpoint) -> None:
        """Take a connection on."""

    def forget(self, endpoint: Endpoint) -> None:
        """Let go of a connection that has ended."""


def packed(host: str) -> tuple[bytes, int]:
    """A literal address as octets, and its scope. Raises OSError or ValueError for anything else."""
    flags = socket.AI_NUMERICHOST
    family, *_, address = socket.getaddrinfo(host, 0, 0, socket.SOCK_STREAM, 0, flags)[0]
    if family == socket.AF_INET6:
        return socket.inet_pton(family, host.partition("%")[0]), int(address[3])  # type: ignore[misc]
    return socket.inet_pton(family, host), 0


class DeviceRequest:
    """A connection request; implements :class:`rpcrdma.verbs.interface.ConnectRequest`."""

    def __init__(self, provider: Provider, request: Request, type_of_service: int) -> None:
        assert request.identifier is not None
        self.private_data = request.private_data
        self.initiator_depth = request.responder_resources
        self.responder_resources = request.initiator_depth
        self.peer_address, self.peer_port = request.identifier.peer
        self.local_address = request.identifier.local[0]
        self._provider = provider
        self._type_of_service = type_of_service
        self._identifier: Identifier | None = request.identifier
        self._answer = b""
        self._reads = 0, 0
        self._accepting: tuple[Identifier, Endpoint] | None = None
        request.identifier.owner = self
        provider.requests.add(self)
        self._timer = provider.loop.call_later(provider.options.accept_timeout, contain, None, self._expire)

    def __str__(self) -> str:
        return f"{self.peer_address} port {self.peer_port}"

    @property
    def can_invalidate(self) -> bool:
        """What the device can do. Where there is none any more, accepting it will say so."""
        if self._identifier is None:
            return False
        try:
            return self._provider.device_of(self._identifier).can_invalidate
        except OSError:
            return False

    def accept(
        self,
        handler: EndpointHandler,
        private_data: bytes,
        receives: Sequence[Lease],
        *,
        initiator_depth: int,
        most_receives: int = 0,
    ) -> Endpoint:
        """Accept. The endpoint may be posted to at once; its queue pair is made and the Receives are posted before the
        peer is told. What goes wrong there ends the connection. Raises OSError, and the request is gone then."""
        provider, identifier = self._provider, self._take()
        self._answer = private_data
        try:
            device = provider.device_of(identifier)
            reads = min(initiator_depth, self.responder_resources, device.max_outbound_reads)
            self._reads = reads, min(self.initiator_depth, device.max_inbound_reads)
            endpoint = Endpoint(
                device, identifier, handler, provider.options, list(receives), reads, provider.forget, self._made, True,
                most_receives,
            )  # fmt: skip
        except BaseException as error:
            if isinstance(error, OSError):
                log.error("%s port %d: cannot be accepted: %s", self.peer_address, self.peer_port, error.strerror)
            self._refuse(identifier, private_data)
            raise
        self._accepting = identifier, endpoint
        provider.adopt(device, endpoint)
        return endpoint

    def _made(self, error: OSError | None) -> None:
        """The queue pair is there, with its Receives, or there is none."""
        assert self._accepting is not None
        if error is None:
            self._accepting[0].accept(self._accepted, self._answer, *self._reads, self._type_of_service)
        else:
            self._given_up(error)

    def _accepted(self, _: object, error: BaseException | None) -> None:
        assert self._accepting is not None
        if error is None:
            self._accepting[1].opened()
        else:
            self._given_up(error)

    def _given_up(self, error: BaseException) -> None:
        assert self._accepting is not None
        identifier, endpoint = self._accepting
        reason = getattr(error, "strerror", None) or str(error)
        log.error("%s port %d: cannot be accepted: %s", self.peer_address, self.peer_port, reason)
        identifier.reject(self._answer)
        endpoint.give_up(f"it could not be accepted: {reason}")

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse, handing our private data to the peer. Nothing happens when the peer is gone by now."""
        if self._identifier is not None:
            self._refuse(self._take(), private_data)

    def drop(self) -> None:
        """End the request if nobody has answered it."""
        self.reject()

    def cm_event(self, event: str, status: int, request: Request | None) -> None:
        """The peer gave up, or the device went, before the request was answered."""
        log.info("%s port %d: %s before it was accepted", self.peer_address, self.peer_port, event)
        if self._identifier is not None:
            identifier = self._take()
            if event == "DEVICE_REMOVAL":
                self._provider.removed(identifier)
            identifier.destroy()

    def _take(self) -> Identifier:
        identifier, self._identifier = self._identifier, None
        if identifier is None:
            raise OSError("the connection request is gone, or was answered before")
        self._timer.cancel()
        self._provider.requests.discard(self)
        return identifier

    @staticmethod
    def _refuse(identifier: Identifier, private_data: bytes) -> None:
        identifier.reject(private_data)
        identifier.destroy()

    def _expire(self) -> None:
        log.warning("%s port %d: not accepted in time", self.peer_address, self.peer_port)
        self.drop()


class DeviceListener:
    """A listener; implements :class:`rpcrdma.verbs.interface.Listener`."""

    def __init__(
        self, provider: Provider, address: ListenAddress, on_request: Callable[[ConnectRequest], None]
    ) -> None:
        self.address = address
        self._provider = provider
        self._on_request = on_request
        self._identifiers: list[Identifier] = []
        self._retry: asyncio.TimerHandle | None = None
        self._waiting_for = ""
        self._closed = False
        self._addresses = AddressWatch(provider.loop, self._listen_anew) if address.host in ALL else None
        hosts = ("0.0.0.0", "::") if address.host == "::" else (address.host,)
        self._packed = [packed(host) for host in hosts]
        try:
            self._listen()
        except OSError as error:
            if error.errno not in ABSENT:
                self.close()
                raise
            self._wait(error)

    @property
    def listening(self) -> bool:
        """False while it waits for a device or an address."""
        return bool(self._identifiers)

    def close(self) -> None:
        """Stop accepting. Established connections live on."""
        self._closed = True
        if self._addresses is not None:
            self._addresses.close()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._drop()

    def cm_event(self, event: str, status: int, request: Request | None) -> None:
        """Take a connect request; or the device is gone."""
        if event == "CONNECT_REQUEST" and request is not None:
            made = DeviceRequest(self._provider, request, self.address.type_of_service)
            contain(made.drop, self._on_request, made)
        elif event in ("DEVICE_REMOVAL", "ADDR_CHANGE"):
            log.warning("%s: %s; the listener waits for the address to come back", self, event)
            if event == "DEVICE_REMOVAL":
                for identifier in self._identifiers:
                    self._provider.removed(identifier)
            self._drop()
            self._schedule()

    def __str__(self) -> str:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"rdma://{host}:{self.address.port}"

    def _listen(self) -> None:
        """Listen. Raises OSError, with nothing listening, unless only IPv6 is lacking on this host."""
        provider, port = self._provider, self.address.port
        made: list[Identifier] = []
        try:
            for host, scope in self._packed:
                identifier = Identifier(provider.channel(), self)
                try:
                    # iWARP adapters take it from the listener, for its connections.
                    identifier.set_type_of_service(self.address.type_of_service)
                    identifier.bind(host, port, scope, only_ipv6=True)
                    identifier.listen(provider.options.backlog)
                except OSError as error:
                    identifier.destroy_at_once()
                    if not made or error.errno not in _NO_IPV6:
                        raise
                    log.info("%s: not on IPv6: %s", self, error.strerror)
                else:
                    made.append(identifier)
                    port = identifier.local[1]
        except BaseException:
            for identifier in made:
                identifier.destroy_at_once()
            raise
        self._identifiers = made
        self._waiting_for = ""
        self.address = replace(self.address, port=port)
        names = ", ".join(device_names()) or "none yet"
        where = names if self.address.host in ALL else made[0].device_name or names
        log.info("%s: listening with RDMA-CM; devices: %s", self, where)

    def _drop(self) -> None:
        identifiers, self._identifiers = self._identifiers, []
        for identifier in identifiers:
            identifier.destroy_at_once()

    def _listen_anew(self) -> None:
        """New addresses: see :mod:`rpcrdma.verbs.device.addresses`. Established connections live on."""
        if self._identifiers and has_iwarp():
            log.info("%s: listening anew, on new addresses too", self)
            self._drop()
            self._again()

    def _schedule(self) -> None:
        if not self._closed and self._retry is None:
            interval = self._provider.options.retry_interval
            self._retry = self._provider.loop.call_later(interval, contain, self._schedule, self._again)

    def _again(self) -> None:
        self._retry = None
        try:
            self._listen()
        except OSError as error:
            self._wait(error)

    def _wait(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason != self._waiting_for:
            self._waiting_for = reason
            log.warning("%s: waiting: %s", self, reason)
        self._schedule()
