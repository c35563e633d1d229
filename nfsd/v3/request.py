"""What NFSv3's procedures in Python share: a call under way, and the frame that answers failures. And what native ones
share with them: how a call arrives at its file, and how delegations are recalled.

Owns :class:`Limits`, :class:`Request` and :class:`Operation`; imports the file service, the exports and the RPC
vocabulary.

A procedure resolves its handle through its :class:`Request`, which remembers the file. When it fails,
:meth:`Operation.handle` turns the error into a status and has the procedure's ``fail`` build the result with the
attributes of the file, if it was resolved: RFC 1813 section 3.1 asks for as much attribute data as possible on failure,
and clients keep their caches by it.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from nfsd.exports import ExportTable
from nfsd.matching import Access, peer_of
from nfsd.protocol.nfs3 import PROCEDURES, fattr3, nfsstat3
from nfsd.v3.convert import fattr
from nfsd.v3.errors import EXPECTED, Nfs3Error, status_of
from nfsd.versions import V3
from nfsd.vfs.inspect import MODIFY
from nfsd.vfs.records import Inode
from nfsd.vfs.service import FileService, Node, OpenFile
from nfsd.vfs.types import Credential
from rpcrdma.rpc.program import Call, RpcCredential, Transport


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes in octets that FSINFO announces (RFC 1813 section 3.3.19), and READ, WRITE and READDIR hold to."""

    read_max: int = 1 << 20
    """rtmax: a longer READ is answered short."""
    write_max: int = 1 << 20
    """wtmax: a longer WRITE is written short."""
    multiple: int = 4096
    """rtmult and wtmult: the page, below which neither side gains anything."""
    directory_preferred: int = 64 << 10
    """dtpref: some 350 entries of READDIRPLUS, a millisecond's work: one listing does not hold up other calls."""
    directory_max: int = (1 << 20) - 1024
    """The longest listing, however much a client asks for: the reply, its RPC header included, stays below 1 MiB."""


class Demands(enum.Enum):
    """Where a caller must be known as the export says (``sec``)."""

    EVERYWHERE = enum.auto()
    BELOW_ROOT = enum.auto()
    """Clients look at an export's root as they mount it, before any user has called (RFC 2623 section 2.3.2)."""
    NOWHERE = enum.auto()
    """Lock managers call with AUTH_SYS, whatever NFS is used with; Linux's server takes that as well."""


class Delegations(Protocol):
    """What NFSv3 must know of NFSv4's delegations: they are recalled before the file is changed or read."""

    def may_stand(self, directory: Node) -> bool:
        """Whether files of a directory are delegated, or may be before somebody is done with them there."""

    async def cleared(self, file_key: bytes, *, write: bool) -> bool:
        """Whether no delegation conflicts any more; what does is being recalled."""

    def hold(self, file_key: bytes) -> AbstractContextManager[object]:
        """While it lasts the file is not delegated."""


async def clear(delegations: Delegations | None, files: Iterable[Node | Inode], write: bool, hold: ExitStack) -> None:
    """Have conflicting delegations of these files recalled. Raises JUKEBOX. ``hold``: as long as it is open, none of a
    file that is being changed is given."""
    if delegations is None:
        return
    for file in files:
        if write:
            hold.enter_context(delegations.hold(file.key))
        if not await delegations.cleared(file.key, write=write):
            # RFC 1813 section 2.6: the client is to try again; what keeps it waiting comes back meanwhile.
            raise Nfs3Error(nfsstat3.NFS3ERR_JUKEBOX)


async def clear_names(
    service: FileService,
    delegations: Delegations | None,
    credential: Credential,
    directories: Iterable[Node],
    hold: ExitStack,
) -> None:
    """As :func:`clear`, of directories in which a name is to be changed: who may not do that has nothing recalled."""
    if delegations is None:
        return
    for directory in directories:
        hold.enter_context(delegations.hold(directory.key))
        if directory.inode.delegated and await service.access(credential, directory) & MODIFY:
            await clear(delegations, (directory,), True, hold)


async def recall(
    service: FileService,
    delegations: Delegations | None,
    credential: Credential,
    files: Iterable[Node | Inode],
    hold: ExitStack,
) -> None:
    """Have delegations recalled that are in the way of a change of names: of these files and, where they are nodes, of
    the names in these directories. Raises JUKEBOX, and OSError(EACCES) for who may not change names there."""
    for file in files:
        if isinstance(file, Node) and file.inode.delegated and not await service.access(credential, file) & MODIFY:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        await clear(delegations, (file,), True, hold)


async def open_undelegated(
    service: FileService,
    delegations: Delegations | None,
    credential: Credential,
    node: Node,
    hold: ExitStack,
    *,
    write: bool,
) -> OpenFile:
    """A descriptor to read or to write through, once no delegation is in the way. Raises JUKEBOX, and what
    ``FileService.open`` raises."""
    await clear(delegations, (node,), write, hold)
    return await service.open(credential, node, read=not write, write=write)


