"""What an administrator may set on the embedded software-iWARP provider.

Imports nothing of the project.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SoftIwarpOptions:
    """Settings of :class:`rpcrdma.verbs.softiwarp.SoftIwarp`. Times are in seconds, sizes in octets."""

    crc: Literal["auto", "always"] = "auto"
    """``auto``: CRC when the peer asks. ``always``: ask for it ourselves, so that it is used on every connection.

    RFC 5044 section 4.4 makes CRCs the default and lets an administrator choose not to ask. Linux siw neither asks nor
    checks, and TCP's own checksum plus the link's guards the stream, so this provider does not ask unless told to.
    """
    fpdu: Literal["segment", "max"] = "segment"
    """``segment``: no FPDU straddles a TCP segment. ``max``: FPDUs as large as MPA allows, wherever they fall."""
    mpa_timeout: float = 10.0
    """How long a connection may take to complete the MPA Request and have it answered."""
    max_half_open: int = 256
    """TCP connections that have not completed MPA; beyond it the oldest is dropped."""
    inbound_reads: int = 16
    """RDMA Reads a peer may keep outstanding towards us (our IRD) when we accept."""
    outbound_reads: int = 8
    """RDMA Reads we keep outstanding at most when the peer does not tell how many it takes: MPA revision 1, revision 2
    without the enhanced octets, or an IRD of 0x3fff. One too many costs the connection, and 8 is what the older
    adapters take, which speak revision 1; siw takes 128."""
    max_inbound_reads: int = 128
    """The largest IRD an initiator of ours grants when the responder's ORD asks for more than was offered."""
    peer_to_peer: bool = False
    """Connect with RFC 6581's peer-to-peer model: an RTR frame is sent before anything else."""
    revision: Literal[1, 2] = 2
    """The MPA revision we connect with."""
    stall_timeout: float = 30.0
    """A peer that acknowledges nothing, or leaves an RDMA Read unanswered or an FPDU unfinished, for so long is cut."""
    nudge_after: float = 1.0
    """How long a peer that we connected to may leave our first messages unanswered before it gets an RDMA Write of no
    octets (see the endpoint's ``nudge``); then twice as long, and so on. 0: it never gets one."""
    close_timeout: float = 5.0
    """How long a graceful close waits for what is queued to leave and for the peer's FIN."""
    keepalive: float = 60.0
    """Idle time before TCP keepalive probes; 0 turns them off."""
    send_buffer: int = 0
    """SO_SNDBUF; 0 leaves the kernel's own tuning."""
    receive_buffer: int = 0
    """SO_RCVBUF; 0 leaves the kernel's own tuning."""
    backlog: int = 512
    """The listen() backlog."""
