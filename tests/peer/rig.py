"""A server with the echo program and a peer connected to it, in one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from rpcrdma.engine.config import ResponderOptions
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.hosts import HostLimits, Hosts
from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Peer
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.rdma import RdmaConnection, RdmaServer, RdmaServerOptions
from rpcrdma.verbs.interface import ListenAddress, Provider
from rpcrdma.verbs.loopback import LoopbackProvider
from rpcrdma.wire.private_data import PrivateData
from tests.peer.echo import Control, echo_program

DEVICE_ADDRESS = os.environ.get("RDMA_NFSD_TEST_DEVICE", "")
"""An address of an RDMA device of this host: rigs are then made over devices instead (tests/vm/test_verbs_peers.py)."""

# Memory that a process registers with a device cannot be invalidated from afar: that takes the kernel's fast
# registrations, or windows, which not every device has. So peers over devices do not offer it.
LINUX = PrivateData(remote_invalidation=not DEVICE_ADDRESS, send_size=4096, receive_size=4096).encode()


class Rig:
    """Use as an asynchronous context manager; it checks on the way out that every buffer came back."""

    default_provider: Callable[[Pool], Provider] = LoopbackProvider

    def __init__(
        self,
        *,
        options: RdmaServerOptions | None = None,
        hosts: HostLimits | None = None,
        provider: Callable[[Pool], Provider] | None = None,
        host: str = "127.0.0.1",
        pool_limit: int = 256 << 20,
        programs: Iterable[Program] = (),
        gss: Acceptor | None = None,
        **responder: Any,
    ) -> None:
        # All credits from the start; tests/unit/test_receives.py is about how they grow.
        responder.setdefault("first_credits", responder.get("credits", 128))
        self.options = options or RdmaServerOptions(responder=ResponderOptions(**responder))
        self.pool = Pool(pool_limit)
        self.hosts = Hosts(self.pool, hosts or HostLimits(host_memory=pool_limit))
        self.peer_pool = Pool(256 << 20)
        self.control = Control()
        self.now = 1000.0
        self._provider_of = provider or Rig.default_provider
        self._programs, self._gss = tuple(programs), gss
        self._host = DEVICE_ADDRESS or host
        if DEVICE_ADDRESS:
            self.peer_pool = self.pool  # a device takes Receives only from the pool that is registered with it
        self.peers: list[Peer] = []

    async def __aenter__(self) -> Rig:
        self.provider = self._provider_of(self.pool)
        self.dispatcher = Dispatcher([echo_program(self.control), *self._programs], gss=self._gss)
        self.server = RdmaServer(
            self.provider, self.pool, self.dispatcher, self.options, lambda: self.now, hosts=self.hosts
        )
        self.listener = await self.server.listen(ListenAddress(self._host, 0))
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self.control.gate is not None:
            self.control.gate.set()
        for peer in self.peers:
            if peer.reason is None:
                peer.endpoint.close(abort=True)
        await self.server.close()
        await self.provider.close()
        await self.until(lambda: not self.server.connections and all(peer.reason for peer in self.peers))
        if kind is None:
            await self.until(lambda: not self.pool.in_use)
            assert self.pool.leaked == self.peer_pool.leaked == 0

    async def peer(self, private_data: bytes = LINUX, *, receive_size: int = 4096, **depths: int) -> Peer:
        peer = Peer(self.peer_pool.account(64 << 20), receive_size)
        await peer.connect(self.provider, self.listener.address, private_data, **depths)
        self.peers.append(peer)
        return peer

    @property
    def connection(self) -> RdmaConnection:
        (connection,) = self.server.connections
        return connection

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop turn until ``condition`` holds."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 (anything in the process may change it)
                await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let everything that can happen without further input happen (loopback only)."""
        for _ in range(50):
            await asyncio.sleep(0)


def run(test: Callable[..., Awaitable[None]], **options: Any) -> None:
    """Run ``test(rig)``, or ``test(rig, peer)`` with one connected peer, and take everything down."""

    async def main() -> None:
        async with Rig(**options) as rig:
            if test.__code__.co_argcount == 1:
                await test(rig)
            else:
                await test(rig, await rig.peer())

    asyncio.run(main())
