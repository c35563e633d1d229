"""VERIFY and NVERIFY (RFC 7530 sections 16.15 and 16.35; RFC 8881 sections 18.15 and 18.31).

GETATTR, SETATTR and ACCESS are native (:mod:`nfsd.v4.file_attributes`). What is compared here is what GETATTR gives.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4 import attributes
from nfsd.v4.attributes import mask_of
from nfsd.v4.compound import Compound
from nfsd.v4.facts import encoded
from nfsd.v4.operations import operation
from nfsd.v4.pseudofs import PseudoNode
from rpcrdma.xdr import Encoder


async def _matches(c: Compound, wanted: p.fattr4) -> bool:
    """Whether the current file has exactly these attributes."""
    mask = mask_of(wanted.attrmask)
    if attributes.write_only(mask, c.minor) or mask & attributes.RDATTR_ERROR:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    readable, here = attributes.readable(mask, c.minor), c.here_or_absent
    # The COMPOUND of a v4.0 client's OPEN must not ask that client about a delegation it has not heard of yet.
    found, lacks = await encoded(c.server, c.asking, here, readable, c.speaker or c.opener)
    if readable & ~lacks != mask:
        absent = isinstance(here, PseudoNode) and here.referral is not None
        raise Nfs4Error(p.NFS4ERR_MOVED if absent else p.NFS4ERR_ATTRNOTSUPP)
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
