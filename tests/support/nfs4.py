"""An NFSv4 server in this process, and clients that talk to it through the dispatcher, without a network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench import nfs4_client
from bench.nfs4_client import NFS, Failed, Operation, mode, values, wanted
from nfsd.exports import Export, ExportTable
from nfsd.state import Limits, Recovered, StateEngine
from nfsd.v4.procedures import Nfs4Procedures
from nfsd.v4.program import nfs4_procedures
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.service import FileService
from nfsd.vfs.types import Time
from rpcrdma.memory import Lease, Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from tests.support.callbacks import CallbackEnd

__all__ = [
    "NFS",
    "Client4",
    "Failed",
    "LoopbackTransport",
    "Operation",
    "Server4",
    "StoreInMemory",
    "mode",
    "serving",
    "values",
    "wanted",
    "with_client",
]


class StoreInMemory:
    """Stable storage that remembers what it was told."""

    def __init__(self) -> None:
        self.writes: list[Any] = []

    async def flush(self, engine: StateEngine) -> None:
        writes = engine.take_writes()
        self.writes += writes
        engine.writes_done(len(writes))


class LoopbackTransport:
    """A connection of a client in this process."""

    netid = "tcp"
    peer_port = 800
    certified = ""
    local_address = "127.0.0.1"

    def __init__(self, peer_address: str = "127.0.0.1", callbacks: CallbackEnd | None = None) -> None:
        """``callbacks``: who answers callbacks that come on this connection; without, it takes none."""
        self.peer_address = peer_address
        self.callbacks = callbacks
        self.max_backchannel_size = 0 if callbacks is None else 1 << 20
        self.closed = False
        self._gone: asyncio.Future[bytes] | None = None
        self._account = Pool(64 << 20).account(32 << 20)
        self._closing: list[Any] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        self._closing.append(callback)

    async def lease(self, size: int) -> Lease:
        return self._account.lease(size)

    async def call_back(self, message: bytes) -> memoryview:
        if self.callbacks is None or self.closed:
            raise ConnectionError("this client takes no callbacks")
        self._gone = self._gone or asyncio.get_running_loop().create_future()
        answering = asyncio.ensure_future(self.callbacks.answer(bytes(message), self))
        try:
            await asyncio.wait({answering, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            if self.closed:
                raise ConnectionError("the connection is closed")
            return memoryview(answering.result())
        finally:
            answering.cancel()

    def close(self) -> None:
        self.closed = True
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(b"")
        for callback in self._closing:
            callback()


class Server4:
    """The parts of an NFSv4 server over some directories, put together."""

    def __init__(
        self, service: FileService, exports: ExportTable, engine: StateEngine, store: Any, names: Any = None,
        leases: bool = False,
    ) -> None:  # fmt: skip
        self.service = service
        self.engine = engine
        self.store = store
        self.nfs4 = Nfs4Server(
            service, exports, engine, store, started=Time(1, 0), identity=b"test server", names=names, leases=leases
        )
        program = Program(NFS, "nfs", {4: nfs4_procedures()})
        self.dispatcher = Dispatcher([program], natives={(NFS, 4): Nfs4Procedures(self.nfs4)})

    async def call(self, transport: Any, message: bytes, chunks: Sequence[Any] = ()) -> bytes:
        """One RPC, with what Read chunks took out of it; the reply with its payloads put in their places."""
        replied = asyncio.get_running_loop().create_future()
        self.dispatcher.dispatch(transport, memoryview(message), chunks, [], replied.set_result)
        reply = await asyncio.wait_for(replied, 30)
        assert reply is not None, "the server closed the connection"
        whole, last = bytearray(), 0
        for offset, payload in reply.payloads:
            whole += reply.head[last:offset]
            whole += payload.view
            whole += bytes(-len(payload) & 3)
            last = offset
        whole += reply.head[last:]
        reply.release()
        return bytes(whole)


@asynccontextmanager
async def serving(
    *paths: Path, state_dir: Path, squash: str = "none", limits: Limits | None = None,
    recovered: Recovered | None = None, read_only: bool = False, store: Any = None, clients: tuple[str, ...] = ("*",),
    names: Any = None, more: Sequence[Export] = (), leases: bool = False,
) -> AsyncIterator[Server4]:  # fmt: skip
    """A server of ``paths`` under the pseudo names ``/0``, ``/1``…, and of ``more`` exports; without delegations unless
    ``limits`` allow them."""
    exports = [
        Export(number + 1, str(path), f"/{number}", read_only=read_only, squash=squash, clients=clients)
        for number, path in enumerate(paths)
    ]
    table = ExportTable([*exports, *more])
    service = FileService(table, str(state_dir))
    await service.start()
    engine = StateEngine(
        limits or Limits(grace=0, delegations=0), asyncio.get_running_loop().time,
        recovered or Recovered(epoch=int(time.time())),
        on_release=lambda opened: opened.release() if opened is not None else None,
    )  # fmt: skip
    server = Server4(service, table, engine, store or StoreInMemory(), names, leases)
    server.nfs4.start()
    try:
        yield server
    finally:
        await server.nfs4.close()
        await service.close()


class Client4(nfs4_client.Client4):
    """A client in this process, on a connection of its own unless it is given one."""

    def __init__(self, server: Any, minor: int, *, transport: Any = None, **identity: Any) -> None:
        super().__init__(server, minor, transport=transport or LoopbackTransport(), **identity)


def with_client(
    tmp_path: Path, minor: int, test: Callable[[Client4, Path, Server4], Awaitable[None]], **serving_how: Any
) -> None:
    """Run ``test(client, export, server)`` with a connected client."""
    export = tmp_path / "export"
    export.mkdir(exist_ok=True)
    export.chmod(0o777)
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)

    async def main() -> None:
        async with serving(export, state_dir=state, **serving_how) as server:
            await test(await Client4(server, minor).connect(), export, server)

    asyncio.run(main())
