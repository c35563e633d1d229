"""The descriptors behind a stateid: who may use them for what (RFC 7530 section 16.16.5). What holds
them is in :mod:`nfsd.v4.keeping`.

A client keeps them open for as long as it likes: they count as its host's (:meth:`nfsd.vfs.shares.Shares.hold`).
For I/O that rests on no open, a descriptor is opened as the caller (:func:`open_as`).
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as codes
from nfsd.state.clients import Client
from nfsd.state.protection import at_files
from nfsd.v4.arrivals import machine_of
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import Credential
from rpcrdma.rpc.program import RpcCredential


async def open_as(
    server: Nfs4Server, client: Client | None, credential: Credential, node: Node, special: bool, write: bool
) -> OpenFile:
    """A descriptor for I/O as a caller of ``client``, with a count of its own. ``special``: under a special stateid.
    Raises what the file service raises, and DelegationConflict."""
    if special:
        # Nothing was opened, so nothing was recalled (RFC 8881 section 10.4); and more of this is to be expected.
        await server.recalls.clear(node.key, client, write=write)
        if write:
            server.engine.delegations.pause(node.key)
    return await server.service.open(credential, node, read=not write, write=write)


async def may_commit(
    server: Nfs4Server,
    client: Client | None,
    caller: RpcCredential,
    credential: Credential,
    node: Node,
    *,
    as_machine: bool = False,
) -> bool:
    """Whether a caller of ``client`` may have a file synchronised: who may write it, or has it open for writing. The
    WRITEs of the latter are carried out whatever its permissions are now, and so must be their COMMIT. The client's
    machine may for all users (RFC 8881 section 18.35.3); ``as_machine``: nobody else. Raises ESTALE."""
    if _is_machine_of_writers(server, client, caller, node):
        return True
    return not as_machine and (await server.service.may_commit(credential, node) or _holds_open(server, caller, node))


def _is_machine_of_writers(server: Nfs4Server, client: Client | None, caller: RpcCredential, node: Node) -> bool:
    """Whether a caller is a client's machine that may do this, and some user of the client has the file open for
    writing, or writes under a delegation."""
    file = server.engine.opens.file(node.key)
    if file is None or not at_files(client, machine_of(caller)) >> codes.OP_COMMIT & 1:
        return False
    writing = server.engine.delegations.writing(file)
    return (writing is not None and writing.client is client) or any(
        state.client is client and state.access & codes.OPEN4_SHARE_ACCESS_WRITE for state in file.opens
    )


def _holds_open(server: Nfs4Server, caller: RpcCredential, node: Node) -> bool:
    file = server.engine.opens.file(node.key)
    if file is None:
        return False
    descriptors = [state.opened for state in file.opens] + [state.opened for state in file.delegations.values()]
    return any(one is not None and one.serving(caller, write=True) is not None for one in descriptors)
