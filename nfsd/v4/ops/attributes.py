"""GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS.

RFC 7530 sections 16.1, 16.7, 16.15, 16.32, 16.35; RFC 8881 sections 18.1, 18.7, 18.15, 18.30, 18.31.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import replace

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.errors import DelegationConflict
from nfsd.state.records import Delegation
from nfsd.state.types import StateidLike
from nfsd.v4 import attributes
from nfsd.v4.attributes import Facts, mask_of, words_of
from nfsd.v4.compound import Compound
from nfsd.v4.errors import status_of
from nfsd.v4.operations import ENCODED, Encoded, operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.settable import not_kept, settable_on
from nfsd.vfs.posix_acl import Acls, AclTag
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import (
    Attributes,
    FileSystemStatus,
    FileType,
    PartialChange,
    PathLimits,
    Quota,
    SetAttributes,
    Time,
)
from rpcrdma.xdr import Encoder

_PSEUDO_STATUS = FileSystemStatus(0, 0, 0, 0, 0, 0)
_PSEUDO_LIMITS = PathLimits(
    name_max=255, link_max=255, no_trunc=True, chown_restricted=True, case_insensitive=False, case_preserving=True,
    max_file_size=2**63 - 1, time_delta=Time(0, 1),
)  # fmt: skip


_CACHED = 1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE | 1 << p.FATTR4_TIME_MODIFY | 1 << p.FATTR4_TIME_METADATA
"""What the holder of a write delegation may know better."""


async def facts_of(c: Compound, node: Node | PseudoNode, mask: int) -> Facts:
    """Gather what the attributes of ``mask`` are computed from."""
    if isinstance(node, PseudoNode):
        shown = c.server.pseudo.attributes(node)
        facts = Facts(c.server.facts, c.minor, shown, node.handle, _PSEUDO_STATUS, _PSEUDO_LIMITS)
        facts.lacks |= attributes.NEED_ACLS | attributes.NEED_QUOTA | attributes.NEED_LABEL
        if node.referral is not None:
            facts.lacks |= ~attributes.ON_ABSENT
            facts.locations = (node.path, node.referral.referral)
            facts.kind = p.fs4_status_type.STATUS4_REFERRAL
            if not mask & attributes.WHERE:
                facts.error = p.NFS4ERR_MOVED
        if not c.server.names.numeric:
            await learn_names(c, mask, [shown])
        return facts
    now = await c.service.attributes(node)
    facts = Facts(c.server.facts_on(node.export), c.minor, now, node.handle)
    if mask & attributes.NEED_FEATURES:
        facts.lacks |= await lacks(c, node)
    if mask & ~facts.lacks & attributes.NEED_ACLS:
        facts.acls = await c.service.acls(node)
    if mask & ~facts.lacks & attributes.NEED_QUOTA:
        facts.quota = await _quota_of(c, node, now)
    if mask & ~facts.lacks & attributes.NEED_LABEL:
        facts.label = await c.service.label(node)
    if not c.server.names.numeric:
        await learn_names(c, mask, [now], facts.acls)
    if mask & attributes.NEED_STATUS:
        facts.status = await c.service.status(node)
    if mask & attributes.NEED_LIMITS:
        facts.limits = await c.service.limits(node)
    if mask & attributes.WHERE:
        facts.locations = (node.export.pseudo, node.export.replicas)
        if not c.server.exports.read_only(node.export, c.call.transport.peer_address):
            facts.kind = p.fs4_status_type.STATUS4_WRITABLE
    if mask & attributes.MOUNTED_ON and await c.is_root(node):
        # An export's root is mounted on its place in the pseudo file system.
        facts.attributes = now._replace(mounted_on_fileid=c.server.pseudo.of_export(node.export).fileid)
    return facts


def _is_absent(node: Node | PseudoNode) -> bool:
    return isinstance(node, PseudoNode) and node.referral is not None


def _asked_of(c: Compound, mask: int) -> Node | PseudoNode:
    """The current file; where it is absent, only for who asks where it is (RFC 8881 section 11.4.1)."""
    return c.here_or_absent if mask & attributes.WHERE else c.here


async def lacks(c: Compound, node: Node | PseudoNode) -> int:
    """The attributes that are not kept where a file is."""
    if isinstance(node, PseudoNode):
        return attributes.NEED_ACLS | attributes.NEED_QUOTA | attributes.NEED_LABEL
    return await not_kept(c.service, node)


async def _quota_of(c: Compound, node: Node, now: Attributes) -> Quota:
    """The quota the file's further blocks count against; in a directory those of files the caller would make there."""
    uid, gid = now.uid, now.gid
    if now.type is FileType.DIR:
        credential = await c.credential(node)
        uid = credential.uid
        if not now.mode & stat.S_ISGID:
            gid = credential.gid
    return await c.service.quota(node, uid, gid)


