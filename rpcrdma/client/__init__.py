"""A client's side of RPC over RDMA and over TCP, for asyncio programs (docs/client.md).

    async with connect("192.0.2.1", 20049, transport="rdma") as connection:
        arguments = Encoder()
        arguments.encode(READ3args, READ3args(handle, 0, len(buffer)))
        reply = await connection.call(100003, 3, 6, arguments, into=memoryview(buffer), reply_max=256)
        result = reply.decode(READ3res)         # result.resok.data is the beginning of buffer

It knows RPC and nothing of the programs that are called. Imports everything else of :mod:`rpcrdma` but the servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from rpcrdma.client import tcp
from rpcrdma.client.calls import Carrier, Owner
from rpcrdma.client.connection import Connection
from rpcrdma.client.errors import BadReply, CallError, Denied, Refused, RpcError, TransportError
from rpcrdma.client.gss import Gss, Protection
from rpcrdma.client.messages import AUTH_NONE, Reply, auth_sys, own_credential
from rpcrdma.client.options import ClientOptions
from rpcrdma.client.rdma import RdmaDialer
from rpcrdma.client.tls import Tls
from rpcrdma.engine.choice import LINUX, ChunkChoice
from rpcrdma.memory import Pool
from rpcrdma.rpc.messages import opaque_auth
from rpcrdma.rpc.program import Program
from rpcrdma.verbs.device import make_provider
from rpcrdma.verbs.interface import ListenAddress, Provider
from rpcrdma.verbs.softiwarp.provider import SoftIwarp

__all__ = [
    "AUTH_NONE",
    "LINUX",
    "BadReply",
    "CallError",
    "ChunkChoice",
    "ClientOptions",
    "Connection",
    "Denied",
    "Gss",
    "Refused",
    "Reply",
    "RpcError",
    "Tls",
    "TransportError",
    "auth_sys",
    "connect",
    "own_credential",
]

POOL = 128 << 20


def connect(
    host: str,
    port: int,
    *,
    transport: Literal["rdma", "tcp"] = "rdma",
    provider: Literal["softiwarp", "verbs"] | Provider = "softiwarp",
    version: Literal[1, 2] | None = None,
    credential: opaque_auth | None = None,
    callbacks: Sequence[Program] = (),
    options: ClientOptions | None = None,
) -> Connection:
    """A connection to the server at ``host`` (a name or an address), to be entered with ``async with``.

    ``provider`` is what RDMA is made of: ``softiwarp`` speaks iWARP over an ordinary TCP socket, ``verbs`` uses this
    host's RDMA devices; an object is used, and not closed. ``version`` of RPC-over-RDMA: None tries Two and falls back
    to One. ``credential`` is that of calls that name none (AUTH_SYS of this process). ``callbacks`` are the programs
    that answer the server's calls in the backward direction, if there are to be any.

    Entering it raises OSError when there is no connection at the first attempt.
    """
    settings = ClientOptions() if options is None else options
    name = f"{transport} {host} port {port}"
    security = None if settings.gss is None else Protection(settings.gss, host)
    if transport == "tcp":
        pool = Pool(POOL)
        tcp_dialer = tcp.TcpDialer(settings, pool, host)

        async def dial_tcp(owner: Owner) -> Carrier:
            return await _dial_any(host, port, lambda address: tcp_dialer.dial(address, port, owner))

        return Connection(dial_tcp, settings, pool, credential, callbacks, None, name, security)
    used = _make_provider(provider) if isinstance(provider, str) else provider
    # Memory of the pool that a provider has registered needs no copy on its way to a device.
    shared: Pool = getattr(used, "pool", None) or Pool(POOL)
    dialer = RdmaDialer(used, shared, settings, version)

    async def dial(owner: Owner) -> Carrier:
        return await _dial_any(host, port, lambda address: dialer.dial(ListenAddress(address, port), owner))

    close = used.close if isinstance(provider, str) else None
    return Connection(dial, settings, shared, credential, callbacks, close, name, security)


def _make_provider(name: str) -> Provider:
    if name == "softiwarp":
        return SoftIwarp(Pool(POOL))
    if name == "verbs":
        return make_provider(Pool(POOL))
    raise ValueError(f"there is no provider {name!r}")


async def _dial_any(host: str, port: int, dial: Callable[[str], Awaitable[Carrier]]) -> Carrier:
    """Try the addresses of ``host`` one after the other. Raises OSError, that of the last."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    *others, last = dict.fromkeys(str(address[0]) for *_, address in found)
    for address in others:
        with contextlib.suppress(OSError):
            return await dial(address)
    return await dial(last)
