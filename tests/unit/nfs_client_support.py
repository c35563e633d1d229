"""A daemon in this process and clients of it, for the tests of :mod:`nfsd.client`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from nfsd.client import FileSystem, Options, Server, connect
from nfsd.client.filesystem import Managed
from nfsd.client.url import Url, parse
from nfsd.config_file import load
from nfsd.daemon import Daemon
from nfsd.faults.choosing import Faults
from rpcrdma.client import ClientOptions
from rpcrdma.rpc.rpcbind import Rpcbind

WAYS = [("tcp", "3", None), ("tcp", "4.1", None), ("rdma", "3", 1), ("rdma", "4.1", 2)]
MORE_WAYS = [("rdma", "3", 2), ("rdma", "4.1", 1), ("rdma", "4.1", None)]
"""Transport, version of NFS, version of RPC-over-RDMA."""


class Rig:
    """A directory with an export, a daemon that serves it, and clients."""

    def __init__(self, base: Path, transport: str = "tcp", version: str = "4.1", rdma: int | None = None) -> None:
        self.base = base
        self.export = base / "export"
        self.export.mkdir()
        self.transport = transport
        self.options = Options(
            nfs_version=version, rdma_version=rdma,  # type: ignore[arg-type]
            patience=60, rpc=ClientOptions(reconnect=60, first_delay=0.02, longest_delay=0.2),
        )  # fmt: skip
        self.daemon: Daemon
        self.ports = {"rdma": 0, "tcp": 0, "mountd": 0}
        self.extra = "  nfs4: {grace_time: 0}\n"
        self.entry = ""
        """More of the export's entry, each key behind a comma."""
        self.faults: Faults | None = None
        """How the daemon misbehaves."""

    async def start(self) -> None:
        """Start the daemon, at the ports it had before if it did."""
        listen = f"[rdma://127.0.0.1:{self.ports['rdma']}, tcp://127.0.0.1:{self.ports['tcp']}]"
        file = self.base / "exports.yaml"
        file.write_text(
            f"server:\n  listen: {listen}\n  mountd_port: {self.ports['mountd']}\n{self.extra}"
            f"exports:\n  - {{path: export, pseudo: /export, squash: none{self.entry}}}\n"
        )
        self.daemon = Daemon(load(str(file)), Rpcbind((), None), faults=self.faults)
        await self.daemon.start()
        for started in self.daemon.listeners.of("nfs"):
            self.ports[started.address.scheme] = started.address.port
        self.ports["mountd"] = self.daemon.listeners.of("mountd")[0].address.port

    def url(self, path: str = "") -> Url:
        """A place in the export."""
        port = self.ports["rdma" if self.transport == "rdma" else "tcp"]
        return parse(f"{self.transport}://127.0.0.1:{port}/export/{path}")

    def connect(self, path: str = "", **changes: Any) -> Managed[FileSystem]:
        """A client."""
        return connect(self.url(path), replace(self.options, mount_port=self.ports["mountd"], **changes))

    async def server(self, **changes: Any) -> Server:
        """A connection, without an export."""
        return await Server.open(self.url(), replace(self.options, mount_port=self.ports["mountd"], **changes))

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        """Run a test with the daemon; everything must be given back at its end."""

        async def bounded() -> None:
            async with asyncio.timeout(100):
                await self.start()
                try:
                    await test()
                finally:
                    await self.daemon.stop()
            assert self.daemon.pool.in_use == 0

        mask = os.umask(0o022)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(bounded())
        finally:
            os.umask(mask)
