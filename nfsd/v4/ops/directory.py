"""READDIR (RFC 7530 section 16.24, RFC 8881 section 18.23)."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from typing import NamedTuple

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4 import attributes
from nfsd.v4.attributes import Facts, mask_of
from nfsd.v4.compound import Compound
from nfsd.v4.errors import status_of
from nfsd.v4.operations import ENCODED, Encoded, operation
from nfsd.v4.ops.attributes import facts_of, learn_names
from nfsd.v4.ops.files import place_of
from nfsd.v4.pseudofs import PseudoNode
from nfsd.vfs.service import Node
from nfsd.vfs.types import FileSystemStatus, FileType, PathLimits

_RESULT_FIXED = 8 + 4 + 4
"""Verifier, end of list, eof: READDIR4resok without entries, which is what maxcount bounds."""
_STATUS = 4
_FIRST_PSEUDO_COOKIE = 3
_NO_VERIFIER = bytes(8)
_CHEAP = 1 << p.FATTR4_FILEID | 1 << p.FATTR4_RDATTR_ERROR


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
    return await _list(c, args, mask, bound, _real_entries(c, await c.node(), args, mask, bound))


async def _list(c: Compound, args: p.READDIR4args, mask: int, bound: int, entries: AsyncIterator[_Entry]) -> Encoded:
    """Encode entries until one does not fit any more."""
    results = c.call.results
    results.uint32(p.NFS4_OK)
    start = results.position
    results.fixed(_NO_VERIFIER)
    names = written = 0
    eof = True
    async for entry in entries:
        # dircount bounds names and cookies alone, and is only a hint (RFC 8881 section 18.23.3).
        names += 12 + (len(entry.name) + 3 & ~3)
        at = results.position
        results.boolean(True)
        results.uint64(entry.cookie)
        results.opaque(entry.name)
        if entry.facts is not None:
            attributes.encode(results, mask, entry.facts)
        else:
            _encode_failure(c, mask, entry.error)
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


def _encode_failure(c: Compound, mask: int, error: int) -> None:
    """The attributes of an entry that has none: only the error, if it was asked for; else the listing fails with it
    (RFC 7530 section 16.24.4)."""
    if not mask & attributes.RDATTR_ERROR:
        raise Nfs4Error(error)
    results = c.call.results
    attributes.encode_mask(results, attributes.RDATTR_ERROR)
    results.uint32(4)
    results.uint32(error)


async def _pseudo_entries(c: Compound, place: PseudoNode, cookie: int, mask: int) -> AsyncIterator[_Entry]:
    for number, child in enumerate(
        c.server.pseudo.children(place, c.call.transport.peer_address), _FIRST_PSEUDO_COOKIE
    ):
        if number <= cookie:
            continue
        try:
            facts = await facts_of(c, await c.listed(child), mask)
        except OSError:
            continue  # an export whose directory is away is not listed
        if facts.error and not mask & attributes.RDATTR_ERROR:
            yield _Entry(child.name, number, None, facts.error)  # RFC 8881 section 11.4.2: the listing fails with it
        yield _Entry(child.name, number, facts)


async def _real_entries(
    c: Compound, directory: Node, args: p.READDIR4args, mask: int, bound: int
) -> AsyncIterator[_Entry]:
    credential = await c.credential(directory)
    if directory.type is not FileType.DIR:
        raise Nfs4Error(p.NFS4ERR_NOTDIR)
    place = await place_of(c, directory)
    limits: PathLimits | None = None
    status: FileSystemStatus | None = None
    if mask & attributes.NEED_LIMITS:
        limits = await c.service.limits(directory)
    if mask & attributes.NEED_STATUS:
        status = await c.service.status(directory)
    plus = bool(mask & ~_CHEAP)
    cookie = args.cookie
    # Entries take about 200 octets with the usual attributes: ask for what will fit, and some more.
    limit = max(8, min(bound // (160 if plus else 40), 4096))
    while True:
        page = await c.service.readdir(credential, directory, cookie, limit=limit, plus=True)
        if not c.server.names.numeric:
            await learn_names(c, mask, [entry.attributes for entry in page.entries if entry.attributes is not None])
        for entry in page.entries:
            cookie = entry.cookie
            if entry.name in (b".", b".."):
                continue
            facts: Facts | None = None
            error: int = p.NFS4ERR_STALE
            child = place.children.get(entry.name) if place is not None else None
            if child is not None and c.server.pseudo.visible(child, c.call.transport.peer_address):
                facts = await facts_of(c, await c.listed(child), mask)
            elif entry.handle is not None and mask & attributes.NEED_NODE:
                try:
                    facts = await facts_of(c, await c.resolve(entry.handle), mask)
                except OSError as gone:
                    error = status_of(gone)
            elif entry.attributes is not None:
                facts = Facts(c.server.facts, c.minor, entry.attributes, entry.handle or b"", status, limits)
            elif entry.error == errno.ENOENT:
                continue  # it has gone since the directory was read
            elif entry.error:
                error = status_of(OSError(entry.error, ""))
            yield _Entry(entry.name, cookie, facts, error)
        if page.eof:
            return
