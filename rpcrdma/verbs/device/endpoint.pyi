from collections.abc import Callable, Sequence

from rpcrdma.memory import Lease
from rpcrdma.verbs.device.cm import Identifier, Request
from rpcrdma.verbs.device.device import Device
from rpcrdma.verbs.device.options import DeviceOptions
from rpcrdma.verbs.interface import EndpointHandler, RdmaRead, RdmaWrite, Send
from rpcrdma.verbs.native import NativeEndpoint

class Endpoint(NativeEndpoint):
    """A connection's queue pair: :class:`rpcrdma.verbs.interface.Endpoint`. Raises OSError.

    The Receives are the caller's still when making it raises.
    """

    peer_address: str
    peer_port: int
    local_address: str
    max_reads: int
    def __init__(
        self,
        device: Device,
        identifier: Identifier,
        handler: EndpointHandler,
        options: DeviceOptions,
        receives: list[Lease],
        max_reads: int,
        on_closed: Callable[[Endpoint], None],
        on_made: Callable[[OSError | None], None],
        may_share: bool = False,
        most_receives: int = 0,
    ) -> None:
        """``on_made`` is called when the queue pair is there and the Receives are posted, or with what went wrong. Then
        comes :meth:`opened`, :meth:`give_up` or :meth:`withdraw`."""
    def opened(self) -> None:
        """The connection is made."""
    def give_up(self, reason: str) -> None:
        """The connection cannot be had: report so, as of one that has ended."""
    def withdraw(self, on_withdrawn: Callable[[], None]) -> None:
        """Undo the making of an endpoint whose connection could not be had: the Receives are the caller's again when
        ``on_withdrawn`` is called."""
    def set_max_reads(self, max_reads: int) -> None:
        """What was negotiated, for a connection that was made before that was known. Nothing may be posted yet."""
    def cm_event(self, event: str, status: int, request: Request | None) -> None:
        """Take an event of RDMA-CM."""
    def fail(self, reason: str) -> None:
        """End the connection. What is posted is flushed first."""
    def check(self, now: float) -> None:
        """The watchdog: end the connection when none of its posted work has completed for too long."""
    def post_receives(self, leases: Sequence[Lease]) -> None: ...
    def post(self, writes: Sequence[RdmaWrite], send: Send | None, token: object) -> None: ...
    def post_reads(self, reads: Sequence[RdmaRead], token: object) -> None: ...
    def register(
        self, view: memoryview, *, remote_read: bool = False, remote_write: bool = False
    ) -> tuple[int, int]: ...
    def invalidate(self, handle: int) -> None: ...
    def close(self, *, abort: bool = False) -> None: ...
    def statistics(self) -> dict[str, int]:
        """The connection's counters by name."""
