"""READ, WRITE, COMMIT, READLINK.

RFC 7530 sections 16.3, 16.23, 16.25, 16.36; RFC 8881 sections 18.3, 18.22, 18.24, 18.32.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.types import StateidLike
from nfsd.v4.compound import Compound
from nfsd.v4.descriptors import open_as
from nfsd.v4.operations import operation
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import FileType, Stability
from rpcrdma.xdr.payload import Payload

_MAX_OFFSET = 2**63 - 1
RESULT_OVERHEAD = 128


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


@operation(p.OP_READ)
async def read(c: Compound, args: p.READ4args) -> p.READ4resok:
    """Read; as much as transfer size and reply leave room for."""
    node = await c.node()
    opened = await opened_for(c, node, c.given(args.stateid), write=False)
    try:
        count = min(args.count, c.server.max_transfer, node.export.max_read, max(0, c.room_left() - RESULT_OVERHEAD))
        if args.offset > _MAX_OFFSET or count == 0:
            size = (await c.service.attributes(node)).size
            return p.READ4resok(eof=args.offset + count >= size, data=Payload(memoryview(b"")))
        lease = await c.call.lease(count)
        try:
            got, eof = await c.service.read(opened, args.offset, lease.view[:count])
        except BaseException:
            lease.release()
            raise
    finally:
        opened.release()
    c.transferred(read=got)
    return p.READ4resok(eof=eof, data=Payload(lease.view[:got], lease))


@operation(p.OP_WRITE, changes=True)
async def write(c: Compound, args: p.WRITE4args) -> p.WRITE4resok:
    """Write, as durably as asked or more."""
    node = await c.node(changing=True)
    if args.offset + len(args.data) > _MAX_OFFSET:
        raise Nfs4Error(p.NFS4ERR_FBIG if c.minor else p.NFS4ERR_INVAL)
    # Taken before the data is handed over: should its write-back fail meanwhile, the client's COMMIT finds another one,
    # and the client sends the data again (RFC 8881 section 18.32.3). The later one would vouch for data already lost.
    verifier = c.service.write_verifier
    opened = await opened_for(c, node, c.given(args.stateid), write=True)
    try:
        data = memoryview(args.data)[: min(c.server.max_transfer, node.export.max_write)]
        count, reached, _ = await c.service.write(opened, args.offset, data, Stability(args.stable))
    finally:
        opened.release()
    c.transferred(written=count)
    return p.WRITE4resok(count=count, committed=p.stable_how4(reached), writeverf=verifier)


@operation(p.OP_COMMIT)
async def commit(c: Compound, args: p.COMMIT4args) -> p.COMMIT4resok:
    """Put unstable writes on stable storage, for who might have made them."""
    node = await c.node(changing=True)
    regular(c, node)
    if args.offset + args.count > 2**64 - 1:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    await c.service.commit(await c.credential(node), node, args.offset, args.count, lambda: _holds_open(c, node))
    return p.COMMIT4resok(writeverf=c.service.write_verifier)


def _holds_open(c: Compound, node: Node) -> bool:
    """Whether the caller has the file open for writing: its WRITEs are carried out, and so must be their COMMIT."""
    file = c.engine.opens.file(node.key)
    if file is None:
        return False
    descriptors = [state.opened for state in file.opens] + [state.opened for state in file.delegations]
    return any(one is not None and one.serving(c.call.credential, write=True) is not None for one in descriptors)


@operation(p.OP_READLINK)
async def readlink(c: Compound) -> p.READLINK4resok:
    """The text of a symbolic link."""
    node = await c.node()
    if node.type is not FileType.LNK:
        raise Nfs4Error(p.NFS4ERR_WRONG_TYPE if c.minor else p.NFS4ERR_INVAL)
    text = await c.service.readlink(await c.credential(node), node)
    return p.READLINK4resok(link=Payload(memoryview(text)))
