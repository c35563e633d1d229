"""A peer made of plain blocking sockets, from any loopback address: RPC over TCP, and over iWARP by hand.

What it sends is what the attack says; nothing here is polite. :class:`Tcp` and :class:`Iwarp` can also make a whole
call, for attacks that begin as a client does. :func:`drive` runs the coroutines of
:class:`tests.support.nfs4.Client4` on them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Self

from nfsd.protocol import nfs3
from nfsd.protocol.mount3 import MOUNT_PROGRAM, dirpath, mountres3
from rpcrdma.peer.wire import NOMSG, Segment, header
from rpcrdma.xdr import Decoder, pack
from tests.nfs3_client import auth_sys
from tests.support.nfs4 import Client4
from tests.unit.softiwarp_support import CLIENT_REQUEST, SEND, fpdu, untagged

LAST = 0x80000000
PATIENCE = 5.0
"""Seconds an attacker waits for anything."""
_xids = itertools.count(int.from_bytes(os.urandom(3), "big") << 4)
_PROCEDURES = {types.name: number for number, types in nfs3.PROCEDURES.items()}


@dataclass
class Effort:
    """What attackers in this process have done on their sockets."""

    connections: int = 0
    handshakes: int = 0
    """Of MPA that the server has answered and not rejected."""
    sent: int = 0
    """Octets."""
    received: int = 0
    """Octets, those of handshakes apart."""


EFFORT = Effort()
"""Since the process began; who wants to know of less takes the difference."""


class _Counted(socket.socket):
    """One that counts."""

    def send(self, data: Any, *flags: int) -> int:
        sent = super().send(data, *flags)
        EFFORT.sent += sent
        return sent

    def sendall(self, data: Any, *flags: int) -> None:
        super().sendall(data, *flags)
        EFFORT.sent += len(data)

    def recv(self, *how: int) -> bytes:
        data = super().recv(*how)
        EFFORT.received += len(data)
        return data


class Refused(Exception):
    """The server did not do what was asked: no answer, no connection, an error of RPC."""


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, since all it calls blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


def dial(
    address: tuple[str, int], source: str, *, window: int = 0, patience: float = PATIENCE, port: int = 0
) -> socket.socket:
    """A connected socket from ``source``; ``window``: its receive buffer in octets. Raises OSError."""
    sock = _Counted()
    try:
        sock.settimeout(patience)
        if window:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((source, port))
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    EFFORT.connections += 1
    return sock


def reset(sock: socket.socket) -> None:
    """Close with a RST."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def record(message: bytes) -> bytes:
    """In one fragment."""
    return struct.pack(">I", LAST | len(message)) + message


def rpc(
    program: int, version: int, procedure: int, arguments: bytes = b"", *, uid: int = 1000, gid: int = 1000,
    gids: tuple[int, ...] = (), xid: int | None = None, credential: bytes | None = None,
) -> bytes:  # fmt: skip
    """A call with AUTH_SYS, or with ``credential``: flavor, length and body of credential and verifier."""
    head = struct.pack(">6I", next(_xids) & 0xFFFFFFFF if xid is None else xid, 0, 2, program, version, procedure)
    if credential is None:
        body = bytes(auth_sys(uid, gid, gids).body)
        credential = struct.pack(">II", 1, len(body)) + body + bytes(8)
    return head + credential + arguments


NULL3 = rpc(nfs3.NFS_PROGRAM, 3, 0)


def nfs3_call(name: str, arguments: Any = None, **who: Any) -> bytes:
    """A call of an NFSv3 procedure, by its RFC name."""
    number = _PROCEDURES[name]
    return rpc(nfs3.NFS_PROGRAM, 3, number, pack(nfs3.PROCEDURES[number].arguments, arguments), **who)


def results3(name: str, reply: bytes) -> Any:
    """What the reply to :func:`nfs3_call` says. Raises Refused for an error of RPC."""
    return Decoder(memoryview(accepted(reply))).decode(nfs3.PROCEDURES[_PROCEDURES[name]].results)


def accepted(reply: bytes) -> bytes:
    """The results behind an accepted, successful reply's header. Raises Refused."""
    if reply[4:12] != struct.pack(">II", 1, 0):
        raise Refused(f"denied: {reply[:24].hex()}")
    (length,) = struct.unpack_from(">I", reply, 16)
    at = 20 + (length + 3 & ~3)
    if reply[at : at + 4] != bytes(4):
        raise Refused(f"not successful: {reply[: at + 4].hex()}")
    return reply[at + 4 :]


