"""Giving delegations of directories (RFC 8881 sections 10.9, 18.39).

Owns :func:`give_directory`; imports the state engine's records, and the file service's watches. What is given is a read
delegation like a file's, in the same tables: it is recalled, returned, revoked and lost like one, and counts against
the same bounds. What conflicts with it is every change of the directory, and of names in it, but the holder's own.

Other clients' changes wait for its return. What local processes do is told by the kernel, but only once it is done, and
so is what other processes of this server do: there is no lease on a directory that a server could take without being
in its own way.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state.clients import Client
from nfsd.state.records import Delegation
from nfsd.v4.keeping import Descriptors
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.open_accounts import Share
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.store_mounts import is_shared
from nfsd.vfs.types import Credential


class HeldDirectory(Descriptors):
    """What the delegation of a directory keeps: the directory's node, whose descriptor has a place like any other that
    is kept for a client."""

    __slots__ = ("_node", "_share")

    def __init__(self, host: str, node: Node, share: Share) -> None:
        """Takes over a place of the ``host``'s."""
        super().__init__(host)
        self._node = node
        self._share: Share | None = share

    @property
    def export_id(self) -> int | None:
        """The export through which it was delegated."""
        return self._node.export.id

    def release(self) -> None:
        """Give the place back; harmless when that has been done."""
        share, self._share = self._share, None
        if share is not None:
            share.give_back()


def _place(service: FileService, host: str, node: Node) -> Share | None:
    """A place for a directory, as long as that leaves half of the host's, and of all, for files."""
    shares = service.shares
    share = shares.at_once(host, node.mount.lane)
    if share is not None and (2 * share.host.in_use > shares.host_limit or 2 * shares.in_use > shares.limit):
        share.give_back()
        return None
    return share


async def give_directory(
    server: Nfs4Server, client: Client, credential: Credential, node: Node,
    referring: tuple[bytes, int, int], asked: int,
) -> tuple[Delegation, int] | None:  # fmt: skip
    """The delegation of a directory, and the notifications that its holder will get of those it ``asked`` for, as a
    mask; or None: there is none now. ``credential``: the caller on its export, who must be able to list it;
    ``referring``: the session, slot and sequence id of the request. Raises ESTALE."""
    service, recalls, table = server.service, server.recalls, server.engine.delegations
    if not recalls.can_delegate(client) or table.refusal(client, node.key, write=False) is not None:
        return None
    if (
        is_shared(node)
        or await service.in_snapshot(node)
        or not await service.access(credential, node) & p.ACCESS4_READ
    ):
        return None
    if node.inode.serial.busy or node.inode.changing:
        return None  # somebody changes names in it, or is about to
    share = _place(service, credential.host, node)
    if share is None:
        return None
    held = HeldDirectory(credential.host, node, share)
    made = table.offer(client, node.key, write=False)
    if not isinstance(made, Delegation):
        held.release()
        return None
    made.opened = held
    made.file.node = node
    recalls.mark(made.file)
    made.handle, made.referring = node.handle, referring
    try:
        if server.leases:
            made.lease = service.watch_directory(node, lambda: recalls.recall(made))
            if made.lease is None:
                table.release(made)
                return None
        if not (await service.attributes(node)).nlink:
            table.release(made)
            return None  # it was removed before the delegation was there, and nobody would recall it
    except BaseException:
        table.release(made)
        raise
    if not table.settle(made, directory=True):
        return None
    return made, recalls.notifications.promise(made, asked)
