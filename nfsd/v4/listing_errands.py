"""What native READDIR has done for it (RFC 7530 section 16.24, RFC 8881 section 18.23).

Owns the errands of :mod:`nfsd.v4.directories`, which judges the arguments and writes the result. Entries with
attributes that follow from a ``struct statx`` are encoded where they are read (:mod:`nfsd.v4.listing`). All others, and
those of the pseudo file system, are encoded here, from the facts that GETATTR has.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import NamedTuple

from nfsd.listed import Listed
from nfsd.matching import peer_of
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4 import attributes
from nfsd.v4.arrivals import arrive, listed, place_of, walked
from nfsd.v4.attributes import Facts
from nfsd.v4.errors import status_of
from nfsd.v4.facts import Asking, facts_of, learn_names
from nfsd.v4.listing import Listing4, native
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.server import Nfs4Server
from nfsd.versions import of_minor
from nfsd.vfs.listings import ListingFailed
from nfsd.vfs.service import Node
from nfsd.vfs.types import Credential, DirectoryEntry, FileSystemStatus, FileType, PathLimits
from rpcrdma.memory import Lease
from rpcrdma.rpc.program import lent_beside
from rpcrdma.xdr import Encoder

_FIRST_PSEUDO_COOKIE = 3
_PAGE, _PAGE_OF_NODES = 32, 8
"""Entries encoded here before other calls have their turn: about a millisecond's work."""

Entries = tuple[Listed | bytes, bool]
"""Entries as they stand in the reply, and whether these were all."""


class Wanted(NamedTuple):
    """What is asked of a directory."""

    cookie: int
    mask: int
    """Attributes that can be read."""
    names: int
    """Octets of names and cookies, but for the first entry's; 0: as many as there are."""
    room: int
    """Octets of entries."""


class _Entry(NamedTuple):
    name: bytes
    cookie: int
    facts: Facts | None
    """None: the attributes cannot be had, for ``error``."""
    error: int = p.NFS4ERR_STALE


async def of_place(server: Nfs4Server, asking: Asking, place: PseudoNode, wanted: Wanted) -> Entries:
    """The entries of a place of the pseudo file system."""
    return await _encoded(wanted, _pseudo_entries(server, asking, place, wanted))


async def of_directory(
    server: Nfs4Server, asking: Asking, credential: Credential, directory: Node, wanted: Wanted,
    lend: Callable[[int], Awaitable[Lease]] | None,
) -> Entries:  # fmt: skip
    """Those of a directory of a real file system. ``lend`` gives memory for many; None: it is to be asked for beside
    what the call holds."""
    if directory.type is not FileType.DIR:
        raise Nfs4Error(p.NFS4ERR_NOTDIR)
    if not native(wanted.mask, numeric=server.names.numeric):
        return await _encoded(wanted, _real_entries(server, asking, credential, directory, wanted))
    children = await _children(server, asking, directory)
    listing = Listing4(wanted.mask, wanted.room, wanted.names, server.facts.lease_time, children)
    transport = asking.transport
    found = Listed(transport, lend or partial(lent_beside, transport), listing, wanted.room)

    async def complete(entry: DirectoryEntry) -> bool:
        child = children.get(entry.name)
        facts: Facts | None = None
        if child is not None:
            facts = await _facts_of_child(server, asking, child, wanted.mask)
        elif entry.attributes is not None:
            facts = Facts(server.facts_on(directory.export), asking.minor, entry.attributes, entry.handle or b"")
        encoder = Encoder()
        _encode_entry(encoder, wanted.mask, _Entry(entry.name, entry.cookie, facts))
        return await found.add(encoder.getvalue(), _name_octets(entry.name))

    with found:
        try:
            end = await found.fill(server.service, credential, directory, wanted.cookie, complete)
        except ListingFailed as failed:
            raise Nfs4Error(failed.status) from None
        if not listing.taken and not end:
            raise Nfs4Error(p.NFS4ERR_TOOSMALL)
    return found, end


