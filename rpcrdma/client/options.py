"""What a connection of a client may be told. Imports the private data's format, TLS and RPCSEC_GSS."""

from __future__ import annotations

from dataclasses import dataclass

from rpcrdma.client.gss import Gss
from rpcrdma.client.tls import Tls
from rpcrdma.wire.private_data import PrivateData
from rpcrdma.wire.version_two import THRESHOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Settings of one connection; octets and seconds."""

    credits: int = 128
    """Calls to keep outstanding, if the server grants as many; more wait for their turn. (RFC 8166 section 3.3)"""
    send_size: int = 4096
    """Octets of the largest RDMA Send: 1024 to 262144, a multiple of 1024 (RFC 8797 section 4.2)."""
    receive_size: int = 4096
    """Octets of each Receive; bounds as for ``send_size``."""
    remote_invalidation: bool = True
    """Let the server invalidate the memory of a call with its reply, where the provider can do that, and nothing of it
    is to stay registered."""
    backward_credits: int = 16
    """Calls that the server may make to us at a time."""
    max_reply: int = (1 << 20) + (128 << 10)
    """Octets of the longest reply that is taken over TCP, or by a Reply chunk. Bounded by the largest lease, 4 MiB."""
    keep_registered: int = 0
    """Octets of memory that stay registered after their call, for the next call that uses the same memory.

    0 ends the server's access with each call, before its results are looked at (RFC 8166 section 8.1). Only a server
    that is trusted with this memory at any time may have more; the gain is a registration per call.
    """
    memory: int = 64 << 20
    """Octets of buffers: Receives, messages, Reply chunks."""
    max_reads: int = 16
    """RDMA Reads that the server may keep outstanding."""
    connect_timeout: float = 10.0
    """For one attempt to connect."""
    reconnect: float = 120.0
    """For how long to try when the connection is lost; its calls are sent again. 0 gives up at once."""
    first_delay: float = 0.1
    """Between the first attempts to connect; it doubles up to ``longest_delay``."""
    longest_delay: float = 15.0
    most_transmissions: int = 8
    """How often a call is sent, on a new connection each time, before it fails: it may be what ends the connections."""
    silence: float = 60.0
    """A connection on which a call was not answered for so long is replaced by another."""

    tls: Tls | None = None
    """How connections over TCP are secured; None: not at all."""
    gss: Gss | None = None
    """How calls are secured by Kerberos; None: servers have to believe the credential."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        PrivateData(send_size=self.send_size, receive_size=self.receive_size).encode()
        if self.credits < 1 or self.backward_credits < 0:
            raise ValueError("at least one credit is needed, and no fewer than no backward credits")
        if not 1024 <= self.max_reply <= 4 << 20:
            raise ValueError("max_reply must be from 1024 to 4 MiB")

    @property
    def receive_buffer(self) -> int:
        """Octets of each Receive: a version Two peer may send 4096 (draft-cel version Two, "Default Values")."""
        return max(self.receive_size, THRESHOLD)
