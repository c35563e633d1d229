"""Socket options and address texts shared by the listening and the connecting side. Imports the options only."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from rpcrdma.verbs.softiwarp.options import SoftIwarpOptions


def configure(sock: socket.socket, options: SoftIwarpOptions) -> None:
    """Prepare a connected or connecting socket for FPDUs."""
    sock.setblocking(False)
    # FPDUs keep to segments only when TCP sends what it is given when it is given (RFC 5044 section 5.1).
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(options.stall_timeout * 1000)))
    if options.keepalive > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(options.keepalive)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, round(options.keepalive / 4)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def size_buffers(sock: socket.socket, options: SoftIwarpOptions) -> None:
    """Set buffer sizes; on a listener, before listen(), so that the window scale of its connections follows."""
    if options.send_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
    if options.receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)


def mark(sock: socket.socket, type_of_service: int) -> None:
    """Set the DSCP of a socket's packets, and with a listener of its connections'. Nothing is done for 0."""
    if type_of_service:
        # An IPv6 socket may have IPv4 connections.
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, type_of_service)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, type_of_service)


def plain_address(address: Any) -> tuple[str, int]:
    """Return (text, port) of a socket address: no zone, and IPv4 seen through an IPv6 socket as IPv4."""
    text, port = address[0].partition("%")[0], address[1]
    parsed = ipaddress.ip_address(text)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped), port
    return str(parsed), port


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of a literal address, with or without a zone. Raises ValueError for anything else."""
    version = ipaddress.ip_address(host.partition("%")[0]).version
    return socket.AF_INET6 if version == 6 else socket.AF_INET


def socket_address(host: str, port: int) -> Any:
    """Return the socket address of a literal address; a zone becomes its scope id."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return socket.getaddrinfo(host, port, family_of(host), socket.SOCK_STREAM, 0, flags)[0][4]
