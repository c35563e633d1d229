"""One port for several processes: each has a listening socket of its own there, and a client always gets the same one.

The sockets share the port (SO_REUSEPORT, socket(7)). A classic BPF program that the kernel asks for every connection
and datagram chooses one of them by the peer's address alone, without its port. So all connections of a client come to
one process, for whatever program and over whatever transport: nconnect, sessions, retransmissions, datagrams. What
counts as one peer is what :mod:`rpcrdma.hosts` counts as one: an IPv4 address, or an IPv6 network of 64 bits.

The kernel numbers the sockets as they begin to listen, and moves the last to the place of one that is closed. So
whoever makes them keeps all of them open, for as long as any process serves. Then the numbers stay, and connections to
a process that is being started again wait in its socket's queue.

Owns the program, the same choice in Python, and the making of the sockets. Imports their common set-up.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import socket
import struct
from typing import Final

from rpcrdma.server.sockets import BACKLOG, at_any, bind

_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
_NETWORK_HEADER: Final = 0xFFF00000
"""SKF_NET_OFF of linux/filter.h: what is added to offsets in the header of IP, wherever that is."""
_SCATTER: Final = 0x9E3779B1
"""2**32 divided by the golden ratio: multiples of it lie far apart, so neighbours' addresses get different places."""
_INSTRUCTION: Final = struct.Struct("=HBBI")
_PROGRAM: Final = struct.Struct("@HP")
_LOAD_OCTET, _LOAD_WORD = 0x30, 0x20
_SHIFT_RIGHT, _MULTIPLY, _XOR_X, _TO_X = 0x74, 0x24, 0xAC, 0x07
_JUMP, _JUMP_EQUAL, _RETURN, _RETURN_A = 0x05, 0x15, 0x06, 0x16


def place_of(address: str, count: int) -> int:
    """Which of ``count`` sockets a peer gets, as the program chooses; ``address`` is a literal one, without a zone."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, ipaddress.IPv6Address):
        network = int(parsed) >> 64
        key = (network >> 32) * _SCATTER & 0xFFFFFFFF ^ network & 0xFFFFFFFF
    else:
        key = int(parsed)
    return ((key * _SCATTER & 0xFFFFFFFF) >> 16) * count >> 16


def _choice(count: int) -> bytes:
    """The program that does the same with a packet (RFC 791 section 3.1, RFC 8200 section 3)."""
    return _assembled(
        (_LOAD_OCTET, 0, 0, _NETWORK_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_JUMP_EQUAL, 6, 0, 4),  # the IP version
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8),
        (_MULTIPLY, 0, 0, _SCATTER),
        (_TO_X, 0, 0, 0),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),
        (_XOR_X, 0, 0, 0),
        (_JUMP, 0, 0, 1),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),  # IPv4's
        (_MULTIPLY, 0, 0, _SCATTER),
        (_SHIFT_RIGHT, 0, 0, 16),
        (_MULTIPLY, 0, 0, count),
        (_SHIFT_RIGHT, 0, 0, 16),
        (_RETURN_A, 0, 0, 0),
    )


def _assembled(*instructions: tuple[int, int, int, int]) -> bytes:
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions)


def _attach(sock: socket.socket, option: int, program: bytes) -> None:
    octets = ctypes.create_string_buffer(program, len(program))
    argument = _PROGRAM.pack(len(program) // _INSTRUCTION.size, ctypes.addressof(octets))
    sock.setsockopt(socket.SOL_SOCKET, option, argument)


def spread(host: str, port: int, count: int, kind: int = socket.SOCK_STREAM) -> list[socket.socket]:
    """The sockets of one address, in the order of :func:`place_of`; ``::`` is IPv4 as well. They listen. Raises OSError
    when the address cannot be had, and with EADDRINUSE also when others of this user would share it."""
    return at_any(host, lambda found: _spread(found, port, count, kind))


def _spread(host: str, port: int, count: int, kind: int) -> list[socket.socket]:
    # Without SO_REUSEPORT: whoever is there already would share the port with us, and get its part of our clients.
    with bind(host, port, kind, listening=False) as probe:
        port = probe.getsockname()[1]
    made: list[socket.socket] = []

    def prepare(sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Nothing comes in before all are there: it would come to the wrong one. Clients that connect try again.
        _attach(sock, _SO_ATTACH_FILTER, _assembled((_RETURN, 0, 0, 0)))
        if not made:
            _attach(sock, _SO_ATTACH_REUSEPORT_CBPF, _choice(count))
        made.append(sock)

    try:
        for _ in range(count):
            bind(host, port, kind, listening=False, prepare=prepare)
        for sock in made:
            if kind == socket.SOCK_STREAM:
                sock.listen(BACKLOG)
        for sock in made:
            sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except BaseException as error:
        for sock in made:
            sock.close()
        if isinstance(error, OSError) and error.errno == errno.ENOPROTOOPT:
            raise OSError(errno.EOPNOTSUPP, "this kernel cannot spread clients over processes") from error
        raise
    return made
