"""READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).

Owns these procedures; imports the declarations, the conversions and the request.

A listing never exceeds the size the client names: every entry's octets on the wire are counted as the encoder will
write them. What does not fit is left for the next call. One READDIRPLUS looks at as many entries as could fit if their
names were short, so what is looked up for nothing stays a fraction.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol.nfs3 import (
    NFSPROC3_READDIR,
    NFSPROC3_READDIRPLUS,
    READDIR3args,
    READDIR3res,
    READDIR3resfail,
    READDIR3resok,
    READDIRPLUS3args,
    READDIRPLUS3res,
    READDIRPLUS3resfail,
    READDIRPLUS3resok,
    dirlist3,
    dirlistplus3,
    entry3,
    entryplus3,
    fattr3,
    nfs_fh3,
    nfsstat3,
)
from nfsd.v3.convert import FATTR3_SIZE, fattr
from nfsd.v3.errors import DIRECTORY_EXCEPTIONS, Nfs3Error
from nfsd.v3.request import Aftermath, Operation, Request
from nfsd.vfs.types import DirectoryEntry, DirectoryPage

_NO_VERIFIER: Final = bytes(8)

_LIST_SIZE: Final = 8 + 4 + 4
"""Octets of the resok besides dir_attributes and entries: cookieverf, the list's end, eof."""
_ENTRY_SIZE: Final = 4 + 8 + 4 + 8
"""Octets of an entry besides the name: the link before it, fileid, length of the name, cookie."""
_SHORT_NAME: Final = 12
"""Octets of name assumed when deciding how many entries to look at."""


def _post_op_attr_size(attributes: object | None) -> int:
    return 4 if attributes is None else 4 + FATTR3_SIZE


def _entry_size(entry: DirectoryEntry) -> int:
    return _ENTRY_SIZE + ((len(entry.name) + 3) & ~3)


def _plus_size(entry: DirectoryEntry) -> int:
    """Octets that READDIRPLUS adds to an entry: post_op_attr and post_op_fh3."""
    handle = entry.handle
    return _post_op_attr_size(entry.attributes) + (4 if handle is None else 8 + ((len(handle) + 3) & ~3))


def _check_verifier(cookie: int, given: bytes, ours: bytes) -> None:
    """Raise Nfs3Error(NFS3ERR_BAD_COOKIE) if the cookie was acquired under another verifier (section 3.3.16).

    Zeros pass: a client that comes back to a position it remembers from an earlier opening (seekdir) may have no
    verifier any more, and our cookies stay good as long as the directory exists."""
    if cookie and given not in (ours, _NO_VERIFIER):
        raise Nfs3Error(nfsstat3.NFS3ERR_BAD_COOKIE)


async def readdir3(request: Request, args: READDIR3args) -> READDIR3res:
    """Names and file ids, in at most ``count`` octets."""
    directory, credential = await request.resolve(args.dir.data)
    limit = min(args.count, request.limits.directory_max)
    # Room for attributes is kept before it is known whether they can be had: they come last, to be the latest.
    room = limit - _post_op_attr_size(True) - _LIST_SIZE
    page = await request.service.readdir(
        credential, directory, args.cookie, limit=_entries_to_ask_for(room, _ENTRY_SIZE + _SHORT_NAME), plus=False
    )
    _check_verifier(args.cookie, args.cookieverf, page.verifier)
    entries: list[entry3] = []
    for entry in page.entries:
        room -= _entry_size(entry)
        if room < 0:
            break
        entries.append(entry3(entry.fileid, entry.name, entry.cookie))
    eof = _end(page, len(entries), room)
    attributes = await request.after(directory)
    return READDIR3res(nfsstat3.NFS3_OK, resok=READDIR3resok(attributes, page.verifier, dirlist3(entries, eof)))


def _readdir3_failed(status: nfsstat3, after: Aftermath) -> READDIR3res:
    return READDIR3res(status, resfail=READDIR3resfail(after[0]))


async def readdirplus3(request: Request, args: READDIRPLUS3args) -> READDIRPLUS3res:
    """Names with attributes and handles: at most ``maxcount`` octets, and ``dircount`` of them without the two.

    ``dircount`` is a wish of the client's about the work done, so the first entry goes out in any case."""
    directory, credential = await request.resolve(args.dir.data)
    limit = min(args.maxcount, request.limits.directory_max)
    room = limit - _post_op_attr_size(True) - _LIST_SIZE
    names = args.dircount
    # Handles of one file system are about as long as each other, so the directory's own stands for its entries'.
    typical = _ENTRY_SIZE + _SHORT_NAME + 4 + FATTR3_SIZE + 8 + len(directory.handle)
    page = await request.service.readdir(
        credential,
        directory,
        args.cookie,
        limit=min(_entries_to_ask_for(room, typical), _entries_to_ask_for(names, _ENTRY_SIZE + 4)),
        plus=True,
    )
    _check_verifier(args.cookie, args.cookieverf, page.verifier)
    entries: list[entryplus3] = []
    for entry in page.entries:
        size = _entry_size(entry)
        room -= size + _plus_size(entry)
        names -= size
        if room < 0 or (names < 0 and entries):
            break
        entries.append(
            entryplus3(
                entry.fileid,
                entry.name,
                entry.cookie,
                _name_attributes(entry),
                None if entry.handle is None else nfs_fh3(entry.handle),
            )
        )
    eof = _end(page, len(entries), room)
    attributes = await request.after(directory)
    return READDIRPLUS3res(
        nfsstat3.NFS3_OK, resok=READDIRPLUS3resok(attributes, page.verifier, dirlistplus3(entries, eof))
    )


def _readdirplus3_failed(status: nfsstat3, after: Aftermath) -> READDIRPLUS3res:
    return READDIRPLUS3res(status, resfail=READDIRPLUS3resfail(after[0]))


def _name_attributes(entry: DirectoryEntry) -> fattr3 | None:
    return None if entry.attributes is None else fattr(entry.attributes)


def _entries_to_ask_for(room: int, typical: int) -> int:
    return max(1, room // typical)


def _end(page: DirectoryPage, taken: int, room: int) -> bool:
    """Whether the listing is complete. Raises Nfs3Error(NFS3ERR_TOOSMALL) when there is no room for any entry.

    That holds for a listing that would be empty anyhow, too: not even its frame may exceed the size."""
    if room < 0 and taken == 0:
        raise Nfs3Error(nfsstat3.NFS3ERR_TOOSMALL)
    return page.eof and taken == len(page.entries)


OPERATIONS: Final = (
    Operation(NFSPROC3_READDIR, readdir3, _readdir3_failed, exceptions=DIRECTORY_EXCEPTIONS),
    Operation(NFSPROC3_READDIRPLUS, readdirplus3, _readdirplus3_failed, exceptions=DIRECTORY_EXCEPTIONS),
)
