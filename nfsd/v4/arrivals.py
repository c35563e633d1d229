"""Who may go to a file: by its handle, by its name, from the pseudo file system.

RFC 7530 sections 16.13, 16.20; RFC 8881 sections 18.13, 18.19.

Owns the ways to a file of a real file system, and those that lead there from the pseudo file system. Imports the state
engine's errors, :mod:`nfsd.v4.server` and :mod:`nfsd.v4.pseudofs`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from nfsd.exports import NOT_AMONG_CLIENTS, NOT_BY_VERSION, Export
from nfsd.matching import peer_of
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.names import NAME_MAX, check_name
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.server import Nfs4Server
from nfsd.versions import of_minor
from nfsd.vfs.service import Node
from nfsd.vfs.types import Credential, FileType
from rpcrdma.rpc.program import RpcCredential, Transport
from rpcrdma.rpc.tally import Tally

VERSIONS: Final = ("NFSv4.0", "NFSv4.1", "NFSv4.2")


class Barred(NamedTuple):
    """A file whose handle is good, but the caller must be known otherwise. It is as far as a put filehandle operation
    gets: only SECINFO and its kin go on from here (RFC 8881 section 2.6.3.1.1)."""

    node: Node
    refused: Callable[[], int]
    """Tells the log, and returns WRONGSEC."""


class There(NamedTuple):
    """What a caller is on an export."""

    credential: Credential
    read_only: bool
    tally: Tally
    """Where its client's calls are counted."""
    only: int = 0
    """The operations, as bits, that it is let there for, although the export would have it known otherwise; 0: all."""


def principal_of(caller: RpcCredential) -> str:
    """Who a caller is for state."""
    return f"{caller.flavor}:{caller.principal or caller.mark}"


def machine_of(caller: RpcCredential) -> str:
    """The same for one who has proved it for each octet of the call (RPCSEC_GSS with integrity or privacy); else
    nothing."""
    return principal_of(caller) if caller.service > 1 else ""


async def arrive(
    server: Nfs4Server, transport: Transport, minor: int, handle: bytes, caller: RpcCredential
) -> Node | PseudoNode | Barred:
    """The file of a handle, if this client may use its export. Raises BadHandle, OSError(ESTALE), Nfs4Error: STALE,
    ACCESS, and PERM for a client that may use it, but not from its port (as Linux's server)."""
    exports = server.exports
    if server.pseudo.owns(handle):
        place = server.pseudo.resolve(handle)
        # Handles follow from paths, which are no secret; where a referral leads is told to whom it is meant for.
        if place is None or (place.referral is not None and not may_use(server, transport, minor, place.referral)):
            raise Nfs4Error(p.NFS4ERR_STALE)
        return await enter(server, transport, minor, place, caller)
    node = await server.service.resolve(handle)
    if not may_use(server, transport, minor, node.export):
        exports.refuse(node.export, transport, VERSIONS[minor])
        raise Nfs4Error(p.NFS4ERR_ACCESS)
    if not exports.takes(node.export, transport):
        raise Nfs4Error(_refusal(server, node.export, transport))
    if not exports.believes(node.export, caller, transport):
        return _barred(server, transport, minor, node, caller)
    exports.observer.used(node.export, transport, VERSIONS[minor])
    return node


async def enter(
    server: Nfs4Server, transport: Transport, minor: int, place: PseudoNode, caller: RpcCredential
) -> Node | PseudoNode | Barred:
    """What a place of the pseudo file system leads to: the export's root, if this client may use it. Raises PERM for
    one that may, but not from its port."""
    export = place.export
    if export is None or not may_use(server, transport, minor, export):
        return place
    if not server.exports.takes(export, transport):
        raise Nfs4Error(_refusal(server, export, transport))
    if not server.exports.believes(export, caller, transport):
        return _barred(server, transport, minor, await server.service.root(export), caller)
    server.exports.observer.used(export, transport, VERSIONS[minor])
    return await server.service.root(export)


