import asyncio
from typing import NamedTuple, Protocol

from rpcrdma.verbs.device.control import Control, Done

class Request(NamedTuple):
    """What came with a connect request, or with its answer."""

    identifier: Identifier | None
    """Of a connect request: the new connection's."""
    private_data: bytes
    responder_resources: int
    """RDMA Reads the peer wants to keep outstanding towards us."""
    initiator_depth: int
    """RDMA Reads the peer lets us keep outstanding."""

class _Owner(Protocol):
    """Whoever owns an identifier."""

    def cm_event(self, event: str, status: int, request: Request | None) -> None:
        """Take an event of RDMA-CM: its name without RDMA_CM_EVENT_, and its status."""

class EventChannel:
    """Where the events of identifiers arrive. Raises OSError when there is no RDMA-CM."""

    control: Control
    def __init__(self, control: Control, loop: asyncio.AbstractEventLoop) -> None: ...
    def close(self) -> None:
        """Destroy the channel, after all its identifiers."""

class Identifier:
    """An ``rdma_cm_id``: a listener, a connect request or a connection. Every method raises OSError."""

    owner: _Owner | None
    device_name: str
    """'' while it is bound to no device."""
    device_key: int
    """The same for all identifiers of one device; 0 for none."""
    port: int
    """The device's port."""
    local: tuple[str, int]
    peer: tuple[str, int]
    alive: bool
    def __init__(self, channel: EventChannel, owner: _Owner | None) -> None: ...
    def bind(self, host: bytes, port: int, scope: int = 0, *, only_ipv6: bool = False) -> None:
        """Bind to a packed address."""
    def listen(self, backlog: int) -> None: ...
    def resolve_address(self, host: bytes, port: int, scope: int, milliseconds: int) -> None: ...
    def resolve_route(self, milliseconds: int) -> None: ...
    def connect(self, private_data: bytes, initiator_depth: int, responder_resources: int) -> None: ...
    def accept(
        self,
        done: Done,
        private_data: bytes,
        initiator_depth: int,
        responder_resources: int,
        type_of_service: int = 0,
    ) -> None:
        """Have it accepted; ``done`` takes the outcome."""
    def reject(self, private_data: bytes) -> None:
        """Have it refused."""
    def set_type_of_service(self, value: int) -> None: ...
    def release_device(self) -> None:
        """The identifier's device was removed: close its files, for the kernel waits for that. Its objects are gone."""
    def destroy(self) -> None:
        """Have it destroyed, after what was begun with it. Idempotent. Its queue pair must be gone by then."""
    def destroy_at_once(self) -> None:
        """The same, and wait for it."""

def device_names() -> list[str]:
    """The RDMA devices that user space can see now."""
