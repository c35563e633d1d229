"""READLINK, READ, WRITE, COMMIT (RFC 1813 sections 3.3.5 to 3.3.7, 3.3.21).

Owns these procedures; imports the declarations, the conversions and the request.

Data is never copied here. READ has the file service fill a buffer of the transport, which travels in the result as a
payload and is released by the transport; WRITE hands on the octets where the transport left them.

A cancelled call (the server is going down and has waited long enough) gives back neither its buffer nor its descriptor:
a worker may still be using both, and in other hands they would corrupt data. The buffer returns to its pool once nobody
refers to it; the descriptor lives as long as the process.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol.nfs3 import (
    NFSPROC3_COMMIT,
    NFSPROC3_READ,
    NFSPROC3_READLINK,
    NFSPROC3_WRITE,
    COMMIT3args,
    COMMIT3res,
    COMMIT3resfail,
    COMMIT3resok,
    READ3args,
    READ3res,
    READ3resfail,
    READ3resok,
    READLINK3args,
    READLINK3res,
    READLINK3resfail,
    READLINK3resok,
    WRITE3args,
    WRITE3res,
    WRITE3resfail,
    WRITE3resok,
    fattr3,
    nfsstat3,
    stable_how,
)
from nfsd.v3.convert import OFFSET_MAX, fattr, wcc, wcc_after
from nfsd.v3.errors import DATA_EXCEPTIONS, Nfs3Error
from nfsd.v3.request import Aftermath, Operation, Request
from nfsd.vfs.service import OpenFile
from nfsd.vfs.types import Change, FileType, Stability
from rpcrdma.xdr.payload import Payload

_NO_DATA: Final = memoryview(b"")


async def readlink3(request: Request, args: READLINK3args) -> READLINK3res:
    """The text of a symbolic link."""
    node, credential = await request.resolve(args.symlink.data)
    text = await request.service.readlink(credential, node)
    after = await request.after(node)
    return READLINK3res(nfsstat3.NFS3_OK, resok=READLINK3resok(after, Payload(memoryview(text))))


def _readlink3_failed(status: nfsstat3, after: Aftermath) -> READLINK3res:
    return READLINK3res(status, resfail=READLINK3resfail(after[0]))


async def read3(request: Request, args: READ3args) -> READ3res:
    """Data of a regular file, at most rtmax octets of it."""
    node, credential = await request.resolve(args.file.data)
    async with request.reading(node):
        opened = await request.service.open(credential, node, read=True, write=False)
    try:
        result = await _read_opened(request, opened, args)
    except Exception:
        opened.release()
        raise
    opened.release()
    return result


async def _read_opened(request: Request, opened: OpenFile, args: READ3args) -> READ3res:
    service, node = request.service, opened.node
    # Past the kernel's last offset there is no file, so that is its end (section 3.3.6, offset), not an error.
    offset = min(args.offset, OFFSET_MAX)
    count = min(args.count, request.limits.read_max, OFFSET_MAX - offset)
    if count == 0:
        attributes = await service.attributes(node)
        return _read3_done(fattr(attributes), Payload(_NO_DATA), offset >= attributes.size)
    lease = await request.call.transport.lease(count)
    try:
        done, eof = await service.read(opened, offset, lease.view[:count])
        after = await request.after(node)
    except Exception:
        lease.release()
        raise
    request.transferred(read=done)
    return _read3_done(after, Payload(lease.view[:done], lease), eof)


def _read3_done(after: fattr3 | None, payload: Payload, eof: bool) -> READ3res:
    return READ3res(nfsstat3.NFS3_OK, resok=READ3resok(after, len(payload), eof, payload))


def _read3_failed(status: nfsstat3, after: Aftermath) -> READ3res:
    return READ3res(status, resfail=READ3resfail(after[0]))


async def write3(request: Request, args: WRITE3args) -> WRITE3res:
    """Write data, at most wtmax octets of it, as stably as asked."""
    node, credential = await request.writable(args.file.data)
    source = args.data
    if len(source) != args.count:
        # The RFC leaves open what disagreeing counts mean; writing either number of octets could destroy data.
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    count = min(args.count, request.limits.write_max)
    if args.offset > OFFSET_MAX - count:
        raise Nfs3Error(nfsstat3.NFS3ERR_FBIG)
    service = request.service
    # Taken before the data is handed over: should its write-back fail meanwhile, the client's COMMIT finds another
    # verifier, and the client sends the data again. The later verifier would vouch for data already lost.
    verifier = service.write_verifier
    async with request.changing(node):
        opened = await service.open(credential, node, read=False, write=True)
        try:
            if count == 0:
                # Succeeds if the caller may write, and leaves mtime alone (section 3.3.7, count and IMPLEMENTATION).
                attributes = await service.attributes(node)
                done, reached, change = 0, Stability.FILE_SYNC, Change(attributes, attributes)
            else:
                done, reached, change = await service.write(
                    opened, args.offset, source[:count], Stability(int(args.stable))
                )
        except Exception:
            opened.release()
            raise
        opened.release()
    request.transferred(written=done)
    return WRITE3res(nfsstat3.NFS3_OK, resok=WRITE3resok(wcc(change), done, stable_how(int(reached)), verifier))


def _write3_failed(status: nfsstat3, after: Aftermath) -> WRITE3res:
    return WRITE3res(status, resfail=WRITE3resfail(wcc_after(after[0])))


async def commit3(request: Request, args: COMMIT3args) -> COMMIT3res:
    """Put written data on stable storage."""
    node, credential = await request.writable(args.file.data)
    if node.type is not FileType.REG:
        raise Nfs3Error(nfsstat3.NFS3ERR_INVAL)
    service = request.service
    change = await service.commit(credential, node, min(args.offset, OFFSET_MAX), args.count)
    # Read after the flush: if the flush of another caller found data lost meanwhile, this client must hear of it too.
    return COMMIT3res(nfsstat3.NFS3_OK, resok=COMMIT3resok(wcc(change), service.write_verifier))


def _commit3_failed(status: nfsstat3, after: Aftermath) -> COMMIT3res:
    return COMMIT3res(status, resfail=COMMIT3resfail(wcc_after(after[0])))


OPERATIONS: Final = (
    Operation(NFSPROC3_READLINK, readlink3, _readlink3_failed),
    Operation(NFSPROC3_READ, read3, _read3_failed, exceptions=DATA_EXCEPTIONS),
    Operation(NFSPROC3_WRITE, write3, _write3_failed, replay=True, exceptions=DATA_EXCEPTIONS),
    Operation(NFSPROC3_COMMIT, commit3, _commit3_failed, exceptions=DATA_EXCEPTIONS),
)
