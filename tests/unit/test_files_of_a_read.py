"""A READ of what is not in memory waits for a disk, and little Python is run for it.

The daemon serves a directory on a disk; the client is another thread. What is counted are the files of this project
whose functions run on the thread of the loop while the call is made.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import nfsd
import rpcrdma
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import READ3args
from rpcrdma.xdr import pack
from tests.support.served import HOST, Served, run
from tests.support.ways import uncached
from tests.unit import vfs_support

PACKAGES = tuple(str(Path(package.__file__ or "").parent) for package in (nfsd, rpcrdma))
MOST = 8
SIZE = 4096


class Files:
    """The files whose functions were called on this thread in between."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __enter__(self) -> set[str]:
        sys.setprofile(self._called)
        return self.names

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            self.names.add(frame.f_code.co_filename)


def exchange(connection: socket.socket, message: bytes) -> bytes:
    """One RPC."""
    connection.sendall(struct.pack(">I", 1 << 31 | len(message)) + message)
    with connection.makefile("rb") as octets:
        (mark,) = struct.unpack(">I", octets.read(4))
        return octets.read(mark & 0x7FFFFFFF)


async def messages_3(served: Served) -> tuple[bytes, bytes]:
    handle = await served.mount("/x")
    client = await served.nfs3()
    handle = await client.lookup(handle, b"f")
    arguments = pack(READ3args, READ3args(handle, 0, SIZE))
    return client.encode(100003, 3, 6, arguments), client.encode(100003, 3, 6, arguments)


async def messages_4(served: Served) -> tuple[bytes, bytes]:
    client = await served.nfs4(1)
    results = await client.run(*client.path("x/f"), (p.OP_GETFH, None))
    handle = results[-1].resok4.object
    reading = (p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, SIZE))
    first = client.message(*client.in_session(*reading))
    return first, client.message(*client.in_session(*reading))


@pytest.mark.parametrize("messages", [messages_3, messages_4], ids=["3", "4.1"])
def test_a_read_that_misses_the_cache_passes_few_files(tmp_path: Path, messages: Any) -> None:
    with vfs_support.directory_on("disk", tmp_path) as directory:
        path = Path(directory, "f")
        data = os.urandom(SIZE)
        path.write_bytes(data)

        async def test(served: Served) -> None:
            first, second = await messages(served)
            with socket.create_connection((HOST, served.port("nfs"))) as connection:
                assert data in await asyncio.to_thread(exchange, connection, first), "the file is open from now on"
                uncached(path)
                before = waited(served)
                with Files() as files:
                    reply = await asyncio.to_thread(exchange, connection, second)
                assert data in reply
                assert waited(served) > before, "it did not have to wait"
                assert len(files) <= MOST, sorted(files)

        run(tmp_path, f"  - {{path: {directory}, pseudo: /x, squash: none}}\n", test)


def waited(served: Served) -> int:
    """Calls that have waited on the transport's own path so far."""
    return sum(count for *_, count in served.daemon.dispatchers["nfs"].waited())
