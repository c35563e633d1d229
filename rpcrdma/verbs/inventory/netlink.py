"""Two questions to the kernel over netlink: which addresses the interfaces have, which interface an RDMA port has.

Owns the messages; imports nothing of the project. No tool and no right is needed. Formats: rtnetlink(7),
linux/netlink.h, rdma/rdma_netlink.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 1, 4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")

_NETLINK_ROUTE, _RTM_GETADDR, _RTM_NEWADDR = 0, 22, 20
_IFA_ADDRESS, _IFA_LOCAL = 1, 2

_NETLINK_RDMA, _RDMA_NL_NLDEV = 20, 5
_NLDEV_GET, _NLDEV_PORT_GET = 1, 5
_DEV_INDEX, _DEV_NAME, _PORT_INDEX, _CAP_FLAGS, _NDEV_NAME, _PROTOCOL = 1, 2, 3, 4, 51, 67


class RdmaDevice(NamedTuple):
    """What the kernel says of a device: RDMA netlink's number for it, number of ports, capability flags, protocol."""

    number: int
    ports: int
    flags: int
    protocol: str
    """``ib``, ``roce`` or ``iw``; "" from kernels before 5.1."""


def _dump(protocol: int, kind: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Ask for a dump; yield (type, body) of each message of the answer. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as sock:
        sock.settimeout(2)
        sock.bind((0, 0))
        flags = _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_DUMP
        sock.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
        while True:
            data = sock.recv(1 << 18)
            at = 0
            while at + _HEADER.size <= len(data):
                length, message, _, _, _ = _HEADER.unpack_from(data, at)
                if length < _HEADER.size:
                    return
                inside = data[at + _HEADER.size : at + length]
                if message == _NLMSG_DONE:
                    return
                if message == _NLMSG_ERROR:
                    (code,) = struct.unpack_from("=i", inside)
                    if code:
                        raise OSError(-code, "netlink")
                    return
                yield message, inside
                at += (length + 3) & ~3


def _attributes(data: bytes) -> dict[int, bytes]:
    """The attributes of a message, the last of each type."""
    found = {}
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def interface_addresses() -> dict[str, list[str]]:
    """The IP addresses of each network interface. Raises OSError."""
    found: dict[str, list[str]] = {}
    for message, body in _dump(_NETLINK_ROUTE, _RTM_GETADDR, struct.pack("=BBBBI", socket.AF_UNSPEC, 0, 0, 0, 0)):
        if message != _RTM_NEWADDR:
            continue
        family, _, _, _, index = struct.unpack_from("=BBBBI", body)
        attributes = _attributes(body[8:])
        # IFA_ADDRESS is the other end of a point-to-point link; IFA_LOCAL is ours, where there is one.
        raw = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS, b""))
        if family in (socket.AF_INET, socket.AF_INET6) and len(raw) in (4, 16):
            try:
                name = socket.if_indextoname(index)
            except OSError:
                continue  # it went away meanwhile
            found.setdefault(name, []).append(str(ipaddress.ip_address(raw)))
    return found


def rdma_devices() -> dict[str, RdmaDevice]:
    """The kernel's RDMA devices by name. Raises OSError where the kernel has no RDMA support loaded."""
    found = {}
    for _, body in _dump(_NETLINK_RDMA, (_RDMA_NL_NLDEV << 10) + _NLDEV_GET, b""):
        attributes = _attributes(body)
        try:
            found[_text(attributes[_DEV_NAME])] = RdmaDevice(
                int.from_bytes(attributes[_DEV_INDEX], "little"),
                int.from_bytes(attributes[_PORT_INDEX], "little"),
                int.from_bytes(attributes.get(_CAP_FLAGS, b""), "little"),
                _text(attributes.get(_PROTOCOL, b"")),
            )
        except KeyError:
            continue
    return found


def rdma_netdevs(number: int) -> dict[int, str]:
    """The network interface of each port of a device (RoCE and iWARP have one). Raises OSError."""
    found = {}
    request = struct.pack("=HHI", 8, _DEV_INDEX, number)
    for _, body in _dump(_NETLINK_RDMA, (_RDMA_NL_NLDEV << 10) + _NLDEV_PORT_GET, request):
        attributes = _attributes(body)
        if _NDEV_NAME in attributes and _PORT_INDEX in attributes:
            found[int.from_bytes(attributes[_PORT_INDEX], "little")] = _text(attributes[_NDEV_NAME])
    return found
