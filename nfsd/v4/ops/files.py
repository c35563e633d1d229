"""Filehandles and names leading to them: PUTFH and its kin, LOOKUP, SECINFO.

RFC 7530 sections 16.8, 16.13, 16.14, 16.20 to 16.22, 16.28, 16.30, 16.31; RFC 8881 section 18.45 (SECINFO_NO_NAME).
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.arrivals import look_up, place_of
from nfsd.v4.compound import Compound
from nfsd.v4.operations import operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.vfs.service import Node
from nfsd.vfs.types import FileType
from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS


@operation(p.OP_PUTROOTFH)
async def putrootfh(c: Compound) -> None:
    """Go to the root of the server's name space."""
    c.go(await c.enter(c.server.pseudo.root))


@operation(p.OP_PUTPUBFH)
async def putpubfh(c: Compound) -> None:
    """The public filehandle is the root (RFC 8881 section 18.20.3)."""
    c.go(await c.enter(c.server.pseudo.root))


@operation(p.OP_LOOKUPP)
async def lookupp(c: Compound) -> None:
    """Go to the parent directory; from an export's root on into the pseudo file system."""
    c.go(await parent(c))


async def parent(c: Compound) -> Node | PseudoNode:
    """The parent of the current directory. Raises NOENT at the root, NOTDIR."""
    place = await place_of(c.server, c.here)
    if place is not None:
        if place.parent is None:
            raise Nfs4Error(p.NFS4ERR_NOENT)
        return await c.enter(place.parent)
    directory = await c.node()
    if directory.type is FileType.LNK and c.minor:
        raise Nfs4Error(p.NFS4ERR_SYMLINK)  # RFC 8881 section 15.2 lists it; RFC 7530 section 16.14.4 has NOTDIR
    above = await c.service.parent(await c.credential(directory), directory)
    if above is None:
        raise Nfs4Error(p.NFS4ERR_NOENT)
    return above


def _flavors(c: Compound) -> list[p.secinfo4]:
    # What the server takes for every export: the strongest first (RFC 8881 section 18.29.3).
    return [p.secinfo4(flavor=AUTH_SYS), p.secinfo4(flavor=AUTH_NONE)]


@operation(p.OP_SECINFO)
async def secinfo(c: Compound, args: p.SECINFO4args) -> list[p.secinfo4]:
    """The flavors for a name; in 4.1 and later the current file is consumed (RFC 8881 section 2.6.3.1.1.8)."""
    await look_up(c.server, c.call.transport, c.minor, c.here, args.name, c.call.credential)
    if c.minor:
        c.go(None)
    return _flavors(c)


@operation(p.OP_SECINFO_NO_NAME)
async def secinfo_no_name(c: Compound, args: int) -> list[p.secinfo4]:
    """The flavors for the current file or its parent; the current file is consumed."""
    if args == p.secinfo_style4.SECINFO_STYLE4_PARENT:
        await parent(c)
    else:
        _ = c.here
    c.go(None)
    return _flavors(c)
