"""READLINK (RFC 7530 section 16.25, RFC 8881 section 18.24), and descriptors for operations on data that are no READ
or WRITE."""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.types import StateidLike
from nfsd.v4.compound import Compound
from nfsd.v4.descriptors import open_as
from nfsd.v4.operations import operation
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import FileType
from rpcrdma.xdr.payload import Payload


async def opened_for(c: Compound, node: Node, stateid: StateidLike, *, write: bool) -> OpenFile:
    """A descriptor for I/O under a stateid, with a count of its own: the open's, or for a special stateid or
    another caller one opened as the caller. Raises what the stateid and the file's type deserve."""
    regular(c, node)
    state = c.engine.stateids.check_io(stateid, c.client, node.key, write=write)
    if state is not None and state.opened is not None:
        opened: OpenFile | None = state.opened.serving(c.call.credential, write=write)
        if opened is not None:
            opened.retain()
            return opened
    return await open_as(c.server, c.speaker, await c.credential(node), node, state is None, write)


def regular(c: Compound, node: Node) -> None:
    """Raise what a file that is no regular one deserves: ISDIR, SYMLINK, WRONG_TYPE (4.0: INVAL)."""
    if node.type is FileType.REG:
        return
    if node.type is FileType.DIR:
        raise Nfs4Error(p.NFS4ERR_ISDIR)
    if node.type is FileType.LNK and c.minor:
        raise Nfs4Error(p.NFS4ERR_SYMLINK)
    raise Nfs4Error(p.NFS4ERR_WRONG_TYPE if c.minor else p.NFS4ERR_INVAL)


@operation(p.OP_READLINK)
async def readlink(c: Compound) -> p.READLINK4resok:
    """The text of a symbolic link."""
    node = await c.node()
    if node.type is not FileType.LNK:
        raise Nfs4Error(p.NFS4ERR_WRONG_TYPE if c.minor else p.NFS4ERR_INVAL)
    text = await c.service.readlink(await c.credential(node), node)
    return p.READLINK4resok(link=Payload(memoryview(text)))
