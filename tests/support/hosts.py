"""Hosts of clients on the loopback network (127.0.0.1, 127.0.0.2…) against a whole daemon in this process."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from nfsd.config_file import load
from nfsd.daemon import Daemon
from rpcrdma.rpc.rpcbind import Rpcbind
from rpcrdma.xdr import Encoder
from tests.support.nfs4 import Client4, LoopbackTransport
from tests.support.nfs4_native import Wire

_xids = itertools.count(0x10000)


class Site:
    """A daemon that serves ``export`` and can be told to serve others; and hosts that talk to it over TCP."""

    def __init__(self, base: Path, daemon: Daemon) -> None:
        self.base = base
        self.daemon = daemon
        self.wires: list[Wire] = []

    @property
    def engine(self) -> Any:
        return self.daemon._nfs4.engine

    def port(self, service: str = "nfs") -> int:
        return next(s.address.port for s in self.daemon.listeners.of(service) if s.address.scheme == "tcp")

    async def wire(self, host: str, service: str = "nfs", *, port: int = 0) -> Wire:
        """A connection from a host, and from a port of it; 0: any."""
        streams = await asyncio.open_connection("127.0.0.1", self.port(service), local_addr=(host, port))
        wire = Wire(*streams)
        self.wires.append(wire)
        return wire

    async def client(self, host: str, minor: int = 1, *, port: int = 0, **how: Any) -> Client4:
        """An NFSv4 client on a host, with a connection of its own; not yet known to the server."""
        return Client4(await self.wire(host, port=port), minor, transport=LoopbackTransport(host), **how)  # type: ignore[arg-type]

    async def close(self) -> None:
        for wire in self.wires:
            wire.writer.close()


def write_config(base: Path, clients: str, *, server: str = "", more: str = "") -> Path:
    """The file of a daemon's configuration: ``clients`` of its export, lines of ``server``, ``more`` exports."""
    (base / "export").mkdir(exist_ok=True)
    file = base / "exports.yaml"
    file.write_text(
        "server:\n  listen: ['tcp://127.0.0.1:0']\n  mountd_port: 0\n  rpcbind: false\n"
        f"{server}exports:\n  - path: export\n    pseudo: /export\n    squash: none\n    clients: {clients}\n{more}"
    )
    return file


def on_site(
    tmp_path: Path, test: Callable[[Site], Awaitable[None]], clients: str = "['*']", server: str = "", more: str = ""
) -> None:
    """Run a test against a daemon."""

    async def main() -> None:
        async with asyncio.timeout(120):
            daemon = Daemon(load(str(write_config(tmp_path, clients, server=server, more=more))), Rpcbind((), None))
            await daemon.start()
            site = Site(tmp_path, daemon)
            try:
                await test(site)
            finally:
                await site.close()
                await daemon.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def rpc_call(program: int, version: int, procedure: int, body: bytes = b"", *, uid: int = 0) -> bytes:
    """An RPC call with AUTH_SYS."""
    e = Encoder()
    for word in (next(_xids), 0, 2, program, version, procedure, 1):
        e.uint32(word)
    e.opaque(struct.pack(">I", 0) + struct.pack(">I", 4) + b"host" + struct.pack(">III", uid, 0, 0))
    e.uint32(0)
    e.uint32(0)
    return e.getvalue() + body


def verdict(reply: bytes) -> tuple[int, ...]:
    """(0, accept_stat) of an accepted reply, (1, reject_stat, auth_stat or low…) of a denied one."""
    words = struct.unpack_from(f">{len(reply) // 4}I", reply)
    return (0, words[5]) if words[2] == 0 else (1, *words[3:5])
