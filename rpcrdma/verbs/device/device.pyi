import asyncio
from collections.abc import Callable

from rpcrdma.memory import Pool
from rpcrdma.verbs.device.cm import Identifier
from rpcrdma.verbs.device.control import Control
from rpcrdma.verbs.device.options import DeviceOptions

class Device:
    """A device in use: protection domain, registered memory, completion queues and events. Raises OSError."""

    name: str
    key: int
    """What identifiers of this device have as ``device_key``; 0 once it is closed."""
    iwarp: bool
    software: bool
    """The kernel's siw or rxe."""
    can_invalidate: bool
    """Send with Invalidate (IBV_DEVICE_MEM_MGT_EXTENSIONS)."""
    failed: bool
    max_requests: int
    max_segments: int
    max_inbound_reads: int
    max_outbound_reads: int
    def __init__(
        self,
        identifier: Identifier,
        pool: Pool,
        loop: asyncio.AbstractEventLoop,
        options: DeviceOptions,
        on_failure: Callable[[Device], None],
        control: Control,
    ) -> None:
        """To be made by the control thread."""
    def start(self) -> None:
        """Have the loop watch the device."""
    def fail(self, reason: str, removed: bool = False) -> None:
        """The device is ``removed`` or broken: every connection on it ends. Of a broken one another use may be made."""
    def close(self) -> None:
        """Give everything back. The connections must be gone."""
    def statistics(self) -> dict[str, int]: ...