async def arrive(
    service: FileService,
    exports: ExportTable,
    handle: bytes,
    transport: Transport,
    caller: RpcCredential,
    arrived: Callable[[Node], None],
    demands: Demands,
) -> tuple[Node, Credential, Access]:
    """The file of a handle, the caller as it acts there, and how it may use the export. ``arrived`` is told the file as
    soon as it is sure that the caller may use the export. ``demands``: where it must be known as the export says.

    Raises BadHandle, OSError(ESTALE), and OSError(EACCES) for a client that may not use the export, or not by
    NFSv3: its handle may be good again tomorrow, so it is not called stale. OSError(EACCES) as well for one that may,
    but not secured or known as it is, as from Linux's server, and OSError(EPERM) for one that may, but not from its
    port."""
    node = await service.resolve(handle)
    peer = peer_of(transport)
    learning = exports.admit(transport.peer_address)
    if learning is not None:
        await learning
    access = exports.access(node.export, peer)
    if access is None or not node.export.versions & V3:
        exports.refuse(node.export, transport, "NFSv3")
        raise OSError(errno.EACCES, "the client may not use this export")
    if not exports.takes(node.export, transport):
        if not exports.is_secured(node.export, transport):
            raise OSError(errno.EACCES, "the connection must be secured otherwise")
        raise OSError(errno.EPERM, "the client must use a port below 1024")
    if not exports.believes(node.export, caller, transport) and (
        demands is Demands.EVERYWHERE or (demands is Demands.BELOW_ROOT and not service.is_root(node))
    ):
        exports.disbelieve(node.export, caller, transport, "NFSv3")
        raise OSError(errno.EACCES, "the caller must be known otherwise")
    exports.observer.used(node.export, transport, "NFSv3")
    arrived(node)
    credential = await exports.credential(node.export, caller.flavor, caller.uid, caller.gid, caller.gids, peer)
    return node, credential, access


class Request:
    """One call: the server's parts, the caller, and the file, once it is resolved."""

    __slots__ = ("call", "delegations", "demands", "exports", "limits", "resolved", "service")

    def __init__(
        self,
        service: FileService,
        exports: ExportTable,
        limits: Limits,
        call: Call,
        delegations: Delegations | None = None,
        demands: Demands = Demands.EVERYWHERE,
    ) -> None:
        self.delegations = delegations
        self.demands = demands
        self.service = service
        self.exports = exports
        self.limits = limits
        self.call = call
        self.resolved: Node | None = None

    async def resolve(self, handle: bytes) -> tuple[Node, Credential]:
        """The file of a handle, and the caller as it acts there. Raises as :func:`arrive`."""
        node, credential, _ = await self._resolve(handle)
        return node, credential

    async def writable(self, handle: bytes) -> tuple[Node, Credential]:
        """As :meth:`resolve`, for a modifying procedure. Raises OSError(EROFS) too."""
        node, credential, access = await self._resolve(handle)
        if access.read_only:
            raise OSError(errno.EROFS, "the export is read-only for this client")
        return node, credential

    async def _resolve(self, handle: bytes) -> tuple[Node, Credential, Access]:
        call = self.call
        return await arrive(
            self.service, self.exports, handle, call.transport, call.credential, self._arrived, self.demands
        )

    def _arrived(self, node: Node) -> None:
        if self.call.tally is None:
            self.call.tally = self.exports.tally(node.export, self.call.transport.peer_address)
        self.resolved = node

    @asynccontextmanager
    async def changing(self, node: Node) -> AsyncIterator[None]:
        """``async with``: nobody has a delegation of the file, or is given one. Raises JUKEBOX."""
        with ExitStack() as hold:
            await clear(self.delegations, (node,), True, hold)
            yield

    async def after(self, node: Node) -> fattr3 | None:
        """Post-operation attributes, or None: an error of this incidental step is not the operation's (section 2.5)."""
        try:
            return fattr(await self.service.attributes(node))
        except OSError:
            return None


Aftermath = fattr3 | None
"""Attributes, after a failure, of the file that a procedure has resolved."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the procedure table."""

    number: int
    run: Callable[[Request, Any], Awaitable[Any]]
    """``run(request, arguments)`` returns the results; may raise any of :data:`nfsd.v3.errors.EXPECTED`."""
    fail: Callable[[nfsstat3, Aftermath], Any]
    """The results for a status other than NFS3_OK."""
    exceptions: Mapping[int, nfsstat3] = field(default_factory=dict)
    """Statuses that go before the general table."""

    async def handle(self, request: Request, arguments: Any) -> Any:
        """Run, and answer a failure with its status and attributes."""
        try:
            return await self.run(request, arguments)
        except EXPECTED as error:
            status = status_of(error, self.exceptions)
        request.call.failed = True
        request.exports.usage.failed(3, PROCEDURES[self.number].name, status.name.removeprefix("NFS3ERR_"))
        node = request.resolved
        return self.fail(status, None if node is None else await request.after(node))
