"""Filehandles and names leading to them: PUTFH and its kin, LOOKUP, SECINFO.

RFC 7530 sections 16.8, 16.13, 16.14, 16.20 to 16.22, 16.28, 16.30, 16.31; RFC 8881 section 18.45 (SECINFO_NO_NAME).
"""

from __future__ import annotations

import os

from nfsd.exports import NOT_AMONG_CLIENTS, NOT_BY_VERSION
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.compound import Compound
from nfsd.v4.errors import status_of
from nfsd.v4.names import NAME_MAX, check_name
from nfsd.v4.operations import operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.vfs.service import Node
from nfsd.vfs.types import BadHandle, FileType
from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS


@operation(p.OP_PUTFH)
async def putfh(c: Compound, args: p.PUTFH4args) -> None:
    """Set the current file by its handle."""
    try:
        node = await c.resolve(args.object)
    except (BadHandle, Nfs4Error, OSError) as error:
        if c.minor < 2 or not c.next_is(p.OP_SAVEFH):
            raise
        # The source of a copy from another server stands so in its COMPOUND (RFC 7862 section 15.2.3). COPY answers it
        # so that clients copy by themselves; BADHANDLE here would reach their users.
        c.go(None)
        c.foreign = p.NFS4ERR_BADHANDLE
        if not isinstance(error, BadHandle):
            c.foreign = error.status if isinstance(error, Nfs4Error) else status_of(error)
    else:
        c.go(node)


@operation(p.OP_PUTROOTFH)
async def putrootfh(c: Compound) -> None:
    """Go to the root of the server's name space."""
    c.go(await c.enter(c.server.pseudo.root))


@operation(p.OP_PUTPUBFH)
async def putpubfh(c: Compound) -> None:
    """The public filehandle is the root (RFC 8881 section 18.20.3)."""
    c.go(await c.enter(c.server.pseudo.root))


@operation(p.OP_GETFH)
async def getfh(c: Compound) -> p.GETFH4resok:
    """The current file's handle."""
    return p.GETFH4resok(object=c.here.handle)


@operation(p.OP_SAVEFH)
async def savefh(c: Compound) -> None:
    """Remember the current file and stateid."""
    if not c.foreign:
        _ = c.here
    c.saved, c.saved_stateid, c.saved_foreign = c.current, c.stateid, c.foreign


@operation(p.OP_RESTOREFH)
async def restorefh(c: Compound) -> None:
    """Go back to what SAVEFH remembered."""
    if c.saved is None:
        none = p.NFS4ERR_RESTOREFH if c.minor == 0 else p.NFS4ERR_NOFILEHANDLE
        raise Nfs4Error(c.saved_foreign or none)
    c.current, c.stateid = c.saved, c.saved_stateid


@operation(p.OP_LOOKUP)
async def lookup(c: Compound, args: p.LOOKUP4args) -> None:
    """Go to a name in the current directory."""
    c.go(await find(c, args.objname))


async def find(c: Compound, name: bytes) -> Node | PseudoNode:
    """A name in the current directory: of the pseudo file system first, then of the real one."""
    check_name(name)
    place = await place_of(c, c.here)
    if place is not None:
        child = place.children.get(name)
        if child is not None and c.may_see(child):
            return await c.enter(child)
        if isinstance(c.here, PseudoNode):
            _refuse(c, c.here, name, child)
            raise Nfs4Error(p.NFS4ERR_NOENT if len(name) <= NAME_MAX else p.NFS4ERR_NAMETOOLONG)
    directory = await c.node()
    if directory.type is FileType.LNK:
        raise Nfs4Error(p.NFS4ERR_SYMLINK)  # RFC 7530 section 16.13.4
    found, _ = await c.service.lookup(await c.credential(directory), directory, name)
    return found


def _refuse(c: Compound, place: PseudoNode, name: bytes, child: PseudoNode | None) -> None:
    """Note that a client asked for a name of the pseudo file system that there is not, as far as it may know."""
    path = f"{place.path.rstrip('/')}/{os.fsdecode(name)}"
    exports = child.exports() if child is not None else []
    why = NOT_AMONG_CLIENTS if exports else "there is no such export"
    if any(c.server.exports.visible(export, c.call.transport.peer_address) for export in exports):
        exports, why = [], NOT_BY_VERSION
    c.server.exports.observer.refused(c.call.transport, path, c.version, exports, why)


async def place_of(c: Compound, node: Node | PseudoNode) -> PseudoNode | None:
    """Where a node stands in the pseudo file system: itself, or the place whose export's root it is."""
    if isinstance(node, PseudoNode):
        return node
    return c.server.pseudo.of_export(node.export) if await c.is_root(node) else None


@operation(p.OP_LOOKUPP)
async def lookupp(c: Compound) -> None:
    """Go to the parent directory; from an export's root on into the pseudo file system."""
    c.go(await parent(c))


async def parent(c: Compound) -> Node | PseudoNode:
    """The parent of the current directory. Raises NOENT at the root, NOTDIR."""
    place = await place_of(c, c.here)
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
    await find(c, args.name)
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
