"""Which users of this host may connect to a server that acts as one user, whoever calls.

Owns :class:`LocalUsers`. A server that cannot act as other users does everything as its own user. So everybody on this
host who can connect to it would have that user's rights. A call's credential proves nothing, but the kernel knows who
owns the socket at the other end of a connection within the host (sock_diag(7)). Imports nothing of the project but
addresses.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from typing import Final

from rpcrdma.server.sockets import plain_address

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_NLMSG_ERROR: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr."""
_REQUEST: Final = struct.Struct("=BBBxI2s2s16s16sI8s")
"""struct inet_diag_req_v2: family, protocol, extensions, states, and struct inet_diag_sockid."""
_ANSWER: Final = struct.Struct("=BBBB2s2s16s16sI8sIIIII")
"""struct inet_diag_msg: family, state, timer, retransmissions, id, expiry, two queues, uid, inode."""
_ANY_COOKIE: Final = b"\xff" * 8
_ALL_STATES: Final = 0xFFFFFFFF
_LISTENING: Final = 10
_PATIENCE: Final = 1.0


def owner(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The uid of the socket at ``peer`` of a TCP connection to ``own``, if it is in this network namespace; None: it is
    elsewhere, or has gone. Raises OSError where the kernel does not tell."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    ends = [socket.inet_pton(family, address).ljust(16, b"\0") for address in (peer[0], own[0])]
    ports = [port.to_bytes(2, "big") for port in (peer[1], own[1])]
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES, *ports, *ends, 0, _ANY_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(_PATIENCE)
        asked.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
        answer = asked.recv(8192)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        (error,) = struct.unpack_from("=i", answer, _HEADER.size)
        if -error in (errno.ENOENT, 0):
            return None
        raise OSError(-error, os.strerror(-error))
    _, state, _, _, source, target, *_, uid, _ = _ANSWER.unpack_from(answer, _HEADER.size)
    # Where the connection has gone, a socket that listens at its port is what is found.
    return None if state == _LISTENING or [source, target] != ports else int(uid)


class LocalUsers:
    """Says why a connection is refused."""

    def __init__(self, own: int) -> None:
        self._own = own

    def __call__(self, sock: socket.socket) -> str:
        """Empty: it is let in. Of who has gone on this host it is not known who it was: no."""
        try:
            peer, here = plain_address(sock.getpeername()), plain_address(sock.getsockname())
        except OSError:
            return "it has gone"
        try:
            uid = owner(peer, here)
        except OSError as error:
            why = f"the kernel does not tell whose connections are ({error.strerror})"
        else:
            if uid in (self._own, 0):
                return ""
            why = "nobody knows whose it was" if uid is None else f"it is uid {uid}'s"
            if uid is not None:
                return self._refusal(why)
        local = ipaddress.ip_address(peer[0]).is_loopback or peer[0] == here[0]
        return self._refusal(why) if local else ""

    def _refusal(self, why: str) -> str:
        return f"{why}, and on this host only uid {self._own}, as which all is done, and root may connect (local_users)"
