"""READDIR (RFC 7530 section 16.24, RFC 8881 section 18.23).

Entries with attributes that follow from a ``struct statx`` are encoded where they are read (:mod:`nfsd.v4.listing`).
All others, and those of the pseudo file system, are encoded here, from the facts that GETATTR has.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from typing import NamedTuple

from nfsd.listed import Listed
from nfsd.matching import peer_of
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4 import attributes
from nfsd.v4.arrivals import place_of
from nfsd.v4.attributes import Facts, mask_of
from nfsd.v4.compound import Compound
from nfsd.v4.errors import status_of
from nfsd.v4.facts import facts_of, learn_names
from nfsd.v4.listing import Listing4, native
from nfsd.v4.operations import ENCODED, Encoded, operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.versions import of_minor
from nfsd.vfs.listings import VERIFIER, ListingFailed
from nfsd.vfs.service import Node
from nfsd.vfs.types import DirectoryEntry, FileSystemStatus, FileType, PathLimits
from rpcrdma.xdr import Encoder

_RESULT_FIXED = 8 + 4 + 4
"""Verifier, end of list, eof: READDIR4resok without entries, which is what maxcount bounds."""
_STATUS = 4
_FIRST_PSEUDO_COOKIE = 3
_PAGE, _PAGE_OF_NODES = 32, 8
"""Entries encoded here before other calls have their turn: about a millisecond's work."""


class _Entry(NamedTuple):
    name: bytes
    cookie: int
    facts: Facts | None
    """None: the attributes cannot be had, for ``error``."""
    error: int = p.NFS4ERR_STALE


@operation(p.OP_READDIR)
async def readdir(c: Compound, args: p.READDIR4args) -> Encoded:
    """List a directory from a cookie on, within the sizes asked for; ``.`` and ``..`` are left out."""
    if args.cookie in (1, 2):
        raise Nfs4Error(p.NFS4ERR_BAD_COOKIE)
    asked = mask_of(args.attr_request)
    if attributes.write_only(asked, c.minor):
        raise Nfs4Error(p.NFS4ERR_INVAL)
    mask = attributes.readable(asked, c.minor)
    bound = min(args.maxcount, max(0, c.room_left() - _STATUS), c.server.max_transfer)
    if bound < _RESULT_FIXED:
        raise Nfs4Error(p.NFS4ERR_TOOSMALL)
    here = c.here
    if isinstance(here, PseudoNode):
        return await _list(c, args, mask, bound, _pseudo_entries(c, here, args.cookie, mask))
    directory = await c.node()
    if native(mask, numeric=c.server.names.numeric):
        return await _list_natively(c, args, mask, bound, directory)
    return await _list(c, args, mask, bound, _real_entries(c, directory, args.cookie, mask))


async def _list_natively(c: Compound, args: p.READDIR4args, mask: int, bound: int, directory: Node) -> Encoded:
    """List a directory of a real file system with attributes that native code knows."""
    credential = await c.credential(directory)
    if directory.type is not FileType.DIR:
        raise Nfs4Error(p.NFS4ERR_NOTDIR)
    children = await _children(c, directory)
    room = bound - _RESULT_FIXED
    listing = Listing4(mask, room, args.dircount, c.server.facts.lease_time, children)
    listed = Listed(c.call, listing, room)

    async def complete(entry: DirectoryEntry) -> bool:
        child = children.get(entry.name)
        facts: Facts | None = None
        if child is not None:
            facts = await facts_of(c.server, c.asking, await c.listed(child), mask)
        elif entry.attributes is not None:
            facts = Facts(c.server.facts_on(directory.export), c.minor, entry.attributes, entry.handle or b"")
        encoder = Encoder()
        _encode_entry(encoder, mask, _Entry(entry.name, entry.cookie, facts))
        return await listed.add(encoder.getvalue(), _name_octets(entry.name))

    with listed:
        try:
            end = await listed.fill(c.service, credential, directory, args.cookie, complete)
        except ListingFailed as failed:
            raise Nfs4Error(failed.status) from None
        if not listing.taken and not end:
            raise Nfs4Error(p.NFS4ERR_TOOSMALL)
    results = c.call.results
    results.uint32(p.NFS4_OK)
    results.fixed(VERIFIER)
    listed.put()
    results.boolean(False)
    results.boolean(end)
    return ENCODED


async def _children(c: Compound, directory: Node) -> dict[bytes, PseudoNode]:
    """What leads on from a directory in the pseudo file system, as far as this client may see it."""
    place = await place_of(c.server, directory)
    if place is None:
        return {}
    return {
        name: child
        for name, child in place.children.items()
        if c.server.pseudo.visible(child, peer_of(c.call.transport), of_minor(c.minor))
    }


