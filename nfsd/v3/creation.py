"""CREATE, MKDIR, SYMLINK, MKNOD (RFC 1813 sections 3.3.8 to 3.3.11): new files.

Owns these procedures; imports the declarations, the conversions and the request.

A creator that names no mode gets mode 0, as from Linux's server: the client sets the mode afterwards (it must after an
EXCLUSIVE CREATE, which carries none), and until then only the owner may touch the file.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol.nfs3 import (
    NFSPROC3_CREATE,
    NFSPROC3_MKDIR,
    NFSPROC3_MKNOD,
    NFSPROC3_SYMLINK,
    CREATE3args,
    CREATE3res,
    CREATE3resfail,
    CREATE3resok,
    MKDIR3args,
    MKDIR3res,
    MKDIR3resfail,
    MKDIR3resok,
    MKNOD3args,
    MKNOD3res,
    MKNOD3resfail,
    MKNOD3resok,
    SYMLINK3args,
    SYMLINK3res,
    SYMLINK3resfail,
    SYMLINK3resok,
    createmode3,
    ftype3,
    nfs_fh3,
    nfsstat3,
    sattr3,
)
from nfsd.v3.convert import device_number, fattr, new_component, set_attributes, wcc, wcc_after
from nfsd.v3.errors import Nfs3Error
from nfsd.v3.request import Aftermath, Operation, Request
from nfsd.vfs.types import SetAttributes


async def create3(request: Request, args: CREATE3args) -> CREATE3res:
    """Create a regular file: UNCHECKED takes an existing one, GUARDED refuses it, EXCLUSIVE takes only its own."""
    directory, credential = await request.writable(args.where.dir.data)
    name = new_component(args.where.name)
    how = args.how
    verifier: bytes | None = None
    if how.mode == createmode3.EXCLUSIVE:
        attributes = SetAttributes(mode=0)
        verifier = how.verf
    else:
        attributes = _initial(how.obj_attributes)
    exclusive = how.mode != createmode3.UNCHECKED
    # An existing file may be truncated.
    existing = [] if exclusive else await request.named(credential, (directory, name))
    async with request.changing(*existing):
        node, made, change, _ = await request.service.create(
            credential, directory, name, attributes, exclusive=exclusive, verifier=verifier
        )
    return CREATE3res(nfsstat3.NFS3_OK, resok=CREATE3resok(nfs_fh3(node.handle), fattr(made), wcc(change)))


def _create3_failed(status: nfsstat3, after: Aftermath) -> CREATE3res:
    return CREATE3res(status, resfail=CREATE3resfail(wcc_after(after[0])))


async def mkdir3(request: Request, args: MKDIR3args) -> MKDIR3res:
    """Create a directory."""
    directory, credential = await request.writable(args.where.dir.data)
    name = new_component(args.where.name)
    node, made, change = await request.service.mkdir(credential, directory, name, _initial(args.attributes))
    return MKDIR3res(nfsstat3.NFS3_OK, resok=MKDIR3resok(nfs_fh3(node.handle), fattr(made), wcc(change)))


def _mkdir3_failed(status: nfsstat3, after: Aftermath) -> MKDIR3res:
    return MKDIR3res(status, resfail=MKDIR3resfail(wcc_after(after[0])))


async def symlink3(request: Request, args: SYMLINK3args) -> SYMLINK3res:
    """Create a symbolic link; its text is stored as it comes."""
    directory, credential = await request.writable(args.where.dir.data)
    name = new_component(args.where.name)
    target = bytes(args.symlink.symlink_data)
    if not target or b"\0" in target:
        # No local file system can keep these: symlink(2) has ENOENT for an empty text and cannot be told of a NUL.
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    node, made, change = await request.service.symlink(
        credential, directory, name, target, set_attributes(args.symlink.symlink_attributes)
    )
    return SYMLINK3res(nfsstat3.NFS3_OK, resok=SYMLINK3resok(nfs_fh3(node.handle), fattr(made), wcc(change)))


def _symlink3_failed(status: nfsstat3, after: Aftermath) -> SYMLINK3res:
    return SYMLINK3res(status, resfail=SYMLINK3resfail(wcc_after(after[0])))


async def mknod3(request: Request, args: MKNOD3args) -> MKNOD3res:
    """Create a device, socket or FIFO."""
    directory, credential = await request.writable(args.where.dir.data)
    name = new_component(args.where.name)
    what = args.what
    if what.type in (ftype3.NF3CHR, ftype3.NF3BLK) and what.device is not None:
        attributes, rdev = _initial(what.device.dev_attributes), device_number(what.device.spec)
    elif what.type in (ftype3.NF3SOCK, ftype3.NF3FIFO) and what.pipe_attributes is not None:
        attributes, rdev = _initial(what.pipe_attributes), (0, 0)
    else:
        raise Nfs3Error(nfsstat3.NFS3ERR_BADTYPE)
    node, made, change = await request.service.mknod(credential, directory, name, int(what.type), rdev, attributes)
    return MKNOD3res(nfsstat3.NFS3_OK, resok=MKNOD3resok(nfs_fh3(node.handle), fattr(made), wcc(change)))


def _mknod3_failed(status: nfsstat3, after: Aftermath) -> MKNOD3res:
    return MKNOD3res(status, resfail=MKNOD3resfail(wcc_after(after[0])))


def _initial(attributes: sattr3 | None) -> SetAttributes:
    return SetAttributes(mode=0) if attributes is None else set_attributes(attributes, default_mode=0)


OPERATIONS: Final = (
    Operation(NFSPROC3_CREATE, create3, _create3_failed),
    Operation(NFSPROC3_MKDIR, mkdir3, _mkdir3_failed),
    Operation(NFSPROC3_SYMLINK, symlink3, _symlink3_failed),
    Operation(NFSPROC3_MKNOD, mknod3, _mknod3_failed),
)