async def learn_names(c: Compound, mask: int, shown: Iterable[Attributes], acls: Acls | None = None) -> None:
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
    await c.server.names.learn_ids(uids, gids)


async def given_attributes(
    c: Compound, given: p.fattr4, where: Node, kind: FileType, current: Attributes | None = None
) -> SetAttributes:
    """The attributes a client gives a file of this ``kind`` that is, or is to be made, on ``where``'s file system."""
    return await settable_on(c.service, c.server.names, c.minor, given, where, kind, current)


@operation(p.OP_GETATTR)
async def getattr_(c: Compound, args: p.GETATTR4args) -> Encoded:
    """Attributes of the current file. Raises INVAL for attributes that can only be set."""
    asked = mask_of(args.attr_request)
    if attributes.write_only(asked, c.minor):
        raise Nfs4Error(p.NFS4ERR_INVAL)
    mask = attributes.readable(asked, c.minor)
    here = _asked_of(c, mask)
    facts = await facts_of(c, here, mask)
    if mask & _CACHED and c.engine.delegations.count and isinstance(here, Node):
        await _ask_holder(c, here, facts)
    results = c.call.results
    results.uint32(p.NFS4_OK)
    attributes.encode(results, mask, facts)
    return ENCODED


def _returning(c: Compound, holder: Delegation) -> bool:
    """Whether a caller of v4.0, whom no session names, is likely the holder about to give the delegation back:
    Linux looks at the attributes in the COMPOUND with DELEGRETURN, and answers no CB_GETATTR any more."""
    callback = holder.client.callback
    return (
        holder.recall_by is not None
        and callback is not None
        and callback.address.rsplit(".", 2)[0] == c.call.transport.peer_address
    )


async def _ask_holder(c: Compound, node: Node, facts: Facts) -> None:
    """Attributes of a file that another client writes to under a delegation: it is asked, and what it has not written
    yet counts as a change made now (RFC 8881 section 10.4.3). Raises DELAY if it does not say: then it is recalled."""
    # The GETATTR behind a v4.0 client's OPEN must not ask that client about a delegation it has not heard of yet.
    holder = c.engine.delegations.other_writer(node.key, c.speaker or c.opener)
    if holder is None or (not c.minor and _returning(c, holder)):
        return
    told = await c.server.recalls.ask_attributes(holder)
    if not c.engine.delegations.holds(holder):
        facts.attributes = await c.service.attributes(node)
        return
    if told is None:
        c.engine.delegations.recall(holder)
        c.server.recalls.send()
        raise DelegationConflict
    change, size = told
    if change == holder.change and size == facts.attributes.size:
        return
    # Each such answer moves the change attribute, and the file's times, so that it never has to go back.
    await c.service.touch(node)
    facts.attributes = (await c.service.attributes(node))._replace(size=size)


@operation(p.OP_SETATTR, changes=True)
async def setattr_(c: Compound, args: p.SETATTR4args) -> p.SETATTR4res:
    """Set attributes; a size under the stateid's share of the file."""
    node = await c.node(changing=True)
    mask = mask_of(args.obj_attributes.attrmask)
    current = await c.service.attributes(node) if mask & attributes.MODE_MASKED else None
    changes = await given_attributes(c, args.obj_attributes, node, node.type, current)
    if node.type is FileType.LNK and changes.mode is not None:
        # The mode of a symbolic link means nothing, and Linux cannot change it: taken and ignored, as knfsd does.
        changes = replace(changes, mode=None)
    opened, client = None, c.speaker
    if changes.size is not None:
        opened, client = opened_for_size(c, node, c.given(args.stateid))
    try:
        with c.server.recalls.hold(node.key):
            await c.server.recalls.clear(node.key, client, write=True)
            await c.service.set_attributes(await c.credential(node), node, changes, opened=opened)
    except PartialChange as error:
        # RFC 8881 section 18.30.3: attrsset tells what has been set, also when the rest could not be.
        made = mask & _made(error.made, changes)
        return p.SETATTR4res(status=p.nfsstat4(status_of(error)), attrsset=words_of(made))
    return p.SETATTR4res(status=p.nfsstat4.NFS4_OK, attrsset=words_of(mask))


