"""The descriptors behind a stateid: who may use them for what (RFC 7530 section 16.16.5). Owns :class:`Descriptors`.

A client keeps them open for as long as it likes: they count as its host's (:meth:`nfsd.vfs.shares.Shares.hold`).
For I/O that rests on no open, a descriptor is opened as the caller (:func:`open_as`).
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state.clients import Client
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import Credential
from rpcrdma.rpc.program import RpcCredential


class Descriptors:
    """What an open state or a delegation keeps open: a descriptor for each access it has been granted."""

    __slots__ = ("host", "read", "reader", "write", "writer")

    def __init__(self, host: str) -> None:
        """``host``: the client's, as in its credentials."""
        self.host = host
        self.read: OpenFile | None = None
        self.reader: RpcCredential | None = None
        """Who was allowed to read."""
        self.write: OpenFile | None = None
        self.writer: RpcCredential | None = None

    def add(self, opened: OpenFile, access: int, caller: RpcCredential) -> None:
        """Take over one count of ``opened``, which was opened for ``caller``, for the access not served so far."""
        if access & p.OPEN4_SHARE_ACCESS_READ and self.read is None:
            self.read, self.reader = opened.held_by(self.host), caller
        if access & p.OPEN4_SHARE_ACCESS_WRITE and self.write is None:
            self.write, self.writer = opened.held_by(self.host), caller
        opened.release()

    def serving(self, caller: RpcCredential, *, write: bool) -> OpenFile | None:
        """The descriptor for I/O of a caller, if it is the one that opened it: holding a stateid is no permission, and
        the server has to check the access of every READ and WRITE (RFC 7530 section 16.16.5)."""
        if write:
            return self.write if self.writer == caller else None
        return self.read if self.reader == caller else None

    def keep(self, access: int) -> None:
        """Give up what a downgrade leaves no right to."""
        if not access & p.OPEN4_SHARE_ACCESS_READ and self.read is not None:
            self.read.let_by(self.host)
            self.read = None
        if not access & p.OPEN4_SHARE_ACCESS_WRITE and self.write is not None:
            self.write.let_by(self.host)
            self.write = None

    @property
    def export_id(self) -> int | None:
        """The export through which the file was opened."""
        opened = self.read or self.write
        return None if opened is None else opened.node.export.id

    def copy(self) -> Descriptors:
        """The same again, with counts of its own."""
        made = Descriptors(self.host)
        made.read, made.reader, made.write, made.writer = self.read, self.reader, self.write, self.writer
        for opened in (made.read, made.write):
            if opened is not None:
                opened.held_by(self.host)
        return made

    def release(self) -> None:
        """Give up everything."""
        self.keep(0)


async def open_as(
    server: Nfs4Server, client: Client | None, credential: Credential, node: Node, special: bool, write: bool
) -> OpenFile:
    """A descriptor for I/O as a caller of ``client``, with a count of its own. ``special``: under a special stateid.
    Raises what the file service raises, and DelegationConflict."""
    if special:
        # Nothing was opened, so nothing was recalled (RFC 8881 section 10.4); and more of this is to be expected.
        await server.recalls.clear(node.key, client, write=write)
        if write:
            server.engine.delegations.pause(node.key)
    return await server.service.open(credential, node, read=not write, write=write)


async def may_commit(server: Nfs4Server, caller: RpcCredential, credential: Credential, node: Node) -> bool:
    """Whether a caller may have a file synchronised: who may write it, or has it open for writing. The WRITEs of the
    latter are carried out whatever its permissions are now, and so must be their COMMIT. Raises ESTALE."""
    return await server.service.may_commit(credential, node) or _holds_open(server, caller, node)


def _holds_open(server: Nfs4Server, caller: RpcCredential, node: Node) -> bool:
    file = server.engine.opens.file(node.key)
    if file is None:
        return False
    descriptors = [state.opened for state in file.opens] + [state.opened for state in file.delegations]
    return any(one is not None and one.serving(caller, write=True) is not None for one in descriptors)
