"""SETATTR (RFC 1813 section 3.3.2), where it is not answered natively.

Owns this procedure; imports the declarations, the conversions and the request.
"""

from __future__ import annotations

import errno
from typing import Final

from nfsd.protocol.nfs3 import (
    NFSPROC3_SETATTR,
    SETATTR3args,
    SETATTR3res,
    SETATTR3resfail,
    SETATTR3resok,
    nfsstat3,
)
from nfsd.v3.convert import set_attributes, wcc, wcc_after
from nfsd.v3.errors import Nfs3Error
from nfsd.v3.request import Aftermath, Operation, Request


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


OPERATIONS: Final = (Operation(NFSPROC3_SETATTR, setattr3, _setattr3_failed),)
