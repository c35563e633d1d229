"""What can be wrong with a call, as exceptions. Imports the RPC vocabulary and the transport errors' decoder.

Beside these, a call raises ConnectionError when the connection is gone for good, and TimeoutError.
"""

from __future__ import annotations

from rpcrdma.rpc.messages import accept_stat, auth_stat, reject_stat
from rpcrdma.wire import errors


class CallError(Exception):
    """The call was answered, but not with results."""


class RpcError(CallError):
    """The server's RPC layer refused the call (RFC 5531 section 9)."""


class Denied(RpcError):
    """MSG_DENIED."""

    def __init__(self, stat: reject_stat, why: auth_stat | tuple[int, int]) -> None:
        super().__init__(f"denied: {stat.name}, {why.name if isinstance(why, auth_stat) else why}")
        self.stat = stat
        self.auth_stat = why if isinstance(why, auth_stat) else None
        """AUTH_ERROR: what is wrong with the credential."""
        self.versions = why if isinstance(why, tuple) else None
        """RPC_MISMATCH: the lowest and the highest version of RPC that the server speaks."""


class Refused(RpcError):
    """MSG_ACCEPTED with anything but SUCCESS."""

    def __init__(self, stat: accept_stat, versions: tuple[int, int] | None = None) -> None:
        super().__init__(stat.name if versions is None else f"{stat.name}, versions {versions[0]} to {versions[1]}")
        self.stat = stat
        self.versions = versions
        """PROG_MISMATCH: the lowest and the highest version of the program that the server has."""


class TransportError(CallError):
    """The server answered with RDMA_ERROR instead of a reply (RFC 8166 section 4.5)."""

    def __init__(self, error: errors.TransportError) -> None:
        super().__init__(str(error))
        self.error = error
        """What it says: version, code, and what belongs to that."""


class BadReply(CallError):
    """The reply is not one: it does not decode, or its chunks are not those that were offered."""