async def listed(
    server: Nfs4Server, transport: Transport, minor: int, place: PseudoNode, caller: RpcCredential
) -> Node | PseudoNode:
    """As :func:`enter`, for a listing: what may not be entered is shown as the place itself. It is no use of it."""
    export, exports = place.export, server.exports
    if export is None or not may_use(server, transport, minor, export) or not exports.takes(export, transport):
        return place
    if not exports.believes(export, caller, transport):
        return place
    return await server.service.root(export)


def walked(found: Node | PseudoNode | Barred) -> Node | PseudoNode:
    """What a name has led to. Raises WRONGSEC, which is LOOKUP's and LOOKUPP's to answer."""
    if isinstance(found, Barred):
        raise Nfs4Error(found.refused())
    return found


def _barred(server: Nfs4Server, transport: Transport, minor: int, node: Node, caller: RpcCredential) -> Barred:
    """A caller may be told about the file first (SECINFO): it is not refused before it does something with it."""
    return Barred(node, partial(disbelieve, server, transport, minor, node.export, caller))


def disbelieve(server: Nfs4Server, transport: Transport, minor: int, export: Export, caller: RpcCredential) -> int:
    """What a caller gets that must be known otherwise on an export. The log is told why."""
    server.exports.disbelieve(export, caller, transport, VERSIONS[minor])
    return int(p.NFS4ERR_WRONGSEC)


def _refusal(server: Nfs4Server, export: Export, transport: Transport) -> int:
    """What a client gets that may use an export, but not on the connection it has: WRONGSEC where it must be secured
    otherwise, PERM where it must come from another port, both as from Linux's server."""
    return p.NFS4ERR_PERM if server.exports.is_secured(export, transport) else p.NFS4ERR_WRONGSEC


def may_use(server: Nfs4Server, transport: Transport, minor: int, export: Export) -> bool:
    """Whether this client may use an export."""
    return server.exports.visible(export, peer_of(transport), of_minor(minor))


async def credential_of(server: Nfs4Server, transport: Transport, caller: RpcCredential, node: Node) -> Credential:
    """A caller as it acts on the node's export."""
    return await server.exports.credential(
        node.export, caller.flavor, caller.uid, caller.gid, caller.gids, peer_of(transport)
    )


async def look_up(
    server: Nfs4Server, transport: Transport, minor: int, here: Node | PseudoNode, name: bytes, caller: RpcCredential
) -> Node | PseudoNode:
    """A name in a directory: of the pseudo file system first, then of the real one."""
    check_name(name)
    place = await place_of(server, here)
    if place is not None:
        child = place.children.get(name)
        if child is not None and server.pseudo.visible(child, peer_of(transport), of_minor(minor)):
            return walked(await enter(server, transport, minor, child, caller))
        if isinstance(here, PseudoNode):
            _refuse(server, transport, minor, here, name, child)
            raise Nfs4Error(p.NFS4ERR_NOENT if len(name) <= NAME_MAX else p.NFS4ERR_NAMETOOLONG)
    assert isinstance(here, Node), "the others are places"
    if here.type is FileType.LNK:
        raise Nfs4Error(p.NFS4ERR_SYMLINK)  # RFC 7530 section 16.13.4
    found, _ = await server.service.lookup(await credential_of(server, transport, caller, here), here, name)
    return found


async def place_of(server: Nfs4Server, node: Node | PseudoNode) -> PseudoNode | None:
    """Where a node stands in the pseudo file system: itself, or the place whose export's root it is."""
    if isinstance(node, PseudoNode):
        return node
    is_root = (await server.service.root(node.export)).handle == node.handle
    return server.pseudo.of_export(node.export) if is_root else None