def _name_octets(name: bytes) -> int:
    """What an entry counts against dircount, which bounds names and cookies alone (RFC 8881 section 18.23.3)."""
    return 12 + (len(name) + 3 & ~3)


async def _list(c: Compound, args: p.READDIR4args, mask: int, bound: int, entries: AsyncIterator[_Entry]) -> Encoded:
    """Encode entries until one does not fit any more."""
    results = c.call.results
    results.uint32(p.NFS4_OK)
    start = results.position
    results.fixed(VERIFIER)
    names = written = 0
    eof = True
    async for entry in entries:
        names += _name_octets(entry.name)
        at = results.position
        _encode_entry(results, mask, entry)
        over = results.position - start + 8 > bound or (args.dircount and written and names > args.dircount)
        if over:
            results.truncate(at)
            eof = False
            break
        written += 1
    if not written and not eof:
        raise Nfs4Error(p.NFS4ERR_TOOSMALL)
    results.boolean(False)
    results.boolean(eof)
    return ENCODED


def _encode_entry(results: Encoder, mask: int, entry: _Entry) -> None:
    """An entry4, with the link before it. One whose attributes cannot be had has only the error, if that was asked for;
    else the listing fails with it (RFC 7530 section 16.24.4)."""
    results.boolean(True)
    results.uint64(entry.cookie)
    results.opaque(entry.name)
    if entry.facts is not None:
        attributes.encode(results, mask, entry.facts)
        return
    if not mask & attributes.RDATTR_ERROR:
        raise Nfs4Error(entry.error)
    attributes.encode_mask(results, attributes.RDATTR_ERROR)
    results.uint32(4)
    results.uint32(entry.error)


async def _pseudo_entries(c: Compound, place: PseudoNode, cookie: int, mask: int) -> AsyncIterator[_Entry]:
    for number, child in enumerate(
        c.server.pseudo.children(place, peer_of(c.call.transport), of_minor(c.minor)), _FIRST_PSEUDO_COOKIE
    ):
        if number <= cookie:
            continue
        try:
            facts = await facts_of(c.server, c.asking, await c.listed(child), mask)
        except OSError:
            continue  # an export whose directory is away is not listed
        if facts.error and not mask & attributes.RDATTR_ERROR:
            yield _Entry(child.name, number, None, facts.error)  # RFC 8881 section 11.4.2: the listing fails with it
        yield _Entry(child.name, number, facts)


async def _real_entries(c: Compound, directory: Node, cookie: int, mask: int) -> AsyncIterator[_Entry]:
    credential = await c.credential(directory)
    if directory.type is not FileType.DIR:
        raise Nfs4Error(p.NFS4ERR_NOTDIR)
    children = await _children(c, directory)
    limits: PathLimits | None = None
    status: FileSystemStatus | None = None
    if mask & attributes.NEED_LIMITS:
        limits = await c.service.limits(directory)
    if mask & attributes.NEED_STATUS:
        status = await c.service.status(directory)
    limit = _PAGE_OF_NODES if mask & attributes.NEED_NODE else _PAGE

    def departed() -> bool:
        return c.call.transport.closed

    while True:
        page = await c.service.readdir(credential, directory, cookie, limit=limit, plus=True, gone=departed)
        if not c.server.names.numeric:
            shown = [entry.attributes for entry in page.entries if entry.attributes is not None]
            await learn_names(c.server, mask, shown)
        for entry in page.entries:
            cookie = entry.cookie
            if entry.name in (b".", b".."):
                continue
            facts: Facts | None = None
            error: int = p.NFS4ERR_STALE
            child = children.get(entry.name)
            if child is not None:
                facts = await facts_of(c.server, c.asking, await c.listed(child), mask)
            elif entry.handle is not None and mask & attributes.NEED_NODE:
                try:
                    facts = await facts_of(c.server, c.asking, await c.resolve(entry.handle), mask)
                except OSError as gone:
                    error = status_of(gone)
            elif entry.attributes is not None:
                facts = Facts(
                    c.server.facts_on(directory.export), c.minor, entry.attributes, entry.handle or b"", status, limits
                )
            elif entry.error == errno.ENOENT:
                continue  # it has gone since the directory was read
            elif entry.error:
                error = status_of(OSError(entry.error, ""))
            yield _Entry(entry.name, cookie, facts, error)
        if page.eof:
            return
        await asyncio.sleep(0)
