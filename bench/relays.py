"""The client's end of a secured connection, for a load that knows nothing of security: a process in between.

Owns :func:`relayed`. The load's calls, with AUTH_SYS and in the clear, are made those of a Kerberos context or are sent
through TLS, and replies are made those to the load's calls. Only the server's CPU is looked at, so what this costs does
not matter. It takes all replies to a batch of calls before it looks at them, and hands them over at once, so that the
server meets the same batches always, and nobody else is at work while it is.

Where several clients are at work at a time, their own cryptography would take processors that the server could have. So
they may be ``light``: the first batch of replies is looked at, and of others the load is only told that they have come.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from bench.machine import in_child
from nfsd.protocol.nfs3 import NFS_PROGRAM, NFS_V3
from rpcrdma.client import Gss
from rpcrdma.client.gss import Exchange, Protection, Read
from rpcrdma.client.messages import Message, Reply

Security = Literal["sys", "krb5", "krb5i", "krb5p", "tls"]
SERVICE = "nfs@localhost"
_LAST = 0x80000000
_MOST = 1 << 20
_SILENCE = 0.002
"""Seconds after which the rest of a batch is not expected any more: a load ends its calls one by one."""
_PROBE = struct.pack(">10I", 1, 0, 2, NFS_PROGRAM, NFS_V3, 0, 7, 0, 0, 0)
"""NULL with AUTH_TLS (RFC 9289 section 4.1)."""
_ACCEPTED = struct.pack(">5I", 1, 0, 0, 0, 0)
"""What stands between an XID and results."""
_COME = _ACCEPTED + bytes(12)
"""The same, and so much of results as a load looks at."""
Change = Callable[[bytes], bytes]


class Records:
    """Whole records of a stream."""

    def __init__(self, way: socket.socket) -> None:
        self._way, self._buffer, self._message = way, bytearray(), b""

    def next(self, wanted: int = 1) -> list[bytes]:
        """Those that have come, without their marks, at least one; so many, if they come without a pause. None: the
        stream has ended."""
        found: list[bytes] = []
        while len(found) < wanted:
            if found and not select.select([self._way], [], [], _SILENCE)[0]:
                break
            octets = self._way.recv(_MOST)
            if not octets:
                return []
            self._buffer += octets
            found += self._whole()
        return found

    def _whole(self) -> Iterator[bytes]:
        at = 0
        while at + 4 <= len(self._buffer):
            (mark,) = struct.unpack_from(">I", self._buffer, at)
            end = at + 4 + (mark & ~_LAST)
            if end > len(self._buffer):
                break
            self._message += self._buffer[at + 4 : end]
            at = end
            if mark & _LAST:
                yield self._message
                self._message = b""
        del self._buffer[:at]


def record(message: bytes) -> bytes:
    """A message with its mark."""
    return struct.pack(">I", _LAST | len(message)) + message


def relay(load: socket.socket, way: socket.socket, outward: Change, inward: Change, *, light: bool = False) -> None:
    """Hand calls and replies on until either end closes its connection."""
    calls, replies = Records(load), Records(way)
    batch: list[bytes] = []
    while batch := calls.next(max(len(batch), 1)):
        way.sendall(b"".join(record(outward(call)) for call in batch))
        got: list[bytes] = []
        while len(got) < len(batch):
            more = replies.next()
            if not more:
                return
            got += more
        load.sendall(b"".join(record(inward(reply)) for reply in got))
        if light:
            inward = _come


class Context:
    """What makes calls those of a Kerberos context."""

    def __init__(self, way: socket.socket, security: Literal["krb5", "krb5i", "krb5p"]) -> None:
        """Makes the context, with the environment's ticket."""
        self._protection = Protection(Gss(security, SERVICE), "localhost")
        replies = Records(way)

        async def exchange(make: Callable[[int], Message], read: Read) -> Reply:
            way.sendall(record(bytes(make(1).head)))
            return read(replies.next()[0], ())

        made: Exchange = exchange
        self._sealer = asyncio.run(self._protection.ready(made, NFS_PROGRAM, NFS_V3))
        self._reads: dict[bytes, Read] = {}

    def outward(self, call: bytes) -> bytes:
        """A call with AUTH_SYS, as the context's."""
        xid, _, _, program, version, procedure, _, length = struct.unpack_from(">8I", call)
        arguments = call[32 + length + 8 :]  # behind the verifier, which is empty
        make, self._reads[call[:4]] = self._protection.call(self._sealer, program, version, procedure, arguments)
        return bytes(make(xid).head)

    def inward(self, reply: bytes) -> bytes:
        """Its reply, which must be signed by the server. Raises what a client does."""
        return reply[:4] + _ACCEPTED + bytes(self._reads.pop(reply[:4])(reply, ()).results)


def secured(way: socket.socket) -> ssl.SSLSocket:
    """The connection with TLS on it, whoever the server is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["sunrpc"])
    way.sendall(record(_PROBE))
    Records(way).next()
    return context.wrap_socket(way)


def _as_it_is(message: bytes) -> bytes:
    return message


def _come(reply: bytes) -> bytes:
    return reply[:4] + _COME


def _between(load: socket.socket, way: socket.socket, security: Security, light: bool) -> None:
    if security == "sys":
        relay(load, way, _as_it_is, _as_it_is, light=light)
    elif security == "tls":
        relay(load, secured(way), _as_it_is, _as_it_is, light=light)
    else:
        context = Context(way, security)
        relay(load, way, context.outward, context.inward, light=light)


@contextmanager
def relayed(way: socket.socket, security: Security, *, light: bool = False) -> Iterator[socket.socket]:
    """What a load may use in place of the connection to the server, which is closed with it."""
    ours, theirs = socket.socketpair()
    pid = in_child(lambda: _between(theirs, way, security, light), ours)
    theirs.close()
    way.close()
    try:
        yield ours
    finally:
        ours.close()
        os.waitpid(pid, 0)
