"""A client's part in TLS on TCP (RFC 9289): ask for it, then see that the server is who it should be.

Owns :class:`Tls` and :func:`secure`; imports the handshakes, for which a process has one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rpcrdma.rpc.messages import RPC_VERSION, msg_type
from rpcrdma.rpc.program import AUTH_TLS
from rpcrdma.tls.certificates import ALPN, Peer
from rpcrdma.tls.handshakes import Handshakes
from rpcrdma.tls.records import Opening, Sealing, directions
from rpcrdma.tls.secrets import KeyLog, Secrets

_LAST_FRAGMENT: Final = 0x80000000
_STARTTLS: Final = struct.pack(">4I8sI", int(msg_type.REPLY), 0, 0, 8, b"STARTTLS", 0)
"""What follows on the XID: an accepted reply with this verifier (section 4.1), SUCCESS, and no results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Whom to believe, and who to be."""

    program: int
    """Whose NULL procedure asks for TLS."""
    version: int
    """Of the program."""
    roots: str | None = None
    """A PEM file of roots that servers' certificates are checked with. None: those that the system believes."""
    certificate: str | None = None
    """A PEM file with a certificate of one's own, if there is one, and those between it and a root."""
    key: str | None = None
    """Its private key. None: it is in the same file."""

    def context(self) -> ssl.SSLContext:
        """Names are checked as in browsers (RFC 9525). Raises OSError."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.roots)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.hostname_checks_common_name = False  # RFC 9289 section 5.2.1: subject alternative names
        context.set_alpn_protocols([ALPN])
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


@lru_cache(maxsize=1)
def _handshakes() -> tuple[Handshakes, str]:
    log = KeyLog()
    return Handshakes(log), log.path


async def secure(sock: socket.socket, host: str, tls: Tls) -> tuple[Opening, Sealing]:
    """Make the handshake on a connected socket, which does not block: what everything behind it is deciphered and
    enciphered with. ``host`` is the name, or the address, that the server's certificate must be for. Raises OSError:
    the server has no TLS, or is not who it should be; the socket is of no use then."""
    await _ask(sock, tls)
    context = tls.context()
    handshakes, context.keylog_filename = _handshakes()
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Secrets | str] = loop.create_future()

    def over(peer: Peer | None, why: str, secrets: Secrets | None) -> None:
        def tell() -> None:
            if not done.done():
                done.set_result(why if secrets is None else secrets)

        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(tell)

    wrap = functools.partial(context.wrap_bio, server_hostname=host)
    handshakes.begin(sock, str(id(sock)), wrap, over)
    try:
        found = await done
    except BaseException:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        raise
    if isinstance(found, str):
        raise ConnectionError(f"TLS: {found}")
    return directions(found)


async def _ask(sock: socket.socket, tls: Tls) -> None:
    """NULL with AUTH_TLS. No octet behind its reply is read: it belongs to the handshake."""
    loop = asyncio.get_running_loop()
    xid = os.urandom(4)
    call = xid + struct.pack(">9I", int(msg_type.CALL), RPC_VERSION, tls.program, tls.version, 0, AUTH_TLS, 0, 0, 0)
    await loop.sock_sendall(sock, struct.pack(">I", _LAST_FRAGMENT | len(call)) + call)
    (mark,) = struct.unpack(">I", await _exactly(sock, 4))
    expected = 4 + len(_STARTTLS)
    length = mark & ~_LAST_FRAGMENT
    if not mark & _LAST_FRAGMENT or length > 1024:
        raise ConnectionError("the server has answered AUTH_TLS with what is no RPC reply")
    reply = await _exactly(sock, length)
    if length != expected or reply != xid + _STARTTLS:
        raise ConnectionError("the server has no TLS")


async def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = await asyncio.get_running_loop().sock_recv(sock, size - len(found))
        if not more:
            raise ConnectionError("the server has closed the connection")
        found += more
    return found
