"""The provider over this host's RDMA devices: listeners, outgoing connections, and which devices are in use.

Owns :class:`DeviceProvider`, which implements ``rpcrdma.verbs.interface.Provider``. Imports its siblings, the
interface and the pool. Raises ImportError where the extension or its libraries are absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Lease, Pool
from rpcrdma.verbs.device.cm import EventChannel, Identifier, Request
from rpcrdma.verbs.device.control import Control
from rpcrdma.verbs.device.device import Device
from rpcrdma.verbs.device.endpoint import Endpoint
from rpcrdma.verbs.device.limits import raise_memory_lock, warn_of_memory_lock
from rpcrdma.verbs.device.listener import DeviceListener, DeviceRequest, packed
from rpcrdma.verbs.device.options import DeviceOptions
from rpcrdma.verbs.interface import ConnectRequest, EndpointHandler, ListenAddress, Listener

log = limited_logger("rpcrdma.verbs")


class _Anchor:
    """Keeps a device open and tells of its removal while no connection does. Raises OSError."""

    def __init__(self, device: Device, channel: EventChannel, host: str) -> None:
        self._device = device
        self._identifier = Identifier(channel, self)
        try:
            octets, scope = packed(host)
            self._identifier.bind(octets, 0, scope)
        except BaseException:
            self._identifier.destroy()
            raise

    def cm_event(self, event: str, status: int, request: Request | None) -> None:
        """Take an event."""
        if event == "DEVICE_REMOVAL":
            self._device.fail("the device was removed", removed=True)

    def close(self) -> None:
        """Let go."""
        self._identifier.destroy()


def _outcome_to(future: asyncio.Future[None]) -> Callable[[OSError | None], None]:
    """What has a future done."""

    def done(error: OSError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done


class _Connecting:
    """Owner of an identifier that is being connected."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._loop = loop
        self._timeout = timeout
        self._wanted: tuple[str, asyncio.Future[Request | None]] | None = None

    def cm_event(self, event: str, status: int, request: Request | None) -> None:
        """Take an event."""
        if self._wanted is None or self._wanted[1].done():
            return
        wanted, future = self._wanted
        if event == wanted:
            future.set_result(request)
        elif event == "REJECTED":
            refusal = ConnectionRefusedError(abs(status), "the peer rejected the connection")
            refusal.private_data = request.private_data if request else b""  # type: ignore[attr-defined]
            future.set_exception(refusal)
        else:
            future.set_exception(OSError(abs(status), f"{event}, status {status}"))

    async def wait(self, event: str, start: Callable[[], None]) -> Request | None:
        """Start a step, and wait for its event. Raises OSError."""
        future: asyncio.Future[Request | None] = self._loop.create_future()
        self._wanted = event, future
        start()
        async with asyncio.timeout(self._timeout):
            return await future


