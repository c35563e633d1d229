"""What the attributes of a file are computed from, gathered for GETATTR and its kin (RFC 8881 section 5).

Owns :class:`Asking` and the gathering; how attributes are encoded is in :mod:`nfsd.v4.attributes`. Imports the server's
parts, and the file service. For files of real file systems; the pseudo file system's are in
:mod:`nfsd.v4.ops.attributes`.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from typing import NamedTuple

from nfsd.protocol import nfs4 as p
from nfsd.state.clients import Client
from nfsd.state.errors import DelegationConflict
from nfsd.state.records import Delegation
from nfsd.v4 import attributes
from nfsd.v4.attributes import Facts
from nfsd.v4.server import Nfs4Server
from nfsd.v4.settable import not_kept
from nfsd.vfs.posix_acl import Acls, AclTag
from nfsd.vfs.service import Node
from nfsd.vfs.types import Attributes, FileType, Quota
from rpcrdma.rpc.program import RpcCredential, Transport

CACHED: int = 1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE | 1 << p.FATTR4_TIME_MODIFY | 1 << p.FATTR4_TIME_METADATA
"""What the holder of a write delegation may know better."""


class Asking(NamedTuple):
    """Who asks for attributes."""

    minor: int
    transport: Transport
    caller: RpcCredential


async def facts_of(server: Nfs4Server, asking: Asking, node: Node, mask: int) -> Facts:
    """What the attributes of ``mask`` of a file are computed from."""
    service = server.service
    now = await service.attributes(node)
    facts = Facts(server.facts_on(node.export), asking.minor, now, node.handle)
    if mask & attributes.NEED_FEATURES:
        facts.lacks |= await not_kept(service, node)
    if mask & ~facts.lacks & attributes.NEED_ACLS:
        facts.acls = await service.acls(node)
    if mask & ~facts.lacks & attributes.NEED_QUOTA:
        facts.quota = await _quota_of(server, asking, node, now)
    if mask & ~facts.lacks & attributes.NEED_LABEL:
        facts.label = await service.label(node)
    if not server.names.numeric:
        await learn_names(server, mask, [now], facts.acls)
    if mask & attributes.NEED_STATUS:
        facts.status = await service.status(node)
    if mask & attributes.NEED_LIMITS:
        facts.limits = await service.limits(node)
    if mask & attributes.WHERE:
        facts.locations = (node.export.pseudo, node.export.replicas)
        if not server.exports.read_only(node.export, asking.transport.peer_address):
            facts.kind = p.fs4_status_type.STATUS4_WRITABLE
    if mask & attributes.MOUNTED_ON and service.is_root(node):
        # An export's root is mounted on its place in the pseudo file system.
        facts.attributes = now._replace(mounted_on_fileid=server.pseudo.of_export(node.export).fileid)
    return facts


async def _quota_of(server: Nfs4Server, asking: Asking, node: Node, now: Attributes) -> Quota:
    """The quota the file's further blocks count against; in a directory those of files the caller would make there."""
    uid, gid = now.uid, now.gid
    if now.type is FileType.DIR:
        caller = asking.caller
        credential = await server.exports.credential(
            node.export, caller.flavor, caller.uid, caller.gid, caller.gids, asking.transport.peer_address
        )
        uid = credential.uid
        if not now.mode & stat.S_ISGID:
            gid = credential.gid
    return await server.service.quota(node, uid, gid)


async def learn_names(server: Nfs4Server, mask: int, shown: Iterable[Attributes], acls: Acls | None = None) -> None:
    """See that the names of all who will be shown are at hand."""
    uids: set[int] = set()
    gids: set[int] = set()
    if mask & attributes.OWNERS:
        for one in shown:
            uids.add(one.uid)
            gids.add(one.gid)
    if acls is not None:
        for entry in (*acls.access, *(acls.default or ())):
            if entry.tag == AclTag.USER:
                uids.add(entry.id)
            elif entry.tag == AclTag.GROUP:
                gids.add(entry.id)
    await server.names.learn_ids(uids, gids)


# -- attributes that a client may know better -------------------------------------------------------------------
def _returning(asking: Asking, holder: Delegation) -> bool:
    """Whether a caller of v4.0, whom no session names, is likely the holder about to give the delegation back:
    Linux looks at the attributes in the COMPOUND with DELEGRETURN, and answers no CB_GETATTR any more."""
    callback = holder.client.callback
    return (
        holder.recall_by is not None
        and callback is not None
        and callback.address.rsplit(".", 2)[0] == asking.transport.peer_address
    )


async def ask_holder(
    server: Nfs4Server, asking: Asking, node: Node, mask: int, facts: Facts, client: Client | None
) -> None:
    """Attributes of a file that another than ``client`` writes to under a delegation: it is asked, and what it has not
    written yet counts as a change made now (RFC 8881 section 10.4.3). Raises DELAY if it does not say: then it is
    recalled."""
    delegations = server.engine.delegations
    if not mask & CACHED or not delegations.count:
        return
    holder = delegations.other_writer(node.key, client)
    if holder is None or (not asking.minor and _returning(asking, holder)):
        return
    told = await server.recalls.ask_attributes(holder)
    if not delegations.holds(holder):
        facts.attributes = await server.service.attributes(node)
        return
    if told is None:
        delegations.recall(holder)
        server.recalls.send()
        raise DelegationConflict
    change, size = told
    if change == holder.change and size == facts.attributes.size:
        return
    # Each such answer moves the change attribute, and the file's times, so that it never has to go back.
    await server.service.touch(node)
    facts.attributes = (await server.service.attributes(node))._replace(size=size)