def _refuse(
    server: Nfs4Server, transport: Transport, minor: int, place: PseudoNode, name: bytes, child: PseudoNode | None
) -> None:
    """Note that a client asked for a name of the pseudo file system that there is not, as far as it may know."""
    path = f"{place.path.rstrip('/')}/{os.fsdecode(name)}"
    exports = child.exports() if child is not None else []
    why = NOT_AMONG_CLIENTS if exports else _unserved(server, path) or "there is no such export"
    if any(server.exports.visible(export, peer_of(transport)) for export in exports):
        exports, why = [], NOT_BY_VERSION
    server.exports.observer.refused(transport, path, VERSIONS[minor], exports, why)


def _unserved(server: Nfs4Server, path: str) -> str:
    """Why an export at this path, or below it, is not served; empty: there is none."""
    found = server.service.unserved().items()
    return next((why for export, why in found if f"{export.pseudo}/".startswith(f"{path}/")), "")


# -- for native operations ---------------------------------------------------------------------------------------------
async def arrive_as(
    server: Nfs4Server, transport: Transport, minor: int, handle: bytes, caller: RpcCredential, only: int = 0
) -> tuple[Node | PseudoNode | Barred, There | None]:
    """As :func:`arrive`, with what the caller is there; None in the pseudo file system, and where it is barred.
    ``only``: the operations for which it is not."""
    found = await arrive(server, transport, minor, handle, caller)
    if only and isinstance(found, Barred):
        return found.node, await _there_for(server, transport, found.node, caller, only)
    return found, await there(server, transport, found, caller)


async def _there_for(
    server: Nfs4Server, transport: Transport, node: Node, caller: RpcCredential, only: int
) -> There | None:
    """As :func:`there`, for these operations."""
    found = await there(server, transport, node, caller)
    return None if found is None else found._replace(only=only)


async def enter_root_as(
    server: Nfs4Server, transport: Transport, minor: int, caller: RpcCredential
) -> tuple[Node | PseudoNode | Barred, There | None]:
    """As :func:`enter`, from the root of the name space, likewise."""
    found = await enter(server, transport, minor, server.pseudo.root, caller)
    return found, await there(server, transport, found, caller)


async def look_up_as(
    server: Nfs4Server, transport: Transport, minor: int, here: Node | PseudoNode, name: bytes, caller: RpcCredential
) -> tuple[Node | PseudoNode, There | None]:
    """As :func:`look_up`, likewise; None for what has not changed, too."""
    found = await look_up(server, transport, minor, here, name, caller)
    if isinstance(found, Node) and isinstance(here, Node) and found.export is here.export:
        return found, None
    return found, await there(server, transport, found, caller)


async def learn(
    server: Nfs4Server, transport: Transport, minor: int, caller: RpcCredential, *nodes: Node | None, only: int = 0
) -> list[There | None]:
    """What a caller has become on the exports of these files. Raises Nfs4Error: ACCESS for a client that may not use
    one any more, PERM as above, WRONGSEC where it must be known otherwise by now. ``only``: the operations for which
    it need not."""
    found = []
    for node in nodes:
        if node is not None and not may_use(server, transport, minor, node.export):
            raise Nfs4Error(p.NFS4ERR_ACCESS)
        if node is not None and not server.exports.takes(node.export, transport):
            raise Nfs4Error(_refusal(server, node.export, transport))
        if node is not None and not server.exports.believes(node.export, caller, transport):
            if not only:
                raise Nfs4Error(disbelieve(server, transport, minor, node.export, caller))
            found.append(await _there_for(server, transport, node, caller, only))
        else:
            found.append(await there(server, transport, node, caller))
    return found


async def there(
    server: Nfs4Server, transport: Transport, node: Node | PseudoNode | Barred | None, caller: RpcCredential
) -> There | None:
    """What a caller is on a file's export; None in the pseudo file system, and where it is barred."""
    if not isinstance(node, Node):
        return None
    exports, peer = server.exports, peer_of(transport)
    credential = await credential_of(server, transport, caller, node)
    return There(credential, exports.read_only(node.export, peer), exports.tally(node.export, transport.peer_address))
