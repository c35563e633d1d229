"""READLINK (RFC 1813 section 3.3.5).

Owns this procedure; imports the declarations, the conversions and the request.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol.nfs3 import (
    NFSPROC3_READLINK,
    READLINK3args,
    READLINK3res,
    READLINK3resfail,
    READLINK3resok,
    nfsstat3,
)
from nfsd.v3.request import Aftermath, Operation, Request
from rpcrdma.xdr.payload import Payload


async def readlink3(request: Request, args: READLINK3args) -> READLINK3res:
    """The text of a symbolic link."""
    node, credential = await request.resolve(args.symlink.data)
    text = await request.service.readlink(credential, node)
    after = await request.after(node)
    return READLINK3res(nfsstat3.NFS3_OK, resok=READLINK3resok(after, Payload(memoryview(text))))


def _readlink3_failed(status: nfsstat3, after: Aftermath) -> READLINK3res:
    return READLINK3res(status, resfail=READLINK3resfail(after[0]))


OPERATIONS: Final = (Operation(NFSPROC3_READLINK, readlink3, _readlink3_failed),)
