"""GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS.

RFC 7530 sections 16.1, 16.7, 16.15, 16.32, 16.35; RFC 8881 sections 18.1, 18.7, 18.15, 18.30, 18.31.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.types import StateidLike
from nfsd.v4 import attribute_errands as errands
from nfsd.v4 import attributes, facts
from nfsd.v4.attributes import Facts, mask_of, words_of
from nfsd.v4.compound import Compound
from nfsd.v4.operations import ENCODED, Encoded, operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.settable import settable_on
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import Attributes, FileSystemStatus, FileType, PathLimits, SetAttributes, Time
from rpcrdma.xdr import Encoder

_PSEUDO_STATUS = FileSystemStatus(0, 0, 0, 0, 0, 0)
_PSEUDO_LIMITS = PathLimits(
    name_max=255, link_max=255, no_trunc=True, chown_restricted=True, case_insensitive=False, case_preserving=True,
    max_file_size=2**63 - 1, time_delta=Time(0, 1),
)  # fmt: skip


async def facts_of(c: Compound, node: Node | PseudoNode, mask: int) -> Facts:
    """Gather what the attributes of ``mask`` are computed from."""
    if isinstance(node, PseudoNode):
        shown = c.server.pseudo.attributes(node)
        known = Facts(c.server.facts, c.minor, shown, node.handle, _PSEUDO_STATUS, _PSEUDO_LIMITS)
        known.lacks |= attributes.NEED_ACLS | attributes.NEED_QUOTA | attributes.NEED_LABEL
        if node.referral is not None:
            known.lacks |= ~attributes.ON_ABSENT
            known.locations = (node.path, node.referral.referral)
            known.kind = p.fs4_status_type.STATUS4_REFERRAL
            if not mask & attributes.WHERE:
                known.error = p.NFS4ERR_MOVED
        if not c.server.names.numeric:
            await facts.learn_names(c.server, mask, [shown])
        return known
    return await facts.facts_of(c.server, c.asking, node, mask)


def _is_absent(node: Node | PseudoNode) -> bool:
    return isinstance(node, PseudoNode) and node.referral is not None


def _asked_of(c: Compound, mask: int) -> Node | PseudoNode:
    """The current file; where it is absent, only for who asks where it is (RFC 8881 section 11.4.1)."""
    return c.here_or_absent if mask & attributes.WHERE else c.here


async def given_attributes(
    c: Compound, given: p.fattr4, where: Node, kind: FileType, current: Attributes | None = None
) -> SetAttributes:
    """The attributes a client gives a file of this ``kind`` that is, or is to be made, on ``where``'s file system."""
    return await settable_on(c.service, c.server.names, c.minor, given, where, kind, current)


async def _encoded(c: Compound, mask: int) -> tuple[bytes, int]:
    """The fattr4 of the current file, and which of these attributes it lacks."""
    here = _asked_of(c, mask)
    known = await facts_of(c, here, mask)
    if isinstance(here, Node):
        # The GETATTR behind a v4.0 client's OPEN must not ask that client about a delegation it has not heard of yet.
        await facts.ask_holder(c.server, c.asking, here, mask, known, c.speaker or c.opener)
    encoder = Encoder()
    attributes.encode(encoder, mask, known)
    return encoder.getvalue(), known.lacks


@operation(p.OP_GETATTR)
async def getattr_(c: Compound, args: p.GETATTR4args) -> Encoded:
    """Attributes of the current file. Raises INVAL for attributes that can only be set."""
    asked = mask_of(args.attr_request)
    if attributes.write_only(asked, c.minor):
        raise Nfs4Error(p.NFS4ERR_INVAL)
    found, _ = await _encoded(c, attributes.readable(asked, c.minor))
    c.call.results.uint32(p.NFS4_OK)
    c.call.results.append(found)
    return ENCODED


@operation(p.OP_SETATTR, changes=True)
async def setattr_(c: Compound, args: p.SETATTR4args) -> p.SETATTR4res:
    """Set attributes; a size under the stateid's share of the file."""
    node = await c.node(changing=True)
    mask = mask_of(args.obj_attributes.attrmask)
    opened, client = None, c.speaker
    if mask >> p.FATTR4_MODE_UMASK & 1 and c.minor == 2:
        raise Nfs4Error(p.NFS4ERR_INVAL)  # RFC 8275 section 3: only where a file is made
    if mask >> p.FATTR4_SIZE & 1:
        opened, client = opened_for_size(c, node, c.given(args.stateid))
    status, made = await errands.set_attributes(
        c.server, c.minor, await c.credential(node), node, args.obj_attributes, opened, client
    )
    return p.SETATTR4res(status=p.nfsstat4(status), attrsset=words_of(made))


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
    readable = attributes.readable(mask, c.minor)
    found, lacks = await _encoded(c, readable)
    if readable & ~lacks != mask:
        raise Nfs4Error(p.NFS4ERR_MOVED if _is_absent(_asked_of(c, mask)) else p.NFS4ERR_ATTRNOTSUPP)
    given = Encoder()
    attributes.encode_mask(given, mask)
    given.opaque(wanted.attr_vals)
    return found == given.getvalue()


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
    allowed = await errands.permissions(c.service, credential, node, bool(asked & _XATTRS))
    if asked & _XATTRS and not await c.service.supports_xattrs(node):
        asked &= ~_XATTRS  # RFC 8276 section 8.5: where there are none, the bits mean nothing
    if allowed & _READ and node.type in (FileType.REG, FileType.DIR):
        allowed |= p.ACCESS4_XAREAD | p.ACCESS4_XALIST
    if c.server.exports.read_only(node.export, c.call.transport.peer_address):
        allowed &= ~(_MODIFY | _EXTEND | _DELETE | _XAWRITE)
    return p.ACCESS4resok(supported=asked, access=asked & allowed)
