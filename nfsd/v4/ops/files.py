"""The way to the parent directory, and how callers must be known: LOOKUPP, SECINFO, SECINFO_NO_NAME.

RFC 7530 sections 16.14, 16.31; RFC 8881 sections 18.14, 18.29, 18.45.
"""

from __future__ import annotations

from nfsd.exported import SECURITY, WITHOUT_PROOF
from nfsd.matching import peer_of
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.arrivals import Barred, look_up, may_use, place_of, walked
from nfsd.v4.compound import Compound
from nfsd.v4.names import check_name
from nfsd.v4.operations import operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.versions import of_minor
from nfsd.vfs.service import Node
from nfsd.vfs.types import FileType
from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS, RPCSEC_GSS


@operation(p.OP_LOOKUPP)
async def lookupp(c: Compound) -> None:
    """Go to the parent directory; from an export's root on into the pseudo file system."""
    c.go(await parent(c))


async def parent(c: Compound) -> Node | PseudoNode:
    """The parent of the current directory. Raises NOENT at the root, NOTDIR, and WRONGSEC if the caller is barred
    there."""
    place = await place_of(c.server, c.current.node if isinstance(c.current, Barred) else c.here)
    if place is not None:
        if place.parent is None:
            raise Nfs4Error(p.NFS4ERR_NOENT)
        return walked(await c.enter(place.parent))
    directory = await c.node()
    if directory.type is FileType.LNK and c.minor:
        raise Nfs4Error(p.NFS4ERR_SYMLINK)  # RFC 8881 section 15.2 lists it; RFC 7530 section 16.14.4 has NOTDIR
    above = await c.service.parent(await c.credential(directory), directory)
    if above is None:
        raise Nfs4Error(p.NFS4ERR_NOENT)
    return above


_KRB5 = bytes.fromhex("2a864886f712010202")
"""The object identifier of Kerberos 5 (RFC 4121 section 1), as it is sent: without its tag and length."""


def _gss(service: p.rpc_gss_svc_t) -> p.secinfo4:
    return p.secinfo4(flavor=RPCSEC_GSS, flavor_info=p.rpcsec_gss_info(oid=_KRB5, qop=0, service=service))


_FLAVORS = {
    "krb5p": _gss(p.rpc_gss_svc_t.RPC_GSS_SVC_PRIVACY),
    "krb5i": _gss(p.rpc_gss_svc_t.RPC_GSS_SVC_INTEGRITY),
    "krb5": _gss(p.rpc_gss_svc_t.RPC_GSS_SVC_NONE),
    "sys": p.secinfo4(flavor=AUTH_SYS),
    "none": p.secinfo4(flavor=AUTH_NONE),
}


def _told(ways: tuple[str, ...]) -> list[p.secinfo4]:
    """How callers may be known, the strongest way first (RFC 8881 section 18.29.3)."""
    return [_FLAVORS[way] for way in ways]


def _ways(c: Compound, place: PseudoNode) -> tuple[str, ...]:
    """How callers may be known at a place of the pseudo file system: as on its export, or on any of those below it."""
    exports, peer = c.server.exports, peer_of(c.call.transport)
    if place.export is not None and may_use(c.server, c.call.transport, c.minor, place.export):
        return exports.ways(place.export, peer)
    below = {way for export in place.exports() for way in exports.ways(export, peer)}
    return tuple(way for way in SECURITY if way in below) or WITHOUT_PROOF


async def _ways_of_name(c: Compound, name: bytes) -> tuple[str, ...]:
    """How callers may be known at a name in the current directory. WRONGSEC is none of SECINFO's answers (RFC 8881
    section 2.6.3.1.1.5): who is barred is told of the export, and not whether there is the name."""
    exports, transport = c.server.exports, c.call.transport
    check_name(name)
    if isinstance(c.current, Barred):
        return exports.ways(c.current.node.export, peer_of(transport))
    place = await place_of(c.server, c.here)
    child = place.children.get(name) if place is not None else None
    if child is not None and c.server.pseudo.visible(child, peer_of(transport), of_minor(c.minor)):
        return _ways(c, child)
    found = await look_up(c.server, transport, c.minor, c.here, name, c.call.credential)
    assert isinstance(found, Node), "the others are places"
    return exports.ways(found.export, peer_of(transport))


async def _ways_above(c: Compound) -> tuple[str, ...]:
    """How callers may be known in the parent of the current directory. Raises NOENT at the root, NOTDIR."""
    here = c.current.node if isinstance(c.current, Barred) else c.here
    place = await place_of(c.server, here)
    if place is not None:
        if place.parent is None:
            raise Nfs4Error(p.NFS4ERR_NOENT)
        return _ways(c, place.parent)
    assert isinstance(here, Node), "the others are places"
    if not isinstance(c.current, Barred):
        await parent(c)
    return c.server.exports.ways(here.export, peer_of(c.call.transport))


@operation(p.OP_SECINFO)
async def secinfo(c: Compound, args: p.SECINFO4args) -> list[p.secinfo4]:
    """The flavors for a name; in 4.1 and later the current file is consumed (RFC 8881 section 2.6.3.1.1.8)."""
    ways = await _ways_of_name(c, args.name)
    if c.minor:
        c.go(None)
    return _told(ways)


@operation(p.OP_SECINFO_NO_NAME)
async def secinfo_no_name(c: Compound, args: int) -> list[p.secinfo4]:
    """The flavors for the current file or its parent; the current file is consumed."""
    if args == p.secinfo_style4.SECINFO_STYLE4_PARENT:
        ways = await _ways_above(c)
    else:
        here = c.current.node if isinstance(c.current, Barred) else c.here
        exports, peer = c.server.exports, peer_of(c.call.transport)
        ways = exports.ways(here.export, peer) if isinstance(here, Node) else _ways(c, here)
    c.go(None)
    return _told(ways)
