"""A server as a client uses it: one connection, one version of NFS, any number of exports. Owns :class:`Server` and
:func:`connect`; imports everything else of this package but the commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat as modes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from nfsd.client.callbacks import Backchannel
from nfsd.client.errors import NfsClientError
from nfsd.client.filesystem import FileSystem, Managed
from nfsd.client.mount import Mounts
from nfsd.client.recovery import Client4
from nfsd.client.resolve import Resolver
from nfsd.client.rpc import Caller, Patience, VersionRefused
from nfsd.client.session import Session
from nfsd.client.types import Backend, Found
from nfsd.client.url import DEFAULT_PORTS, Url, parse
from nfsd.client.v3 import Nfs3
from nfsd.client.v41 import Nfs41
from nfsd.protocol.mount3 import MOUNT_PROGRAM, MOUNT_V3
from nfsd.protocol.nfs3 import NFS_PROGRAM
from rpcrdma import client as rpc
from rpcrdma.client import ClientOptions, Gss, Tls
from rpcrdma.rpc.rpcbind import PORT as RPCBIND_PORT
from rpcrdma.verbs.interface import Provider

SIZE: Final = 1 << 20
_SMALLEST_SIZE, _LARGEST_SIZE = 4096, 1 << 20

NfsVersion = Literal["3", "4.1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a server is used."""

    nfs_version: NfsVersion | None = None
    """None: 4.1, and 3 from a server that has no 4.1."""
    rdma_version: Literal[1, 2] | None = None
    """Of RPC-over-RDMA. None: Two if the server speaks it, One otherwise."""
    provider: Literal["softiwarp", "verbs"] | Provider = "softiwarp"
    """What RDMA is made of: iWARP over an ordinary TCP socket, or this host's devices."""
    mount_port: int | None = None
    """NFSv3: the TCP port of mountd. None: what the server's rpcbind says, or 20048."""
    size: int = SIZE
    """Octets of one READ or WRITE, at most: 4096 to 1 MiB."""
    depth: int = 8
    """Calls in flight for one file."""
    slots: int = 16
    """NFSv4.1: slots of the session, for all files together."""
    patience: float = 120.0
    """Seconds to wait for a server that says that it is busy or has just been restarted."""
    delegations: bool = False
    """NFSv4.1: ask for a read delegation with every file opened for reading."""
    tls_roots: str | None = None
    """``tls://``: a PEM file of roots that the server's certificate is checked with. None: those of the system."""
    tls_certificate: str | None = None
    """``tls://``: a PEM file with the client's own certificate, if the server wants one."""
    tls_key: str | None = None
    """Its private key. None: it is in the same file."""
    security: Literal["sys", "krb5", "krb5i", "krb5p"] = "sys"
    """How the server knows who calls: it has to believe it, or by a Kerberos ticket of the environment's; with
    ``krb5i`` nobody can change calls and replies on the way, with ``krb5p`` nobody can read them."""
    rpc: rpc.ClientOptions | None = None
    """Of the connection (docs/client.md)."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        if self.nfs_version not in (None, "3", "4.1"):
            raise ValueError(f"nfs_version {self.nfs_version!r} is neither 3 nor 4.1")
        if self.rdma_version not in (None, 1, 2):
            raise ValueError(f"rdma_version {self.rdma_version!r} is neither 1 nor 2")
        if not _SMALLEST_SIZE <= self.size <= _LARGEST_SIZE:
            raise ValueError(f"size {self.size} is not from {_SMALLEST_SIZE} to {_LARGEST_SIZE}")
        if self.security not in ("sys", "krb5", "krb5i", "krb5p"):
            raise ValueError(f"security {self.security!r} is none of sys, krb5, krb5i, krb5p")
        if self.depth < 1 or self.slots < 1:
            raise ValueError("at least one call and one slot are needed")

    def of_connection(self, url: Url, program: int, version: int) -> ClientOptions:
        """The options of a connection to that server, for calls of that program."""
        options = self.rpc or ClientOptions()
        if self.security != "sys" and program == NFS_PROGRAM:
            options = replace(options, gss=Gss(self.security))
        if url.transport != "tls":
            return options
        tls = Tls(
            program=program, version=version, roots=self.tls_roots, certificate=self.tls_certificate, key=self.tls_key
        )
        return replace(options, tls=tls)


class Server:
    """One server. Made by :meth:`open`."""

    def __init__(self, url: Url, connection: rpc.Connection, backend: Backend) -> None:
        self.url = url
        self.connection = connection
        self.backend = backend

    @classmethod
    async def open(cls, url: Url, options: Options) -> Server:
        """Connect, and agree on a version. Raises NfsClientError, OSError."""
        backchannel = Backchannel()
        connection = rpc.connect(
            url.host,
            url.port,
            transport="rdma" if url.transport == "rdma" else "tcp",
            provider=options.provider,
            version=options.rdma_version,
            callbacks=() if options.nfs_version == "3" else [backchannel.program()],
            options=options.of_connection(url, NFS_PROGRAM, 3 if options.nfs_version == "3" else 4),
        )
        try:
            await connection.open()
        except (OSError, TimeoutError) as error:
            raise NfsClientError(_unreachable(url, error)) from error
        try:
            backend = await _agree(url, Caller(connection, backchannel), options)
        except ConnectionError as error:
            await connection.close()
            raise NfsClientError(f"{url.server}: {error}; {_another(url)}") from error
        except BaseException:
            await connection.close()
            raise
        return cls(url, connection, backend)

    async def locate(self, names: Sequence[bytes]) -> tuple[FileSystem, str]:
        """The export that a path leads into, and the rest of the path. Closing the file system leaves the server
        open."""
        handle, rest = await self.backend.attach(names)
        root = Found(handle, await self.backend.getattr(handle))

        async def stay() -> None:
            """Others use the server."""

        return FileSystem(self.backend, root, stay), "/".join(os.fsdecode(name) for name in rest)

    async def close(self) -> None:
        """Give up what the server keeps for this client, and close the connection."""
        await self.backend.close()


async def _agree(url: Url, caller: Caller, options: Options) -> Backend:
    patience = Patience(options.patience)
    if options.nfs_version != "3":
        session = Session(caller, patience)
        client = Client4(session, slots=options.slots, size=options.size)
        newer = Nfs41(session, client, size=options.size, depth=options.depth, delegations=options.delegations)
        try:
            await newer.start()
        except VersionRefused as error:
            if options.nfs_version is not None:
                raise NfsClientError(f"{url.server} has no NFSv4.1 ({error}); try --nfs-version 3") from error
        else:
            return newer

    async def to_port(port: int) -> Caller:
        settings = replace(options.of_connection(url, MOUNT_PROGRAM, MOUNT_V3), reconnect=0, connect_timeout=5)
        if port == RPCBIND_PORT:
            settings = replace(settings, tls=None)  # it tells a port, and has no TLS anywhere
        over_tcp = rpc.connect(url.host, port, transport="tcp", options=settings)
        await over_tcp.open()
        return Caller(over_tcp)

    mounts = Mounts(to_port, url.server, options.mount_port)
    older = Nfs3(caller, mounts, patience, size=options.size, depth=options.depth)
    try:
        await older.null()
    except VersionRefused as error:
        raise NfsClientError(f"{url.server} has no NFSv3 ({error}); try --nfs-version 4.1") from error
    return older


def _another(url: Url) -> str:
    other = "tcp" if url.transport == "rdma" else "rdma"
    return f"does the server speak {url.transport.upper()} at this port? {other}://{url.host} may do"


def _unreachable(url: Url, error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"{url.host}: no address is known for this host ({error.strerror}); check the name, or write an address"
    other = "tcp" if url.transport == "rdma" else "rdma"
    if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", None) == errno.ECONNREFUSED:
        return (
            f"{url.server}: connection refused; is the server running, and does it listen there? Servers listen on port"
            f" {DEFAULT_PORTS['rdma']} for RDMA and {DEFAULT_PORTS['tcp']} for TCP; {other}://{url.host} may do"
        )
    if isinstance(error, TimeoutError):
        return f"{url.server}: no answer; is the host up, and does a firewall let TCP port {url.port} through?"
    return (
        f"{url.server}: cannot connect: {getattr(error, 'strerror', None) or error or type(error).__name__};"
        f" {_another(url)}"
    )


def connect(url: str | Url, options: Options | None = None) -> Managed[FileSystem]:
    """The directory that a URL names: ``async with connect("rdma://host/export") as fs``, or ``fs = await
    connect(…)`` and ``await fs.close()``. Raises UrlError, NfsClientError, and OSError when there is no such
    directory."""
    return Managed(lambda: _connect(parse(url) if isinstance(url, str) else url, options or Options()))


async def _connect(url: Url, options: Options) -> FileSystem:
    server = await Server.open(url, options)
    try:
        below, path = await server.locate(url.names)
        try:
            root = await Resolver(server.backend, below.root).find(path)
            if not modes.S_ISDIR(root.stat.st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            if error.errno is not None:  # without one the text is in the arguments
                error.filename = str(url)
            raise
        return FileSystem(server.backend, root, server.close)
    except BaseException:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await server.close()
        raise
