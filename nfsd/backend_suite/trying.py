"""A server in this process whose exports are in backends, and clients of it.

Owns :class:`Server`; imports the daemon and the client.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from nfsd.backend_suite.operations import SIZE, Asked
from nfsd.backend_suite.peer import Peer
from nfsd.backend_suite.scenarios import Trial
from nfsd.client import FileSystem, Options, connect
from nfsd.client.filesystem import Managed
from nfsd.config_file import load
from nfsd.daemon import Daemon
from rpcrdma.rpc.rpcbind import Rpcbind

Way = tuple[str, Literal["3", "4.1"]]
"""Transport, and version of NFS."""
WAYS: Final[tuple[Way, ...]] = (("tcp", "3"), ("tcp", "4.1"), ("rdma", "3"), ("rdma", "4.1"))


@dataclass(frozen=True, slots=True)
class Entry:
    """An export to be tried, under the name ``/tried``."""

    settings: dict[str, Any]
    """As in the configuration: ``backend``, ``module``, ``options``, or ``path``."""
    writable: bool = True
    hard_links: bool = True
    symlinks: bool = True
    modes: bool = True
    any_names: bool = True
    more: list[dict[str, Any]] = field(default_factory=list)
    """Further exports."""

    def trial(self, fs: FileSystem, place: str) -> Trial:
        """A place in the export for one scenario."""
        return Trial(
            fs, place, hard_links=self.hard_links, symlinks=self.symlinks, modes=self.modes, any_names=self.any_names
        )


class Server:
    """What runs."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def connect(self, way: Way, pseudo: str = "tried") -> Managed[FileSystem]:
        """A client of an export, as root."""
        transport, version = way
        options = Options(nfs_version=version, mount_port=self.daemon.listeners.of("mountd")[0].address.port)
        return connect(f"{transport}://127.0.0.1:{self._port(transport)}/{pseudo}", options)

    def _port(self, transport: str) -> int:
        return next(one.address.port for one in self.daemon.listeners.of("nfs") if one.address.scheme == transport)

    @contextlib.asynccontextmanager
    async def asked(self, *, writable: bool) -> AsyncIterator[Asked]:
        """Whom questions are asked (:mod:`nfsd.backend_suite.operations`), about a file made for that, or where nothing
        can be written, about the first one that there is."""
        names, file = [], "asked"
        async with self.connect(("tcp", "4.1")) as fs:
            if writable:
                names = ["questions"]
                await fs.makedirs("questions")
                await fs.write_bytes("questions/asked", bytes(range(1, 129)) * (SIZE // 128))
                await fs.write_bytes("questions/asked.to", b"")
            else:
                async for top, _, files in fs.walk():
                    if files:
                        names, file = [one for one in top.split("/") if one], files[0].name
                        break
        peer = await Peer.connect("127.0.0.1", self._port("tcp"))
        try:
            yield Asked(peer, await peer.find("tried", *names), file, writable)
        finally:
            peer.close()


@contextlib.asynccontextmanager
async def serving(directory: Path, entry: Entry) -> AsyncIterator[Server]:
    """A server with this export, whose configuration and state are in a directory, until this ends."""
    tried = {"pseudo": "/tried", "squash": "none", **entry.settings}
    server = {
        "listen": ["tcp://127.0.0.1:0", "rdma://127.0.0.1:0"], "mountd_port": 0, "nfs4": {"grace_time": 0},
    }  # fmt: skip
    file = directory / "exports.yaml"
    file.write_text(yaml.safe_dump({"server": server, "exports": [tried, *entry.more]}))
    daemon = Daemon(load(str(file)), Rpcbind((), None))
    await daemon.start()
    try:
        yield Server(daemon)
    finally:
        await daemon.stop()
