"""The endpoint of a connection that is gone.

Owns :class:`DepartedEndpoint`, which takes the real one's place in who had it; that one knows its handler, and the two
would be a cycle. Imports the interface.
"""

from __future__ import annotations

from collections.abc import Sequence

from rpcrdma.memory import Lease
from rpcrdma.verbs.interface import RdmaRead, RdmaWrite, Send


class DepartedEndpoint:
    """Closed. Its handler has been told so, after all that was posted; nothing more may be posted here but Receives."""

    peer_address = local_address = ""
    peer_port = 0
    max_reads = 0

    def post_receives(self, leases: Sequence[Lease]) -> None:
        """Release them."""
        for lease in leases:
            lease.release()

    def post(self, writes: Sequence[RdmaWrite], send: Send | None, token: object) -> None:
        """Raises ConnectionError: nobody could be told."""
        raise ConnectionError("the connection is gone")

    def post_reads(self, reads: Sequence[RdmaRead], token: object) -> None:
        """Raises ConnectionError, likewise."""
        raise ConnectionError("the connection is gone")

    def register(self, view: memoryview, *, remote_read: bool = False, remote_write: bool = False) -> tuple[int, int]:
        """Raises ConnectionError: there is no peer."""
        raise ConnectionError("the connection is gone")

    def invalidate(self, handle: int) -> None:
        """Raises KeyError: no registration has outlived the connection."""
        raise KeyError(handle)

    def close(self, *, abort: bool = False) -> None:
        """It is closed."""
