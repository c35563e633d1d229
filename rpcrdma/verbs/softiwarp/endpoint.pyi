import asyncio
import socket
from collections.abc import Callable, Sequence

from rpcrdma.memory import Lease
from rpcrdma.verbs.interface import EndpointHandler, RdmaRead, RdmaWrite, Send
from rpcrdma.verbs.native import NativeEndpoint
from rpcrdma.verbs.softiwarp.mpa import Agreement
from rpcrdma.verbs.softiwarp.options import SoftIwarpOptions

class Endpoint(NativeEndpoint):
    """One connection: a queue pair of :mod:`rpcrdma.verbs.interface` on a TCP socket past its MPA negotiation."""

    peer_address: str
    peer_port: int
    local_address: str
    max_reads: int
    handler: EndpointHandler
    terminate_sent: tuple[int, int] | None
    """(layer << 4 | error type, code) of the Terminate we sent."""
    terminate_received: tuple[int, int] | None
    """The first two octets of the Terminate the peer sent."""
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handler: EndpointHandler,
        receives: Sequence[Lease],
        agreement: Agreement,
        options: SoftIwarpOptions,
        peer: tuple[str, int],
        local_address: str,
        initiator: bool,
        on_closed: Callable[[Endpoint], None],
    ) -> None: ...
    def start(self) -> None:
        """Begin to receive. Called once, after the Reply has been sent or received."""
    def fail(self, reason: str, code: int | None = None) -> None:
        """End a connection that could not be started; with ``code``, after a Terminate of layer LLP (MPA)."""
    def crashed(self) -> None:
        """End a connection of which an event could not be served."""
    def check(self, now: float) -> None:
        """The watchdog: cut the connection when its peer has made no progress for too long. Called now and then."""
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
