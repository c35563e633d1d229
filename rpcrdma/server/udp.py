"""Calls in datagrams, for the few programs whose callers know no other way: port mappers, and hosts that tell of their
restart. Every size is bounded, and so is the number of calls under way, of each host and in all.

Owns :class:`UdpListener`. Imports the dispatcher's vocabulary, visits and asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final

from rpcrdma.firewall import contain
from rpcrdma.memory import Lease, OutOfMemory
from rpcrdma.rpc.dispatch import NO_REPLY, Dispatcher
from rpcrdma.rpc.program import BackwardError, RpcReply, Unsecured
from rpcrdma.server.sockets import bind, plain_address
from rpcrdma.server.visits import Visits

_MAX_CALL: Final = 4096
"""Octets of a call; longer ones are dropped. None of these programs has any."""
_MAX_REPLY: Final = 1400


class Caller(Unsecured):
    """Where a datagram came from, as programs see it; implements :class:`rpcrdma.rpc.program.Transport`."""

    closed = False
    slowing = None
    max_backchannel_size = max_long_backchannel_size = 0

    def __init__(self, peer: Any, local_host: str) -> None:
        self.peer_address, self.peer_port = plain_address(peer)
        self.netid = "udp6" if ":" in self.peer_address else "udp"
        self.local_address = local_host if local_host not in ("0.0.0.0", "::") else _way_to(peer)

    def __str__(self) -> str:
        return f"{self.netid} {self.peer_address} port {self.peer_port}"

    def on_close(self, callback: Callable[[], None]) -> None:
        """There is no connection that could close."""

    async def lease(self, size: int) -> Lease:
        """None of these programs has results that need one."""
        raise OutOfMemory("no buffers for datagrams")

    async def call_back(self, message: bytes | memoryview, **_: object) -> memoryview:
        """There is no way back."""
        raise BackwardError("no backward calls in datagrams")

    def close(self) -> None:
        """There is nothing to close."""


def _way_to(peer: Any) -> str:
    """The address of this host's that a caller is answered from."""
    family = socket.AF_INET6 if len(peer) > 2 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):
            probe.connect(peer)  # sends nothing
        return plain_address(probe.getsockname())[0]


class UdpListener(asyncio.DatagramProtocol):
    """One socket."""

    def __init__(self, dispatcher: Dispatcher, visits: Visits) -> None:
        self._dispatcher, self._visits = dispatcher, visits
        self._transport: asyncio.DatagramTransport | None = None
        self.address = ("", 0)

    async def listen(self, host: str, port: int, sock: socket.socket | None = None) -> None:
        """Begin, at an address or with a socket that has it. Raises OSError."""
        if sock is None:
            sock = bind(host, port, socket.SOCK_DGRAM)
        self.address = host, sock.getsockname()[1]
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=sock)

    def close(self) -> None:
        """Take and answer no more."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ready."""
        assert isinstance(transport, asyncio.DatagramTransport) or hasattr(transport, "sendto")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """A call, or something else."""
        contain(None, self._take, data, addr)

    def _take(self, data: bytes, addr: Any) -> None:
        if len(data) > _MAX_CALL:
            return
        caller = Caller(addr, self.address[0])
        visit = self._visits.begin(caller.peer_address)
        if visit is None:
            return

        def done(reply: RpcReply | None) -> None:
            self._visits.end(visit)
            if reply is None or reply is NO_REPLY:
                return
            transport = self._transport
            try:
                if transport is None or transport.is_closing() or reply.payloads or len(reply) > _MAX_REPLY:
                    return
                transport.sendto(bytes(reply.head), addr)
            finally:
                reply.release()

        # It calls ``done``, whatever happens.
        self._dispatcher.dispatch(caller, memoryview(data), (), [], done)
