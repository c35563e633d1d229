"""Addresses that this host gets while the server runs.

Owns :class:`AddressWatch` and :func:`has_iwarp`; imports :mod:`rpcrdma.firewall`. Formats: netlink(7), rtnetlink(7).

Why
    For a listener on all addresses, siw and some iWARP adapters' drivers listen on each address that their interface
    has at that moment, and on none that comes later. The listener has to listen anew then.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from rpcrdma.firewall import contain

log = logging.getLogger("rpcrdma.verbs")

RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR = 0x10, 0x100
RTM_NEWADDR = 20
SETTLES = 1.0
"""Seconds after which those told are told: addresses come in groups, and IPv6 ones are tried out first."""


class AddressWatch:
    """Calls ``on_new`` some time after addresses have come. Without netlink it never does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_new: Callable[[], None]) -> None:
        self._loop = loop
        self._on_new = on_new
        self._soon: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        try:
            sock.bind((0, RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR))
        except OSError as error:
            log.info("new addresses will not be noticed: %s", error.strerror)
            sock.close()
        else:
            self._socket = sock
            loop.add_reader(sock.fileno(), contain, None, self._readable)

    def close(self) -> None:
        """Stop. Idempotent."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            # ENOBUFS: more came than there was room for, addresses perhaps among it.
            log.debug("netlink: %s", error)
        else:
            if RTM_NEWADDR not in _kinds(data):
                return
        if self._soon is None:
            self._soon = self._loop.call_later(SETTLES, contain, None, self._tell)

    def _tell(self) -> None:
        self._soon = None
        self._on_new()


def has_iwarp() -> bool:
    """Whether this host has an iWARP device (RDMA_NODE_RNIC, 4, in the kernel's ``rdma_node_type``)."""
    for place in Path("/sys/class/infiniband").glob("*/node_type"):
        try:
            if place.read_text().startswith("4"):
                return True
        except OSError:
            pass  # the device is just being removed
    return False


def _kinds(data: bytes) -> set[int]:
    """The types of the messages in a datagram."""
    kinds = set()
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if length < 16:
            break
        kinds.add(kind)
        at += (length + 3) & ~3
    return kinds
