"""LOOKUP, REMOVE, RMDIR, RENAME, LINK (RFC 1813 sections 3.3.3, 3.3.12 to 3.3.15): names of files that exist.

Owns these procedures; imports the declarations, the conversions and the request.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol.nfs3 import (
    NFSPROC3_LINK,
    NFSPROC3_LOOKUP,
    NFSPROC3_REMOVE,
    NFSPROC3_RENAME,
    NFSPROC3_RMDIR,
    LINK3args,
    LINK3res,
    LINK3resfail,
    LINK3resok,
    LOOKUP3args,
    LOOKUP3res,
    LOOKUP3resfail,
    LOOKUP3resok,
    REMOVE3args,
    REMOVE3res,
    REMOVE3resfail,
    REMOVE3resok,
    RENAME3args,
    RENAME3res,
    RENAME3resfail,
    RENAME3resok,
    RMDIR3args,
    RMDIR3res,
    RMDIR3resfail,
    RMDIR3resok,
    nfs_fh3,
    nfsstat3,
)
from nfsd.v3.convert import component, fattr, new_component, wcc, wcc_after
from nfsd.v3.errors import Nfs3Error
from nfsd.v3.request import Aftermath, Operation, Request


async def lookup3(request: Request, args: LOOKUP3args) -> LOOKUP3res:
    """The file of a name; ``..`` of the export's root is the root itself."""
    directory, credential = await request.resolve(args.what.dir.data)
    node, attributes = await request.service.lookup(credential, directory, component(args.what.name))
    after = await request.after(directory)
    return LOOKUP3res(nfsstat3.NFS3_OK, resok=LOOKUP3resok(nfs_fh3(node.handle), fattr(attributes), after))


def _lookup3_failed(status: nfsstat3, after: Aftermath) -> LOOKUP3res:
    return LOOKUP3res(status, resfail=LOOKUP3resfail(after[0]))


async def remove3(request: Request, args: REMOVE3args) -> REMOVE3res:
    """Remove a name that is no directory's."""
    directory, credential = await request.writable(args.object.dir.data)
    name = component(args.object.name)
    if name in (b".", b".."):
        raise Nfs3Error(nfsstat3.NFS3ERR_ISDIR)
    async with request.changing(*await request.named(credential, (directory, name))):
        change = await request.service.remove(credential, directory, name, directory_wanted=False)
    return REMOVE3res(nfsstat3.NFS3_OK, resok=REMOVE3resok(wcc(change)))


def _remove3_failed(status: nfsstat3, after: Aftermath) -> REMOVE3res:
    return REMOVE3res(status, resfail=REMOVE3resfail(wcc_after(after[0])))


async def rmdir3(request: Request, args: RMDIR3args) -> RMDIR3res:
    """Remove an empty directory."""
    directory, credential = await request.writable(args.object.dir.data)
    name = component(args.object.name)
    if name == b".":  # These two statuses are section 3.3.13's, IMPLEMENTATION.
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    if name == b"..":
        raise Nfs3Error(nfsstat3.NFS3ERR_EXIST)
    change = await request.service.remove(credential, directory, name, directory_wanted=True)
    return RMDIR3res(nfsstat3.NFS3_OK, resok=RMDIR3resok(wcc(change)))


def _rmdir3_failed(status: nfsstat3, after: Aftermath) -> RMDIR3res:
    return RMDIR3res(status, resfail=RMDIR3resfail(wcc_after(after[0])))


async def rename3(request: Request, args: RENAME3args) -> RENAME3res:
    """Rename, replacing a compatible file of the new name in one step.

    A directory that is not empty in the way is NFS3ERR_NOTEMPTY, as Linux clients and programs expect from rename();
    section 3.3.14 would rather have NFS3ERR_EXIST, but lists both."""
    source, credential = await request.writable(args.from_.dir.data)
    target, _ = await request.writable(args.to.dir.data)
    old, new = component(args.from_.name), component(args.to.name)
    if old in (b".", b"..") or new in (b".", b".."):  # section 3.3.14, IMPLEMENTATION
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    if source.export.id != target.export.id:
        raise Nfs3Error(nfsstat3.NFS3ERR_XDEV)
    async with request.changing(*await request.named(credential, (source, old), (target, new))):
        left, entered = await request.service.rename(credential, source, old, target, new)
    return RENAME3res(nfsstat3.NFS3_OK, resok=RENAME3resok(wcc(left), wcc(entered)))


def _rename3_failed(status: nfsstat3, after: Aftermath) -> RENAME3res:
    return RENAME3res(status, resfail=RENAME3resfail(wcc_after(after[0]), wcc_after(after[1])))


async def link3(request: Request, args: LINK3args) -> LINK3res:
    """A further name for a file."""
    node, _ = await request.writable(args.file.data)
    directory, credential = await request.writable(args.link.dir.data)
    name = new_component(args.link.name)
    if node.export.id != directory.export.id:
        raise Nfs3Error(nfsstat3.NFS3ERR_XDEV)
    async with request.changing(node):
        attributes, change = await request.service.link(credential, node, directory, name)
    return LINK3res(nfsstat3.NFS3_OK, resok=LINK3resok(fattr(attributes), wcc(change)))


def _link3_failed(status: nfsstat3, after: Aftermath) -> LINK3res:
    return LINK3res(status, resfail=LINK3resfail(after[0], wcc_after(after[1])))


OPERATIONS: Final = (
    Operation(NFSPROC3_LOOKUP, lookup3, _lookup3_failed),
    Operation(NFSPROC3_REMOVE, remove3, _remove3_failed),
    Operation(NFSPROC3_RMDIR, rmdir3, _rmdir3_failed),
    Operation(NFSPROC3_RENAME, rename3, _rename3_failed),
    Operation(NFSPROC3_LINK, link3, _link3_failed),
)
