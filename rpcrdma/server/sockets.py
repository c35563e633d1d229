"""The sockets of the TCP listener: made, named and set up."""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import sys
import termios
from collections.abc import Callable
from typing import Final, TypeVar

from rpcrdma import congestion

BACKLOG: Final = 512
"""Connections that may wait to be accepted."""
_T = TypeVar("_T")


def at_any(host: str, act: Callable[[str], _T]) -> _T:
    """``act(host)``; on a host without IPv6, all addresses are IPv4's. Raises OSError."""
    try:
        return act(host)
    except OSError as error:
        if host != "::" or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return act("0.0.0.0")


def bind(
    host: str,
    port: int,
    kind: int = socket.SOCK_STREAM,
    *,
    listening: bool = True,
    prepare: Callable[[socket.socket], object] = lambda _: None,
) -> socket.socket:
    """A socket that listens, or takes datagrams; ``::`` is IPv4 as well. Not ``listening``: to see whether it could, or
    for later. ``prepare`` is called with it before it has an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            congestion.prepare(sock)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        prepare(sock)
        sock.bind((host, port))
        if kind == socket.SOCK_STREAM and listening:
            sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def plain_address(address: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, int]:
    """Address and port as programs see them: no zone, and IPv4 that came over an IPv6 socket is IPv4."""
    host = address[0].partition("%")[0]
    return host.removeprefix("::ffff:") if "." in host else host, address[1]


def set_options(sock: socket.socket, transfer_time: float) -> None:
    """Have replies leave at once, and peers that vanish be noticed."""
    congestion.settle(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer that vanished while idle is noticed within two minutes; one that vanished with replies under way by the
    # user timeout (RFC 5482).
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(transfer_time * 1000))


def peer_is_gone(fd: int, missing: int) -> bool:
    """Whether the peer has closed its side, or is gone altogether, and fewer than ``missing`` octets are still to be
    read: for who does not read. (A peer that has sent all and waits for its answer is not gone.)"""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    for _, events in poll.poll(0):
        if events & (select.POLLHUP | select.POLLERR):
            return True
        unread = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
        return int.from_bytes(unread, sys.byteorder) < missing
    return False
