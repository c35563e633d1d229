"""What an administrator may set on the device provider.

Imports nothing of the project.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Settings of :class:`rpcrdma.verbs.device.DeviceProvider`. Times are in seconds, sizes in work requests."""

    send_depth: int = 512
    """Send queue of a connection. A chain that is longer is posted in pieces."""
    shared_receives: int = 0
    """Receives that all connections of an InfiniBand or RoCE device share; 0: each connection has its own."""
    completion_depth: int = 8192
    """Completion queue; connections share one as long as all they may have outstanding fits."""
    inbound_reads: int = 16
    """RDMA Reads a peer may keep outstanding towards us, if the device can."""
    outbound_reads: int = 16
    """RDMA Reads we keep outstanding, if the device and the peer can."""
    backlog: int = 512
    """Connection requests the kernel keeps for us."""
    accept_timeout: float = 10.0
    """A connection request that nobody accepts or rejects in time is rejected."""
    connect_timeout: float = 10.0
    """For each step of an outgoing connection."""
    flush_timeout: float = 5.0
    """How long an ending connection waits for the device to give its work back before its queue pair is destroyed."""
    close_timeout: float = 5.0
    """How long a graceful close waits for what is posted to leave."""
    stall_timeout: float = 30.0
    """A connection none of whose posted work completes for so long is cut."""
    retry_interval: float = 2.0
    """How often a listener whose device is absent looks for it."""
    register_sinks: bool = False
    """Register the sink of every RDMA Read for that Read alone, as is always done on iWARP hardware."""
    thread: Literal["auto", "always", "never"] = "auto"
    """Whether a device is posted to and polled by a thread of its own. ``auto``: where posting is a system call."""
