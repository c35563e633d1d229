"""The buffer in which a reply's listing is made, and its way into the reply.

Owns the transport's buffer. A short listing is copied behind the rest of the reply. A longer one leaves from the
buffer in which it was made, which counts for the connection as READ's does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Self

from nfsd.vfs.listing import Listing
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Credential, DirectoryEntry
from rpcrdma.memory import Lease
from rpcrdma.rpc.program import Transport
from rpcrdma.xdr import Encoder
from rpcrdma.xdr.payload import Payload

COPIED: Final = 32 << 10
"""Octets of a listing that leaves its buffer, which is larger, to others."""


class Listed:
    """The entries of one listing of ``size`` octets at most. ``with`` gives its memory back after an error."""

    def __init__(
        self, transport: Transport, lend: Callable[[int], Awaitable[Lease]], listing: Listing, size: int
    ) -> None:
        """``lend``: as :meth:`Call.lease`, for the call that comes by this transport."""
        self._transport = transport
        self._lend = lend
        self.listing = listing
        self._size = size
        self.lease: Lease | None = None
        """The memory that the listing is in; None: its own."""

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.release()

    async def fill(
        self, service: FileService, credential: Credential, directory: Node, cookie: int,
        complete: Callable[[DirectoryEntry], Awaitable[bool]],
    ) -> bool:  # fmt: skip
        """Take the entries of a directory; as :meth:`DirectoryOperations.list_directory`, until the call's connection
        is gone."""
        transport = self._transport
        return await service.list_directory(
            credential, directory, cookie, self.listing,
            complete=complete, grow=self.grow, gone=lambda: transport.closed,
        )  # fmt: skip

    async def grow(self) -> memoryview:
        """Memory for all entries, as :meth:`Call.lease` gives it. Raises OutOfMemory, ConnectionError."""
        self.lease = await self._lend(self._size)
        return self.lease.view[: self._size]

    async def add(self, octets: bytes, name_octets: int) -> bool:
        """Add an entry that was completed; whether there was room."""
        if self.listing.fits < len(octets) and self.lease is None:
            self.listing.move(await self.grow())
        return self.listing.add(octets, name_octets=name_octets)

    def put(self, results: Encoder) -> None:
        """Put the entries behind what has been encoded."""
        if self.listing.used <= COPIED:
            results.append(self.listing.octets())
            self.release()
        else:
            results.splice(self.payload())

    def payload(self) -> Payload:
        """The entries, which leave from where they are if there are many."""
        lease, used = self.lease, self.listing.used
        if lease is None or used <= COPIED:
            self.release()
            return Payload(memoryview(self.listing.octets()), eligible=False)
        self.lease = None
        return Payload(lease.view[:used], lease, eligible=False)

    def release(self) -> None:
        """Give the memory back: no more is to be listed."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()
