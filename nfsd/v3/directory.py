"""READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).

Owns these procedures; imports the declarations, the conversions and the request. The entries are encoded where they are
read (:mod:`nfsd.v3.listing`); only what is on another mount than its directory is completed here.

A listing never exceeds the size the client names: every entry's octets on the wire are counted. What does not fit is
left for the next call.
"""

from __future__ import annotations

from typing import Final

from nfsd.listed import Listed
from nfsd.protocol.nfs3 import (
    NFSPROC3_READDIR,
    NFSPROC3_READDIRPLUS,
    READDIR3args,
    READDIR3res,
    READDIR3resfail,
    READDIRPLUS3args,
    READDIRPLUS3res,
    READDIRPLUS3resfail,
    entryplus3,
    fattr3,
    nfs_fh3,
    nfsstat3,
)
from nfsd.v3.convert import FATTR3_SIZE, fattr
from nfsd.v3.errors import DIRECTORY_EXCEPTIONS, Nfs3Error
from nfsd.v3.listing import ENTRY_SIZE, Listing3
from nfsd.v3.request import Aftermath, Operation, Request
from nfsd.vfs.listings import VERIFIER
from nfsd.vfs.types import DirectoryEntry
from rpcrdma.rpc.program import ENCODED, Encoded
from rpcrdma.xdr import Encoder

_NO_VERIFIER: Final = bytes(8)

_FRAME_SIZE: Final = 4 + FATTR3_SIZE + 8 + 4 + 4
"""Octets of the resok besides the entries: dir_attributes, cookieverf, the list's end, eof. Room for attributes is kept
before it is known whether they can be had: they come last, to be the latest."""


async def readdir3(request: Request, args: READDIR3args) -> Encoded:
    """Names and file ids, in at most ``count`` octets."""
    room = min(args.count, request.limits.directory_max) - _FRAME_SIZE
    return await _list(request, args, Listing3(room, plus=False), room)


def _readdir3_failed(status: nfsstat3, after: Aftermath) -> READDIR3res:
    return READDIR3res(status, resfail=READDIR3resfail(after))


async def readdirplus3(request: Request, args: READDIRPLUS3args) -> Encoded:
    """Names with attributes and handles: at most ``maxcount`` octets, and ``dircount`` of them without the two.

    ``dircount`` is a wish of the client's about the work done, so the first entry goes out in any case."""
    room = min(args.maxcount, request.limits.directory_max) - _FRAME_SIZE
    return await _list(request, args, Listing3(room, args.dircount, plus=True), room)


def _readdirplus3_failed(status: nfsstat3, after: Aftermath) -> READDIRPLUS3res:
    return READDIRPLUS3res(status, resfail=READDIRPLUS3resfail(after))


async def _list(request: Request, args: READDIR3args | READDIRPLUS3args, listing: Listing3, room: int) -> Encoded:
    """Raises Nfs3Error(NFS3ERR_TOOSMALL) when there is no room for any entry. That holds for a listing that would be
    empty anyhow, too: not even its frame may exceed the size."""
    directory, credential = await request.resolve(args.dir.data)
    call = request.call
    listed = Listed(call.transport, call.lease, listing, max(room, 0))

    async def complete(entry: DirectoryEntry) -> bool:
        return await listed.add(_entryplus(entry), ENTRY_SIZE + (len(entry.name) + 3 & ~3))

    with listed:
        end = await listed.fill(request.service, credential, directory, args.cookie, complete)
        _check_verifier(args.cookie, args.cookieverf)
        if not listing.taken and (room < 0 or not end):
            raise Nfs3Error(nfsstat3.NFS3ERR_TOOSMALL)
        attributes = await request.after(directory)
    results = call.results
    results.uint32(nfsstat3.NFS3_OK)
    results.boolean(attributes is not None)
    if attributes is not None:
        results.encode(fattr3, attributes)
    results.fixed(VERIFIER)
    listed.put(results)
    results.boolean(False)
    results.boolean(end)
    return ENCODED


def _check_verifier(cookie: int, given: bytes) -> None:
    """Raise Nfs3Error(NFS3ERR_BAD_COOKIE) if the cookie was acquired under another verifier (section 3.3.16).

    Zeros pass: a client that comes back to a position it remembers from an earlier opening (seekdir) may have no
    verifier any more, and our cookies stay good as long as the directory exists."""
    if cookie and given not in (VERIFIER, _NO_VERIFIER):
        raise Nfs3Error(nfsstat3.NFS3ERR_BAD_COOKIE)


def _entryplus(entry: DirectoryEntry) -> bytes:
    """An entryplus3, with the link before it."""
    handle = None if entry.handle is None else nfs_fh3(entry.handle)
    attributes = None if entry.attributes is None else fattr(entry.attributes)
    encoder = Encoder()
    encoder.boolean(True)
    encoder.encode(entryplus3, entryplus3(entry.fileid, entry.name, entry.cookie, attributes, handle))
    return encoder.getvalue()


OPERATIONS: Final = (
    Operation(NFSPROC3_READDIR, readdir3, _readdir3_failed, exceptions=DIRECTORY_EXCEPTIONS),
    Operation(NFSPROC3_READDIRPLUS, readdirplus3, _readdirplus3_failed, exceptions=DIRECTORY_EXCEPTIONS),
)
