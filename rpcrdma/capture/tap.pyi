"""An endpoint that shows what is posted to it before it passes it on. Implemented in ``tap.pyx``."""

from collections.abc import Sequence

from rpcrdma.capture.recorder import Tap
from rpcrdma.memory import Lease
from rpcrdma.verbs.interface import Endpoint, RdmaRead, RdmaWrite, Send
from rpcrdma.verbs.native import NativeEndpoint

class TapEndpoint(NativeEndpoint):
    """Stands in the place of ``endpoint``."""

    endpoint: Endpoint
    peer_address: str
    peer_port: int
    local_address: str
    max_reads: int
    def __init__(self, endpoint: Endpoint, tap: Tap) -> None: ...
    def remove(self) -> Endpoint:
        """Stand back; returns the real endpoint."""
    def post_receives(self, leases: Sequence[Lease]) -> None: ...
    def post(self, writes: Sequence[RdmaWrite], send: Send | None, token: object) -> None: ...
    def post_reads(self, reads: Sequence[RdmaRead], token: object) -> None: ...
    def register(
        self, view: memoryview, *, remote_read: bool = False, remote_write: bool = False
    ) -> tuple[int, int]: ...
    def invalidate(self, handle: int) -> None: ...
    def close(self, *, abort: bool = False) -> None: ...
