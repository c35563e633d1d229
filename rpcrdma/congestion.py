"""Which of TCP's algorithms decides when a connection may send.

The administrator chooses it (``net.ipv4.tcp_congestion_control``, or a route), except for connections within this
machine. Some algorithms pace: a timer sends one segment after another, so that the queues of a network do not fill.
Within one machine there is no network, and a large READ spends up to half of its CPU time in those timers. Such
connections therefore get an algorithm that does not pace.

Owns that decision; imports nothing of the project. A connection that was paced once is paced for good. So the listening
socket gets the other algorithm, and connections inherit it. Connections from elsewhere get the machine's own algorithm
when they are accepted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket

PACING = b"bbr"
"""What the names of those begin with that pace."""
UNPACED = b"reno"
"""Every kernel has it, and every process may choose it."""


def _of(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def prepare(listener: socket.socket) -> None:
    """Keep the connections of a socket that does not listen yet from being paced, until :func:`settle`."""
    if _of(listener).startswith(PACING):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)


def settle(sock: socket.socket) -> None:
    """Give an accepted connection what the machine has for it, unless its peer is the machine itself. Raises OSError
    when it is gone."""
    if _of(sock) != UNPACED or is_local(sock.getpeername()[0], sock.getsockname()[0]):
        return
    with socket.socket(sock.family, sock.type) as fresh:
        usual = _of(fresh)
    with contextlib.suppress(PermissionError, FileNotFoundError):  # it was withdrawn just now
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, usual)


def is_local(peer: str, own: str) -> bool:
    """Whether both of a connection's addresses are this machine's."""
    address = ipaddress.ip_address(peer.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return peer == own or (mapped or address).is_loopback
