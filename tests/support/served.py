"""A daemon over loopback with the exports that a test writes, and clients of it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from nfsd.config_file import load
from nfsd.daemon import Daemon
from rpcrdma.rpc.rpcbind import Rpcbind
from tests.nfs3_client import Nfs3Client, auth_sys
from tests.support import over_tcp
from tests.support.nfs4 import Client4

HOST = "127.0.0.1"
_names = itertools.count()


class Served:
    """What runs."""

    def __init__(self, daemon: Daemon, directory: Path, host: str) -> None:
        self.daemon, self.directory, self.host = daemon, directory, host
        self._clients: list[Any] = []

    def port(self, service: str, scheme: str = "tcp") -> int:
        listening = (started.address for started in self.daemon.listeners.of(service))
        return next(address.port for address in listening if address.scheme == scheme)

    async def nfs3(
        self,
        uid: int = 0,
        gid: int = 0,
        gids: tuple[int, ...] = (),
        host: str | None = None,
        service: str = "nfs",
        ports: Sequence[int] = (),
    ) -> Nfs3Client:
        """``host``: the loopback address that the client has; ``ports``: those that it takes turns in."""
        reader, writer = await over_tcp.connect(self.host, self.port(service), ports, host)
        client = Nfs3Client(reader, writer, auth_sys(uid, gid, gids))
        self._clients.append(client)
        return client

    async def mount(self, path: str, host: str | None = None) -> Any:
        return await (await self.nfs3(host=host, service="mountd")).mount(path)

    async def nfs4(
        self,
        minor: int,
        uid: int = 0,
        gid: int = 0,
        gids: tuple[int, ...] = (),
        host: str | None = None,
        ports: Sequence[int] = (),
    ) -> Client4:
        server: Any = over_tcp.OverTcp(self.host, self.port("nfs"), ports, own=host)
        client = Client4(server, minor, uid=uid, gid=gid, gids=gids, name=b"%d" % next(_names))
        return await client.connect()

    async def reload(self, old: str, new: str) -> None:
        """Change the file, and have it read again."""
        file = self.directory / "exports.yaml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        assert await self.daemon.reload()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def run(
    tmp_path: Path,
    exports: str,
    test: Callable[[Served], Awaitable[None]],
    server: str = "",
    host: str = HOST,
    transports: Sequence[str] = ("tcp",),
) -> None:
    """A test with a daemon whose exports are these entries, in directories below ``tmp_path`` that are there, and with
    these further lines of ``server``. It listens at a loopback address, on these ``transports``."""
    shown = f"[{host}]" if ":" in host else host
    listen = ", ".join(f'"{transport}://{shown}:0"' for transport in transports)
    os.chmod(tmp_path, 0o755)
    file = tmp_path / "exports.yaml"
    file.write_text(
        f"server:\n  listen: [{listen}]\n  mountd_port: 0\n  nfs4: {{grace_time: 0}}\n{server}exports:\n{exports}"
    )

    async def whole() -> None:
        daemon = Daemon(load(str(file)), Rpcbind((), None))
        async with asyncio.timeout(120):
            await daemon.start()
            served = Served(daemon, tmp_path, host)
            try:
                await test(served)
            finally:
                await served.close()
                await daemon.stop()

    mask = os.umask(0o022)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(whole())
    finally:
        os.umask(mask)