class DeviceProvider:
    """All RDMA devices of this host; those that come later are used as they come."""

    name = "verbs"
    can_be_invalidated = False

    def __init__(self, pool: Pool, options: DeviceOptions | None = None) -> None:
        self.pool = pool
        self.options = DeviceOptions() if options is None else options
        self.loop = asyncio.get_running_loop()
        self.requests: set[DeviceRequest] = set()
        self.endpoints: dict[Endpoint, Device] = {}
        self.devices: dict[int, Device] = {}
        self._anchors: dict[Device, _Anchor] = {}
        self._listeners: list[DeviceListener] = []
        self._channel: EventChannel | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._control = Control(self.loop)
        raise_memory_lock()
        warn_of_memory_lock(pool.limit)
        self._emptied: asyncio.Event = asyncio.Event()

    def channel(self) -> EventChannel:
        """The event channel. Raises OSError where there is no RDMA-CM."""
        if self._channel is None:
            self._channel = EventChannel(self._control, self.loop)
        return self._channel

    async def listen(self, address: ListenAddress, on_request: Callable[[ConnectRequest], None]) -> DeviceListener:
        """Listen on ``address``, as soon as there is a device for it. Raises OSError for what time will not mend."""
        listener = DeviceListener(self, address, on_request)
        self._listeners.append(listener)
        return listener

    @staticmethod
    def is_listening(listener: Listener) -> bool:
        """Whether a listener of this provider's has what it listens on, or waits for it."""
        return isinstance(listener, DeviceListener) and listener.listening

    async def connect(
        self,
        address: ListenAddress,
        handler: EndpointHandler,
        private_data: bytes,
        receives: Sequence[Lease],
        *,
        initiator_depth: int = 0,
        responder_resources: int = 16,
    ) -> tuple[Endpoint, bytes]:
        """Connect as a requester. Returns endpoint and peer private data.

        Raises ConnectionRefusedError on reject (its ``private_data`` attribute is what the peer said), TimeoutError,
        or another OSError. The Receives are posted when it returns, and still the caller's when it raises.
        """
        owner = _Connecting(self.loop, self.options.connect_timeout)
        milliseconds = int(self.options.connect_timeout * 1000)
        identifier = Identifier(self.channel(), owner)
        endpoint: Endpoint | None = None
        try:
            identifier.set_type_of_service(address.type_of_service)
            host, scope = packed(address.host)
            await owner.wait(
                "ADDR_RESOLVED", lambda: identifier.resolve_address(host, address.port, scope, milliseconds)
            )
            await owner.wait("ROUTE_RESOLVED", lambda: identifier.resolve_route(milliseconds))
            device = self.device_of(identifier)
            outbound = min(initiator_depth, device.max_outbound_reads)
            inbound = min(responder_resources, device.max_inbound_reads)
            made: asyncio.Future[None] = self.loop.create_future()
            endpoint = Endpoint(
                device, identifier, handler, self.options, list(receives), outbound, self.forget, _outcome_to(made)
            )
            identifier.owner = owner
            await made
            answer = await owner.wait("ESTABLISHED", lambda: identifier.connect(private_data, outbound, inbound))
        except BaseException:
            if endpoint is not None:
                withdrawn = self.loop.create_future()
                endpoint.withdraw(partial(withdrawn.set_result, None))
                # The Receives are the device's until then.
                await asyncio.shield(withdrawn)
            identifier.destroy()
            raise
        identifier.owner = endpoint
        assert answer is not None
        endpoint.set_max_reads(min(outbound, answer.initiator_depth))
        self.adopt(device, endpoint)
        endpoint.opened()
        return endpoint, answer.private_data

    async def close(self) -> None:
        """Close all listeners and connections, and give the devices back."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for request in list(self.requests):
            request.drop()
        while self.endpoints:
            self._emptied.clear()
            for endpoint in list(self.endpoints):
                endpoint.close(abort=True)
            await self._emptied.wait()
        if self._watchdog is not None:
            self._watchdog.cancel()
        for device in list(self.devices.values()):
            self._give_back(device)
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._control.close()

    def statistics(self) -> dict[str, dict[str, int]]:
        """What is in use, by device."""
        return {device.name: device.statistics() for device in self.devices.values()}

    # What listeners and connections need

    def device_of(self, identifier: Identifier) -> Device:
        """The device an identifier is bound to. Raises OSError."""
        key = identifier.device_key
        if not key:
            raise OSError("bound to no device")
        device = self.devices.get(key)
        if device is None:
            device = self._control.call(
                Device, identifier, self.pool, self.loop, self.options, self._failed, self._control
            )
            try:
                self._anchors[device] = _Anchor(device, self.channel(), identifier.local[0])
            except BaseException:
                device.close()
                raise
            device.start()
            self.devices[key] = device
            log.info(
                "%s: in use (%s%s)",
                device.name,
                "iWARP" if device.iwarp else "InfiniBand or RoCE",
                ", remote invalidation" if device.can_invalidate else "",
            )
        return device

    def removed(self, identifier: Identifier) -> None:
        """The device that an identifier is bound to was removed."""
        for device in list(self._anchors):
            if device.key == identifier.device_key:
                device.fail("the device was removed", removed=True)
                return
        identifier.release_device()

    def adopt(self, device: Device, endpoint: Endpoint) -> None:
        """Take a connection on."""
        self.endpoints[endpoint] = device
        if self._watchdog is None:
            self._arm_watchdog()

    def _arm_watchdog(self) -> None:
        self._watchdog = self.loop.call_later(self.options.stall_timeout / 4, contain, None, self._check)

    def _check(self) -> None:
        """See that every connection makes progress."""
        self._watchdog = None
        for endpoint, device in list(self.endpoints.items()):
            contain(partial(endpoint.fail, f"{device.name}: it could not be checked"), endpoint.check, self.loop.time())
        if self.endpoints:
            self._arm_watchdog()

    def forget(self, endpoint: Endpoint) -> None:
        """Let go of a connection that has ended."""
        device = self.endpoints.pop(endpoint, None)
        if device is not None and device.failed:
            self._give_back_unused(device)
        if not self.endpoints:
            self._emptied.set()

    def _failed(self, device: Device) -> None:
        """No more connections are made on it; it is given back when the last one has ended."""
        for key, other in list(self.devices.items()):
            if other is device:
                del self.devices[key]
        self.loop.call_soon(contain, None, self._give_back_unused, device)

    def _give_back_unused(self, device: Device) -> None:
        if device in self._anchors and device not in self.endpoints.values():
            self._give_back(device)

    def _give_back(self, device: Device) -> None:
        for key, other in list(self.devices.items()):
            if other is device:
                del self.devices[key]
        anchor = self._anchors.pop(device, None)
        device.close()
        # Last: it keeps the library from closing the device under the rest.
        if anchor is not None:
            anchor.close()
        log.info("%s: given back", device.name)
