"""Several processes that serve together, with their supervisor in this process; and hosts that talk to them."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nfsd.config_file import load
from nfsd.supervising.supervisor import Supervisor
from rpcrdma.rpc.rpcbind import Rpcbind
from rpcrdma.server.spread import place_of
from tests.support.nfs4 import Client4, LoopbackTransport
from tests.support.over_tcp import OverTcp, connect

_names = itertools.count()


class Together:
    """What runs."""

    def __init__(self, supervisor: Supervisor, directory: Path) -> None:
        self.supervisor, self.directory = supervisor, directory

    @staticmethod
    def host_of(index: int, count: int, skip: int = 0) -> str:
        """A loopback address whose process this is."""
        hosts = (f"127.0.1.{number}" for number in range(1, 255))
        return next(itertools.islice((host for host in hosts if place_of(host, count) == index), skip, None))

    def port(self, service: str = "nfs", kind: str = "tcp") -> int:
        sockets = self.supervisor._sockets
        return next(
            int(made[0][0].getsockname()[1])
            for place, made in sockets.items()
            if (place.service, place.kind) == (service, kind)
        )

    def client(self, host: str, minor: int = 1, name: bytes = b"", **how: Any) -> Client4:
        """One that is not yet known to the server."""
        name = name or b"%d" % next(_names)
        server: Any = OverTcp("127.0.0.1", self.port(), own=host)
        return Client4(server, minor, name=name, transport=LoopbackTransport(host), **how)

    async def connection(self, host: str, service: str = "nfs") -> Any:
        """One that stays."""
        return await connect("127.0.0.1", self.port(service), own=host)

    async def asked(self, command: str, **fields: Any) -> Any:
        """What an administrator is answered."""
        return await self.supervisor.requests.commands()[command](fields)

    async def serving(self, index: int, starts: int) -> None:
        """Wait until a process has been started so many times, and serves."""
        process = self.supervisor.processes[index]
        async with asyncio.timeout(120):
            while process.starts < starts or not process.ready.is_set():  # noqa: ASYNC110 (a start takes a second)
                await asyncio.sleep(0.02)

    def write(self, text: str, old: str) -> None:
        """Change the configuration."""
        file = self.directory / "exports.yaml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, text))


def together(
    tmp_path: Path,
    count: int,
    test: Callable[[Together], Awaitable[None]],
    server: str = "  nfs4: {grace_time: 0}\n",
    listen: str = "'tcp://127.0.0.1:0'",
) -> None:
    """A test with so many processes that export ``tmp_path/export``."""
    os.chmod(tmp_path, 0o755)
    for name in ("export", "other"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name).chmod(0o777)
    file = tmp_path / "exports.yaml"
    file.write_text(
        f"server:\n  listen: [{listen}]\n  mountd_port: 0\n  processes: {count}\n{server}exports:\n"
        "  - {path: export, squash: none}\n  - {path: other, squash: none}\n"
    )

    async def whole() -> None:
        supervisor = Supervisor(load(str(file)), Rpcbind((), None))
        async with asyncio.timeout(300):
            await supervisor.start()
            try:
                await test(Together(supervisor, tmp_path))
            finally:
                await supervisor.stop()

    asyncio.run(whole())
