"""CREATE, REMOVE, RENAME, LINK.

RFC 7530 sections 16.4, 16.9, 16.26, 16.27; RFC 8881 sections 18.4, 18.9, 18.25, 18.26.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.attributes import mask_of, words_of
from nfsd.v4.compound import Compound
from nfsd.v4.names import check_name
from nfsd.v4.operations import operation
from nfsd.v4.ops.attributes import given_attributes
from nfsd.vfs.service import Node
from nfsd.vfs.types import Change, Credential, FileType

_DEVICES = {p.nfs_ftype4.NF4BLK: FileType.BLK, p.nfs_ftype4.NF4CHR: FileType.CHR}
_SPECIAL = {p.nfs_ftype4.NF4SOCK: FileType.SOCK, p.nfs_ftype4.NF4FIFO: FileType.FIFO}


def change_info(change: Change) -> p.change_info4:
    """The change of a directory; nothing of ours came between, hence atomic."""
    return p.change_info4(atomic=True, before=change.before.change, after=change.after.change)


@contextlib.asynccontextmanager
async def undelegated(c: Compound, credential: Credential, *places: tuple[Node, bytes]) -> AsyncIterator[None]:
    """Around an operation that takes or moves names: other clients' delegations of the files are recalled first, since
    their holders rely on the names too (RFC 8881 section 10.4.1), and none is given meanwhile. Raises DELAY."""
    if not c.engine.delegations.count:
        yield
        return
    with contextlib.ExitStack() as holds:
        for directory, name in places:
            try:
                node, _ = await c.service.lookup(credential, directory, name)
            except OSError:
                continue  # the operation itself will say so
            holds.enter_context(c.server.recalls.hold(node.key))
            await c.server.recalls.clear(node.key, c.client, write=True)
        yield


@operation(p.OP_CREATE, changes=True)
async def create(c: Compound, args: p.CREATE4args) -> p.CREATE4resok:
    """Create anything but a regular file, and go there."""
    check_name(args.objname)
    directory = await c.node(changing=True)
    kind, name = args.objtype.type, args.objname
    mask = mask_of(args.createattrs.attrmask)
    made = FileType(int(kind)) if kind in FileType._value2member_map_ else FileType.REG
    attributes = await given_attributes(c, args.createattrs, directory, made)
    credential = await c.credential(directory)
    if kind == p.nfs_ftype4.NF4DIR:
        node, _, change = await c.service.mkdir(credential, directory, name, attributes)
    elif kind == p.nfs_ftype4.NF4LNK:
        target = bytes(args.objtype.linkdata or b"")
        if not target:
            raise Nfs4Error(p.NFS4ERR_INVAL)
        node, _, change = await c.service.symlink(credential, directory, name, target, attributes)
    elif kind in _DEVICES and args.objtype.devdata is not None:
        device = (args.objtype.devdata.specdata1, args.objtype.devdata.specdata2)
        node, _, change = await c.service.mknod(credential, directory, name, _DEVICES[kind], device, attributes)
    elif kind in _SPECIAL:
        node, _, change = await c.service.mknod(credential, directory, name, _SPECIAL[kind], (0, 0), attributes)
    else:
        raise Nfs4Error(p.NFS4ERR_BADTYPE)
    c.go(node)
    return p.CREATE4resok(cinfo=change_info(change), attrset=words_of(mask))


@operation(p.OP_REMOVE, changes=True)
async def remove(c: Compound, args: p.REMOVE4args) -> p.REMOVE4resok:
    """Remove a name, whatever it stands for."""
    check_name(args.target)
    directory = await c.node(changing=True)
    credential = await c.credential(directory)
    async with undelegated(c, credential, (directory, args.target)):
        change = await c.service.remove(credential, directory, args.target, directory_wanted=None)
    return p.REMOVE4resok(cinfo=change_info(change))


@operation(p.OP_RENAME, changes=True)
async def rename(c: Compound, args: p.RENAME4args) -> p.RENAME4resok:
    """Rename from the saved directory to the current one."""
    check_name(args.oldname)
    check_name(args.newname)
    source = await c.saved_node(changing=True)
    target = await c.node(changing=True)
    credential = await c.credential(target)
    try:
        async with undelegated(c, credential, (source, args.oldname), (target, args.newname)):
            old, new = await c.service.rename(credential, source, args.oldname, target, args.newname)
    except IsADirectoryError:
        raise Nfs4Error(p.NFS4ERR_EXIST) from None  # RFC 8881 section 18.26.3: a directory and a file do not fit
    return p.RENAME4resok(source_cinfo=change_info(old), target_cinfo=change_info(new))


@operation(p.OP_LINK, changes=True)
async def link(c: Compound, args: p.LINK4args) -> p.LINK4resok:
    """Give the saved file a further name in the current directory."""
    check_name(args.newname)
    node = await c.saved_node(changing=True)
    directory = await c.node(changing=True)
    with c.server.recalls.hold(node.key):
        await c.server.recalls.clear(node.key, c.client, write=True)
        _, change = await c.service.link(await c.credential(directory), node, directory, args.newname)
    return p.LINK4resok(cinfo=change_info(change))