_FIELDS = {
    "size": (p.FATTR4_SIZE,),
    "uid": (p.FATTR4_OWNER,),
    "gid": (p.FATTR4_OWNER_GROUP,),
    "mode": (p.FATTR4_MODE, p.FATTR4_MODE_SET_MASKED),
    "access_acl": (p.FATTR4_ACL,),
    "label": (p.FATTR4_SEC_LABEL,),
    "atime": (p.FATTR4_TIME_ACCESS_SET,),
    "mtime": (p.FATTR4_TIME_MODIFY_SET,),
}


def _made(made: SetAttributes, wanted: SetAttributes) -> int:
    """The attributes that the file service has set. An ACL has two parts there: it is set when both are."""
    bits = sum(1 << n for field, numbers in _FIELDS.items() if getattr(made, field) is not None for n in numbers)
    if made.default_acl is None and wanted.default_acl is not None:
        bits &= ~(1 << p.FATTR4_ACL)
    return bits


def opened_for_size(c: Compound, node: Node, stateid: StateidLike) -> tuple[OpenFile | None, Client | None]:
    """The writable descriptor under a stateid (None for a special stateid or another caller: then the mode decides),
    and the client as far as it is known (in v4.0 the stateid tells it)."""
    state = c.engine.stateids.check_io(stateid, c.client, node.key, write=True)
    if state is None:
        return None, c.speaker
    opened: OpenFile | None = None
    if state.opened is not None:
        opened = state.opened.serving(c.call.credential, write=True)
    return opened, state.client


async def _matches(c: Compound, wanted: p.fattr4) -> bool:
    """Whether the current file has exactly these attributes (VERIFY)."""
    mask = mask_of(wanted.attrmask)
    if attributes.write_only(mask, c.minor) or mask & attributes.RDATTR_ERROR:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    here = _asked_of(c, mask)
    facts = await facts_of(c, here, mask)
    if attributes.readable(mask, c.minor) & ~facts.lacks != mask:
        raise Nfs4Error(p.NFS4ERR_MOVED if _is_absent(here) else p.NFS4ERR_ATTRNOTSUPP)
    encoder = Encoder()
    if mask & _CACHED and c.engine.delegations.count and isinstance(here, Node):
        await _ask_holder(c, here, facts)
    attributes.encode(encoder, mask, facts)
    given = Encoder()
    attributes.encode_mask(given, mask)
    given.opaque(wanted.attr_vals)
    return encoder.getvalue() == given.getvalue()


@operation(p.OP_VERIFY)
async def verify(c: Compound, args: p.VERIFY4args) -> None:
    """Go on only if the attributes are these."""
    if not await _matches(c, args.obj_attributes):
        raise Nfs4Error(p.NFS4ERR_NOT_SAME)


@operation(p.OP_NVERIFY)
async def nverify(c: Compound, args: p.NVERIFY4args) -> None:
    """Go on only if the attributes are not these."""
    if await _matches(c, args.obj_attributes):
        raise Nfs4Error(p.NFS4ERR_SAME)


_READ, _LOOKUP, _MODIFY, _EXTEND, _DELETE, _EXECUTE = (
    p.ACCESS4_READ, p.ACCESS4_LOOKUP, p.ACCESS4_MODIFY, p.ACCESS4_EXTEND, p.ACCESS4_DELETE, p.ACCESS4_EXECUTE,
)  # fmt: skip
_XAWRITE = p.ACCESS4_XAWRITE
_XATTRS = p.ACCESS4_XAREAD | _XAWRITE | p.ACCESS4_XALIST
_KNOWN = _READ | _LOOKUP | _MODIFY | _EXTEND | _DELETE | _EXECUTE


@operation(p.OP_ACCESS)
async def access(c: Compound, args: p.ACCESS4args) -> p.ACCESS4resok:
    """What the caller may do, for the bits asked that mean something for this type of file."""
    asked = args.access & (_KNOWN if c.minor < 2 else _KNOWN | _XATTRS)
    here = c.here
    if isinstance(here, PseudoNode):
        return p.ACCESS4resok(supported=asked & _KNOWN, access=asked & (_READ | _LOOKUP))
    node = await c.node()
    asked &= ~_EXECUTE if node.type is FileType.DIR else ~(_LOOKUP | _DELETE)
    credential = await c.credential(node)
    allowed = await c.service.access(credential, node)
    if asked & _XATTRS:
        # RFC 8276 section 8.5: where there are none, the bits mean nothing.
        if await c.service.supports_xattrs(node):
            allowed |= await c.service.xattr_access(credential, node)
        else:
            asked &= ~_XATTRS
    if c.server.exports.read_only(node.export, c.call.transport.peer_address):
        allowed &= ~(_MODIFY | _EXTEND | _DELETE | _XAWRITE)
    return p.ACCESS4resok(supported=asked, access=asked & allowed)
