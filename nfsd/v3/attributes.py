"""GETATTR, SETATTR, ACCESS (RFC 1813 sections 3.3.1, 3.3.2, 3.3.4), and NULL (section 3.3.0).

Owns these procedures; imports the declarations, the conversions and the request.
"""

from __future__ import annotations

import errno
from typing import Final

from nfsd.protocol.nfs3 import (
    ACCESS3_DELETE,
    ACCESS3_EXTEND,
    ACCESS3_MODIFY,
    NFSPROC3_ACCESS,
    NFSPROC3_GETATTR,
    NFSPROC3_SETATTR,
    ACCESS3args,
    ACCESS3res,
    ACCESS3resfail,
    ACCESS3resok,
    GETATTR3args,
    GETATTR3res,
    GETATTR3resok,
    SETATTR3args,
    SETATTR3res,
    SETATTR3resfail,
    SETATTR3resok,
    nfsstat3,
)
from nfsd.v3.convert import fattr, set_attributes, wcc, wcc_after
from nfsd.v3.errors import Nfs3Error
from nfsd.v3.request import Aftermath, Operation, Request


async def getattr3(request: Request, args: GETATTR3args) -> GETATTR3res:
    """Attributes of a file."""
    node, _ = await request.resolve(args.object.data)
    attributes = await request.service.attributes(node)
    return GETATTR3res(nfsstat3.NFS3_OK, resok=GETATTR3resok(fattr(attributes)))


def _getattr3_failed(status: nfsstat3, after: Aftermath) -> GETATTR3res:
    return GETATTR3res(status)


async def setattr3(request: Request, args: SETATTR3args) -> SETATTR3res:
    """Set attributes, unless the guard shows that the file has changed since the client looked."""
    node, credential = await request.writable(args.object.data)
    wanted = set_attributes(args.new_attributes)
    guard = args.guard
    async with request.changing(node):
        if guard is None:
            change = await request.service.set_attributes(credential, node, wanted)
        else:
            try:
                change = await request.service.set_attributes(
                    credential, node, wanted, guard_ctime=(guard.seconds, guard.nseconds)
                )
            except BlockingIOError as error:
                if error.errno != errno.EAGAIN:
                    raise
                # The file service's word for an unequal ctime (section 3.3.2, guard).
                raise Nfs3Error(nfsstat3.NFS3ERR_NOT_SYNC) from None
    return SETATTR3res(nfsstat3.NFS3_OK, resok=SETATTR3resok(wcc(change)))


def _setattr3_failed(status: nfsstat3, after: Aftermath) -> SETATTR3res:
    return SETATTR3res(status, resfail=SETATTR3resfail(wcc_after(after[0])))


async def access3(request: Request, args: ACCESS3args) -> ACCESS3res:
    """Which of the asked-for rights the caller has."""
    node, credential = await request.resolve(args.object.data)
    granted = await request.service.access(credential, node)
    if request.read_only(node):
        granted &= ~(ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE)
    return ACCESS3res(nfsstat3.NFS3_OK, resok=ACCESS3resok(await request.after(node), granted & args.access))


def _access3_failed(status: nfsstat3, after: Aftermath) -> ACCESS3res:
    return ACCESS3res(status, resfail=ACCESS3resfail(after[0]))


OPERATIONS: Final = (
    Operation(NFSPROC3_GETATTR, getattr3, _getattr3_failed),
    Operation(NFSPROC3_SETATTR, setattr3, _setattr3_failed, replay=True),
    Operation(NFSPROC3_ACCESS, access3, _access3_failed),
)
