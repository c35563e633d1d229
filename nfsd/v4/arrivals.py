"""Who may go to a file by its handle (RFC 7530 section 16.20, RFC 8881 section 18.19).

Owns the one way to a file of a real file system; the pseudo file system's is in :mod:`nfsd.v4.compound`. Imports the
state engine's errors, and :mod:`nfsd.v4.server`.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.server import Nfs4Server
from nfsd.versions import of_minor
from nfsd.vfs.service import Node
from rpcrdma.rpc.program import RpcCredential, Transport

VERSIONS: Final = ("NFSv4.0", "NFSv4.1", "NFSv4.2")


async def arrive(server: Nfs4Server, transport: Transport, minor: int, handle: bytes) -> Node:
    """The file of a handle, if this client may use its export. Raises BadHandle, OSError(ESTALE), Nfs4Error: ACCESS,
    and PERM for a client that may use it, but not from its port (as Linux's server)."""
    exports = server.exports
    node = await server.service.resolve(handle)
    if not exports.visible(node.export, transport.peer_address, of_minor(minor)):
        exports.refuse(node.export, transport, VERSIONS[minor])
        raise Nfs4Error(p.NFS4ERR_ACCESS)
    if not exports.takes(node.export, transport):
        raise Nfs4Error(p.NFS4ERR_PERM)
    exports.observer.used(node.export, transport, VERSIONS[minor])
    return node


async def arrive_as(server: Nfs4Server, transport: Transport, minor: int, handle: bytes, caller: RpcCredential) -> Node:
    """As :func:`arrive`; and who the caller is on the export is known by then."""
    node = await arrive(server, transport, minor, handle)
    await server.exports.credential(
        node.export, caller.flavor, caller.uid, caller.gid, caller.gids, transport.peer_address
    )
    return node
