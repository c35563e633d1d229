"""A client for NFSv3 and NFSv4.1 over RPC-over-RDMA and TCP, for asyncio programs and for the commands of
``rdma-nfsd``.

    import nfsd.client

    async with nfsd.client.connect("rdma://host/export") as fs:
        async for entry in fs.scandir("directory"):
            print(entry.name, entry.stat.st_size)
        data = await fs.read_bytes("directory/file")

A user-space client, without a cache: every function asks the server. Above :mod:`nfsd.protocol` and
:mod:`rpcrdma.client`; the server and this package know nothing of each other. docs/client.md.
"""

from __future__ import annotations

from nfsd.client.errors import NfsClientError
from nfsd.client.files import File
from nfsd.client.filesystem import DirEntry, FileSystem
from nfsd.client.server import Options, Server, connect
from nfsd.client.types import NOW, Changes, Space, Stat
from nfsd.client.url import Url, UrlError

__all__ = [
    "NOW",
    "Changes",
    "DirEntry",
    "File",
    "FileSystem",
    "NfsClientError",
    "Options",
    "Server",
    "Space",
    "Stat",
    "Url",
    "UrlError",
    "connect",
]