class Tcp:
    """A connection over TCP."""

    max_backchannel_size = 0

    def __init__(self, address: tuple[str, int], source: str, *, window: int = 0, patience: float = PATIENCE) -> None:
        self.socket = dial(address, source, window=window, patience=patience)

    def send(self, octets: bytes) -> None:
        self.socket.sendall(octets)

    def exactly(self, length: int) -> bytes:
        """Raises EOFError and OSError."""
        octets = bytearray()
        while len(octets) < length:
            more = self.socket.recv(length - len(octets))
            if not more:
                raise EOFError
            octets += more
        return bytes(octets)

    def reply(self) -> bytes:
        """The next record."""
        message, last = b"", False
        while not last:
            (mark,) = struct.unpack(">I", self.exactly(4))
            last = bool(mark & LAST)
            message += self.exactly(mark & ~LAST)
        return message

    def exchange(self, message: bytes) -> bytes:
        """One call and its reply. Raises EOFError and OSError."""
        self.send(record(message))
        while True:
            reply = self.reply()
            if reply[:4] == message[:4]:
                return reply

    async def call(self, transport: object, message: bytes) -> bytes:
        """What Client4 wants of its server."""
        return self.exchange(message)

    def nfs3(self, name: str, arguments: Any = None, **who: Any) -> Any:
        """A call of an NFSv3 procedure and its result union."""
        return results3(name, self.exchange(nfs3_call(name, arguments, **who)))

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Iwarp:
    """A connection over iWARP, without CRCs: FPDUs written by hand, what comes back taken apart just far enough."""

    max_backchannel_size = 0

    def __init__(
        self, address: tuple[str, int], source: str, *, window: int = 0, patience: float = PATIENCE,
        request: bytes = CLIENT_REQUEST,
    ) -> None:  # fmt: skip
        self.socket = dial(address, source, window=window, patience=patience)
        self.msn = 1
        self.placed: dict[int, bytearray] = {}
        """What the server has written, by handle: only of handles that are in here."""
        try:
            self.socket.sendall(request)
            head = self.exactly(20)
            self.private = self.exactly(int.from_bytes(head[18:20], "big"))
        except BaseException:
            self.socket.close()
            raise
        if head[16] & 0x20:
            self.socket.close()
            raise Refused(f"MPA: rejected with {self.private.hex()}")
        EFFORT.handshakes += 1
        EFFORT.received -= 20 + len(self.private)

    exactly = Tcp.exactly

    def send(self, octets: bytes) -> None:
        self.socket.sendall(octets)

    def message(self, octets: bytes) -> bytes:
        """The FPDUs of a Send of ``octets``, with the next MSN."""
        msn, self.msn = self.msn, self.msn + 1
        cuts = range(0, max(len(octets), 1), 1400)
        return b"".join(
            fpdu(untagged(SEND, 0, msn, at, octets[at : at + 1400], at + 1400 >= len(octets)), False) for at in cuts
        )

    def post(self, transport: bytes, call: bytes = b"") -> None:
        """Send an RPC-over-RDMA message."""
        self.send(self.message(transport + call))

    def next(self) -> bytes:
        """The next message that the server Sends; RDMA Writes before it are placed. Raises EOFError and OSError."""
        message = b""
        while True:
            (length,) = struct.unpack(">H", self.exactly(2))
            ulpdu = self.exactly(length + -(length + 2) % 4 + 4)[:length]
            if ulpdu[0] & 0x80:
                stag, offset = struct.unpack_from(">IQ", ulpdu, 2)
                if stag in self.placed:
                    self.placed[stag][offset : offset + length - 14] = ulpdu[14:]
            elif ulpdu[1] & 0xF in (3, 4, 5, 6):
                message += ulpdu[18:]
                if ulpdu[0] & 0x40:
                    return message
            elif ulpdu[1] & 0xF == 7:
                raise EOFError("terminated")

    def want_credits(self, number: int) -> int:
        """Make calls until that many may be outstanding, if there are so many to be had; how many there are. Who sends
        more than was granted loses the connection. Raises EOFError and OSError."""
        granted, calls = 0, 0
        while granted < number and calls < 2 * number:
            calls += 1
            xid = next(_xids)
            self.post(header(xid, credit=number), xid.to_bytes(4, "big") + NULL3[4:])
            granted = int.from_bytes(self.next()[8:12], "big")
        return granted

    def exchange(self, message: bytes) -> bytes:
        """One call that goes and comes inline, and its reply."""
        self.post(header(int.from_bytes(message[:4], "big")), message)
        while True:
            reply = self.next()
            if reply[:4] == message[:4]:
                if reply[12:16] != bytes(4):
                    raise Refused(f"RPC-over-RDMA: {reply[:24].hex()}")
                return reply[28:]

    async def call(self, transport: object, message: bytes) -> bytes:
        """What Client4 wants of its server."""
        return self.exchange(message)

    nfs3 = Tcp.nfs3
    close = Tcp.close
    __enter__ = Tcp.__enter__
    __exit__ = Tcp.__exit__


def read_into(xid: int, count: int, stag: int = 0x1111) -> bytes:
    """The header of a call whose reply has a Write chunk of ``count`` octets."""
    return header(xid, writes=[[Segment(stag, count, 0)]])


def long_call(xid: int, length: int, stag: int = 0x2222) -> bytes:
    """The header of a call that is all in a Read chunk."""
    return header(xid, procedure=NOMSG, reads=[(0, Segment(stag, length, 0))])


def mount(address: tuple[str, int], source: str, path: bytes) -> nfs3.nfs_fh3:
    """MNT. Raises Refused when it is not for ``source``."""
    connection = Tcp(address, source)
    try:
        reply = accepted(connection.exchange(rpc(MOUNT_PROGRAM, 3, 1, pack(dirpath, path))))
    finally:
        connection.close()
    result = Decoder(memoryview(reply)).decode(mountres3)
    if result.fhs_status:
        raise Refused(f"MNT: {result.fhs_status!r}")
    return nfs3.nfs_fh3(result.mountinfo.fhandle)


def client4(way: Tcp | Iwarp, minor: int = 1, **how: Any) -> Client4:
    """A client of NFSv4 whose calls block; its coroutines are for :func:`drive`."""
    return Client4(way, minor, transport=way, **how)  # type: ignore[arg-type]


@contextlib.contextmanager
def ignoring(*more: type[Exception]) -> Iterator[None]:
    """An attacker does not mind what becomes of its connection, and of what it names besides."""
    with contextlib.suppress(OSError, EOFError, Refused, *more):
        yield
