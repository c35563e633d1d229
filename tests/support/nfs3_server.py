"""NFSv3 and MOUNT from socket to disk: a TCP server of one directory, and a client of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nfsd.admission import Admission
from nfsd.exports import Export, ExportTable
from nfsd.mount.program import mount3_program
from nfsd.protocol.nfs3 import NFS_PROGRAM, nfs_fh3
from nfsd.v3.acl import nfsacl_program
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from nfsd.v3.request import Limits
from nfsd.vfs.service import FileService
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.tcp import TcpListener
from tests.nfs3_client import Nfs3Client

OWNER, GROUP = os.getuid(), os.getgid()


@dataclass
class Server:
    """The parts of a running server."""

    client: Nfs3Client
    address: tuple[str, int]
    directory: Path
    root: nfs_fh3
    service: FileService
    dispatcher: Dispatcher


@asynccontextmanager
async def running(
    directory: Path,
    state: Path,
    limits: Limits | None = None,
    more: tuple[Export, ...] = (),
    gss: Acceptor | None = None,
    **settings: object,
) -> AsyncIterator[Server]:
    """A server of ``directory``, and of ``more``, on a free port, and a client of it as the user the tests run as."""
    values = {"id": 1, "path": str(directory), "pseudo": "/export", "squash": "none"} | settings
    exports = ExportTable([Export(**values), *more])  # type: ignore[arg-type]
    service = FileService(exports, str(state))
    await service.start()
    nfs = Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(service, exports, limits)})
    programs = [nfs, nfsacl_program(service, exports), mount3_program(service, exports)]
    native = {(NFS_PROGRAM, 3): Nfs3Procedures(service, limits)}
    dispatcher = Dispatcher(programs, gate=Admission(exports), natives=native, gss=gss)
    pool = Pool(256 << 20)
    listener = TcpListener(dispatcher, pool, asyncio.get_running_loop())
    listener.listen("127.0.0.1", 0)
    client = await Nfs3Client.connect(*listener.address, uid=OWNER, gid=GROUP)
    client.acts_as_callers = service.executor.can_switch
    root = nfs_fh3((await service.root(exports.exports[0])).handle)
    try:
        yield Server(client, listener.address, directory, root, service, dispatcher)
    finally:
        await client.close()
        assert await dispatcher.drain(5) == 0
        listener.close()
        await service.close()
    assert pool.in_use == 0


@asynccontextmanager
async def serving(base: Path, **settings: object) -> AsyncIterator[tuple[Nfs3Client, Path]]:
    """A server of ``base/export``, which it makes."""
    directory, state = base / "export", base / "state"
    directory.mkdir(exist_ok=True)
    state.mkdir(exist_ok=True, mode=0o700)
    async with running(directory, state, **settings) as server:  # type: ignore[arg-type]
        yield server.client, server.directory
