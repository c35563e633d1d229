"""What the attributes of a file are computed from, gathered for GETATTR and its kin (RFC 8881 section 5).

Owns :class:`Asking` and the gathering; how attributes are encoded is in :mod:`nfsd.v4.attributes`. Imports the server's
parts, the file service, and the pseudo file system, whose places have attributes too.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from typing import NamedTuple

from nfsd.matching import peer_of
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.errors import DelegationConflict
from nfsd.state.records import Delegation
from nfsd.v4 import attributes
from nfsd.v4.attributes import Facts
from nfsd.v4.delegated_times import vetted
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.server import Nfs4Server
from nfsd.v4.settable import not_kept
from nfsd.vfs.posix_acl import Acls, AclTag
from nfsd.vfs.service import Node
from nfsd.vfs.types import Attributes, FileSystemStatus, FileType, PathLimits, Quota, Time
from rpcrdma.rpc.program import RpcCredential, Transport
from rpcrdma.xdr import Encoder

CACHED: int = 1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE | 1 << p.FATTR4_TIME_MODIFY | 1 << p.FATTR4_TIME_METADATA
"""What the holder of a write delegation may know better."""
_PSEUDO_STATUS = FileSystemStatus(0, 0, 0, 0, 0, 0)
_PSEUDO_LIMITS = PathLimits(
    name_max=255, link_max=255, no_trunc=True, chown_restricted=True, case_insensitive=False, case_preserving=True,
    max_file_size=2**63 - 1, time_delta=Time(0, 1),
)  # fmt: skip


class Asking(NamedTuple):
    """Who asks for attributes."""

    minor: int
    transport: Transport
    caller: RpcCredential


async def facts_of(server: Nfs4Server, asking: Asking, node: Node | PseudoNode, mask: int) -> Facts:
    """What the attributes of ``mask`` of a file are computed from."""
    if isinstance(node, PseudoNode):
        return await _facts_of_place(server, asking, node, mask)
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
        if not server.exports.read_only(node.export, peer_of(asking.transport)):
            facts.kind = p.fs4_status_type.STATUS4_WRITABLE
    if mask & attributes.MOUNTED_ON and service.is_root(node):
        # An export's root is mounted on its place in the pseudo file system.
        facts.attributes = now._replace(mounted_on_fileid=server.pseudo.of_export(node.export).fileid)
    return facts


async def _facts_of_place(server: Nfs4Server, asking: Asking, place: PseudoNode, mask: int) -> Facts:
    """Likewise, of a place of the pseudo file system; there may be an absent file system (RFC 8881 section 11.4.1)."""
    shown = server.pseudo.attributes(place)
    facts = Facts(server.facts, asking.minor, shown, place.handle, _PSEUDO_STATUS, _PSEUDO_LIMITS)
    facts.lacks |= attributes.NEED_ACLS | attributes.NEED_QUOTA | attributes.NEED_LABEL
    if place.referral is not None:
        facts.lacks |= ~attributes.ON_ABSENT
        facts.locations = (place.path, place.referral.referral)
        facts.kind = p.fs4_status_type.STATUS4_REFERRAL
        if not mask & attributes.WHERE:
            facts.error = p.NFS4ERR_MOVED
    if not server.names.numeric:
        await learn_names(server, mask, [shown])
    return facts


async def _quota_of(server: Nfs4Server, asking: Asking, node: Node, now: Attributes) -> Quota:
    """The quota the file's further blocks count against; in a directory those of files the caller would make there."""
    uid, gid = now.uid, now.gid
    if now.type is FileType.DIR:
        caller = asking.caller
        credential = await server.exports.credential(
            node.export, caller.flavor, caller.uid, caller.gid, caller.gids, peer_of(asking.transport)
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
    server: Nfs4Server, asking: Asking, node: Node | PseudoNode, mask: int, facts: Facts, client: Client | None
) -> None:
    """Attributes of a file that another than ``client`` writes to under a delegation: it is asked, and what it has not
    written yet counts as a change made now (RFC 8881 section 10.4.3). Raises DELAY if it does not say: then it is
    recalled."""
    delegations = server.engine.delegations
    if not mask & CACHED or not delegations.count or isinstance(node, PseudoNode):
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
    times, now = vetted(holder, told.times), facts.attributes
    if (told.change, told.size) == (holder.change, now.size) and times.modify in (None, now.mtime):
        return
    # Each such answer moves the change attribute, so that it never has to go back; and the file's times, but for those
    # that the holder tells. (It need not count such a time as a change.)
    await server.service.touch(node, access=times.access, modify=times.modify)
    facts.attributes = (await server.service.attributes(node))._replace(size=told.size)


async def encoded(
    server: Nfs4Server, asking: Asking, node: Node | PseudoNode, mask: int, client: Client | None
) -> tuple[bytes, int]:
    """The fattr4 of a file, as it is known to all but ``client``, who knows what it does itself; and which attributes
    the file lacks. Raises MOVED for an absent file system, unless it is asked where that is (RFC 8881 section
    11.4.1)."""
    if isinstance(node, PseudoNode) and node.referral is not None and not mask & attributes.WHERE:
        raise Nfs4Error(p.NFS4ERR_MOVED)
    facts = await facts_of(server, asking, node, mask)
    await ask_holder(server, asking, node, mask, facts, client)
    encoder = Encoder()
    attributes.encode(encoder, mask, facts)
    return encoder.getvalue(), facts.lacks