async def _children(server: Nfs4Server, asking: Asking, directory: Node) -> dict[bytes, PseudoNode]:
    """What leads on from a directory in the pseudo file system, as far as this client may see it."""
    place = await place_of(server, directory)
    if place is None:
        return {}
    return {
        name: child
        for name, child in place.children.items()
        if server.pseudo.visible(child, peer_of(asking.transport), of_minor(asking.minor))
    }


async def _facts_of_child(server: Nfs4Server, asking: Asking, child: PseudoNode, mask: int) -> Facts:
    return await facts_of(
        server, asking, await listed(server, asking.transport, asking.minor, child, asking.caller), mask
    )


def _name_octets(name: bytes) -> int:
    """What an entry counts against dircount, which bounds names and cookies alone (RFC 8881 section 18.23.3)."""
    return 12 + (len(name) + 3 & ~3)


async def _encoded(wanted: Wanted, entries: AsyncIterator[_Entry]) -> tuple[bytes, bool]:
    """Encode entries until one does not fit any more."""
    results = Encoder()
    names = written = 0
    eof = True
    async for entry in entries:
        names += _name_octets(entry.name)
        at = results.position
        _encode_entry(results, wanted.mask, entry)
        if results.position > wanted.room or (wanted.names and written and names > wanted.names):
            results.truncate(at)
            eof = False
            break
        written += 1
    if not written and not eof:
        raise Nfs4Error(p.NFS4ERR_TOOSMALL)
    return results.getvalue(), eof


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


async def _pseudo_entries(
    server: Nfs4Server, asking: Asking, place: PseudoNode, wanted: Wanted
) -> AsyncIterator[_Entry]:
    children = server.pseudo.children(place, peer_of(asking.transport), of_minor(asking.minor))
    for number, child in enumerate(children, _FIRST_PSEUDO_COOKIE):
        if number <= wanted.cookie:
            continue
        try:
            facts = await _facts_of_child(server, asking, child, wanted.mask)
        except OSError:
            continue  # an export whose directory is away is not listed
        if facts.error and not wanted.mask & attributes.RDATTR_ERROR:
            yield _Entry(child.name, number, None, facts.error)  # RFC 8881 section 11.4.2: the listing fails with it
        yield _Entry(child.name, number, facts)


async def _real_entries(
    server: Nfs4Server, asking: Asking, credential: Credential, directory: Node, wanted: Wanted
) -> AsyncIterator[_Entry]:
    service, transport, mask, cookie = server.service, asking.transport, wanted.mask, wanted.cookie
    children = await _children(server, asking, directory)
    limits: PathLimits | None = None
    status: FileSystemStatus | None = None
    if mask & attributes.NEED_LIMITS:
        limits = await service.limits(directory)
    if mask & attributes.NEED_STATUS:
        status = await service.status(directory)
    limit = _PAGE_OF_NODES if mask & attributes.NEED_NODE else _PAGE

    def departed() -> bool:
        return transport.closed

    while True:
        page = await service.readdir(credential, directory, cookie, limit=limit, plus=True, gone=departed)
        if not server.names.numeric:
            shown = [entry.attributes for entry in page.entries if entry.attributes is not None]
            await learn_names(server, mask, shown)
        for entry in page.entries:
            cookie = entry.cookie
            if entry.name in (b".", b".."):
                continue
            facts: Facts | None = None
            error: int = p.NFS4ERR_STALE
            child = children.get(entry.name)
            if child is not None:
                facts = await _facts_of_child(server, asking, child, mask)
            elif entry.handle is not None and mask & attributes.NEED_NODE:
                try:
                    found = walked(await arrive(server, transport, asking.minor, entry.handle, asking.caller))
                    facts = await facts_of(server, asking, found, mask)
                except OSError as gone:
                    error = status_of(gone)
            elif entry.attributes is not None:
                known, handle = server.facts_on(directory.export), entry.handle or b""
                facts = Facts(known, asking.minor, entry.attributes, handle, status, limits)
            elif entry.error == errno.ENOENT:
                continue  # it has gone since the directory was read
            elif entry.error:
                error = status_of(OSError(entry.error, ""))
            yield _Entry(entry.name, cookie, facts, error)
        if page.eof:
            return
        await asyncio.sleep(0)
