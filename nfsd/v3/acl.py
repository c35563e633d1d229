"""NFS_ACL version 3: GETACL and SETACL for NFSv3 clients, which Linux mounts use unless told ``noacl``.

Owns the two procedures and the translation of entries; imports the declarations and the request. It behaves as Linux's
server, whose peculiarities clients rely on:

* an ACL that says no more than the mode is sent with a mask equal to the group's permissions, and four entries with
  such a mask are taken for such an ACL (Solaris knows no ACL without a mask);
* entries for owner and group carry the file's uid and gid;
* a default ACL of a file that is no directory is empty.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any, Final

from nfsd.exports import ExportTable
from nfsd.protocol import nfsacl as a
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.v3.convert import fattr
from nfsd.v3.errors import Nfs3Error
from nfsd.v3.request import Aftermath, Delegations, Limits, Operation, Request
from nfsd.vfs import posix_acl
from nfsd.vfs.posix_acl import AclEntry, AclTag, PosixAcl
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Attributes, FileType, SetAttributes
from rpcrdma.rpc.program import Call, Procedure, Program

_NAMED: Final = (AclTag.USER, AclTag.GROUP)


def _entries(acl: PosixAcl, attributes: Attributes, flag: int) -> list[a.aclent]:
    if len(acl) == 3:
        acl = posix_acl.in_order((*acl, AclEntry(AclTag.MASK, acl[1].permissions)))
    ids = {AclTag.USER_OBJ: attributes.uid, AclTag.GROUP_OBJ: attributes.gid, AclTag.MASK: 0, AclTag.OTHER: 0}
    return [
        a.aclent(tag | flag, number if tag in _NAMED else ids[AclTag(tag)], permissions)
        for tag, permissions, number in acl
    ]


def _acl(count: int, entries: list[a.aclent]) -> PosixAcl:
    """The ACL a client sent. Raises Nfs3Error(INVAL) for one the kernel would not take."""
    found = []
    for entry in entries:
        tag = entry.type & ~a.NFS_ACL_DEFAULT
        # Solaris sometimes sets more bits in a mask.
        permissions = entry.perm & 7 if tag == AclTag.MASK else entry.perm
        found.append(AclEntry(tag, permissions, entry.id if tag in _NAMED else posix_acl.NO_ID))
    acl = posix_acl.in_order(found)
    if count != len(entries) or (acl and not posix_acl.is_valid(acl)):
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    if len(acl) == 4:
        without = tuple(entry for entry in acl if entry.tag != AclTag.MASK)
        mask = next((entry for entry in acl if entry.tag == AclTag.MASK), None)
        group = next(entry for entry in acl if entry.tag == AclTag.GROUP_OBJ)
        if mask is not None and mask.permissions == group.permissions:
            return without
    return acl


def _check_mask(mask: int) -> None:
    if mask & ~a.NFS_ACL_MASK:
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)


def _check_lists(args: a.SETACL3args) -> None:
    """INVAL for what would be dropped in silence: entries of a list that the mask does not name, and entries of a
    default ACL among those for access."""
    acl = args.acl
    if (acl.aclents and not args.mask & a.NFS_ACL) or (acl.dfaclents and not args.mask & a.NFS_DFACL):
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    if any(entry.type & a.NFS_ACL_DEFAULT for entry in acl.aclents):
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)


async def _check_supported(request: Request, node: Node) -> None:
    if not await request.service.supports_acls(node) or node.type is FileType.LNK:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


async def getacl3(request: Request, args: a.GETACL3args) -> a.GETACL3res:
    """A file's ACLs, or how many entries they have."""
    node, _ = await request.resolve(args.fh.data)
    _check_mask(args.mask)
    await _check_supported(request, node)
    attributes = await request.service.attributes(node)
    acls = await request.service.acls(node)
    access = default = []
    if args.mask & (a.NFS_ACL | a.NFS_ACLCNT):
        access = _entries(acls.access, attributes, 0)
    if args.mask & (a.NFS_DFACL | a.NFS_DFACLCNT) and acls.default:
        default = _entries(acls.default, attributes, a.NFS_ACL_DEFAULT)
    if max(len(access), len(default)) > a.NFS_ACL_MAX_ENTRIES:
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    shown = a.secattr(
        len(access), access if args.mask & a.NFS_ACL else [], len(default), default if args.mask & a.NFS_DFACL else []
    )
    return a.GETACL3res(nfsstat3.NFS3_OK, resok=a.GETACL3resok(fattr(attributes), args.mask, shown))


def _getacl3_failed(status: nfsstat3, after: Aftermath) -> a.GETACL3res:
    return a.GETACL3res(status, resfail=a.GETACL3resfail(after))


async def setacl3(request: Request, args: a.SETACL3args) -> a.SETACL3res:
    """Set the ACLs that the mask names, on the disk before the reply."""
    node, credential = await request.writable(args.fh.data)
    _check_mask(args.mask)
    await _check_supported(request, node)
    _check_lists(args)
    access = _acl(args.acl.aclcnt, args.acl.aclents) if args.mask & a.NFS_ACL else None
    default = _acl(args.acl.dfaclcnt, args.acl.dfaclents) if args.mask & a.NFS_DFACL else None
    if node.type is not FileType.DIR and not default:
        default = None  # there is none to remove; to set one the kernel answers EACCES
    wanted = SetAttributes(access_acl=access, default_acl=default)
    async with request.changing(node):
        change = await request.service.set_attributes(credential, node, wanted)
    return a.SETACL3res(nfsstat3.NFS3_OK, resok=a.SETACL3resok(fattr(change.after)))


def _setacl3_failed(status: nfsstat3, after: Aftermath) -> a.SETACL3res:
    return a.SETACL3res(status, resfail=a.SETACL3resfail(after))


_GETACL: Final = Operation(a.ACLPROC3_GETACL, getacl3, _getacl3_failed)
_SETACL: Final = Operation(a.ACLPROC3_SETACL, setacl3, _setacl3_failed)


async def null(call: Call, arguments: None) -> None:
    """Answer, and do no work at all: how clients find out whether the program is there."""


def nfsacl_program(
    service: FileService,
    exports: ExportTable,
    limits: Limits | None = None,
    delegations: Delegations | None = None,
) -> Program:
    """The NFS_ACL program for the dispatcher that serves NFS. ``delegations``: those of NFSv4, if it is served too."""
    sizes = limits or Limits()

    def procedure(name: str, operation: Operation, arguments: Any, results: Any) -> Procedure:
        async def handler(call: Call, given: Any) -> Any:
            return await operation.handle(Request(service, exports, sizes, call, delegations), given)

        return Procedure(name, handler, arguments, results)

    table: Mapping[int, Procedure] = {
        a.ACLPROC3_NULL: Procedure("NULL", null),
        a.ACLPROC3_GETACL: procedure("GETACL", _GETACL, a.GETACL3args, a.GETACL3res),
        a.ACLPROC3_SETACL: procedure("SETACL", _SETACL, a.SETACL3args, a.SETACL3res),
    }
    return Program(a.NFSACL_PROGRAM, "nfsacl", {a.NFSACL_V3: table})
