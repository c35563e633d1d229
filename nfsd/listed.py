"""The buffer in which a reply's listing is made, and its way into the reply.

Owns the transport's buffer. A short listing is copied behind the rest of the reply. A longer one leaves from the
buffer in which it was made, which counts for the connection as READ's does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from nfsd.vfs.listing import Listing
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Credential, DirectoryEntry
from rpcrdma.memory import Lease
from rpcrdma.rpc.program import Call
from rpcrdma.xdr.payload import Payload

_COPIED = 32 << 10
"""Octets of a listing that leaves its buffer, which is larger, to others."""


class Listed:
    """The entries of one listing of ``size`` octets at most. ``with`` gives its memory back after an error."""

    def __init__(self, call: Call, listing: Listing, size: int) -> None:
        self._call = call
        self._listing = listing
        self._size = size
        self._lease: Lease | None = None

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
        transport = self._call.transport
        return await service.list_directory(
            credential, directory, cookie, self._listing,
            complete=complete, grow=self.grow, gone=lambda: transport.closed,
        )  # fmt: skip

    async def grow(self) -> memoryview:
        """Memory for all entries; waits as :meth:`Call.lease` does. Raises OutOfMemory, ConnectionError."""
        self._lease = await self._call.lease(self._size)
        return self._lease.view[: self._size]

    async def add(self, octets: bytes, name_octets: int) -> bool:
        """Add an entry that was completed; whether there was room."""
        if self._listing.fits < len(octets) and self._lease is None:
            self._listing.move(await self.grow())
        return self._listing.add(octets, name_octets=name_octets)

    def put(self) -> None:
        """Put the entries behind what has been encoded."""
        lease, used = self._lease, self._listing.used
        if lease is None or used <= _COPIED:
            self._call.results.append(self._listing.octets())
            self.release()
        else:
            self._lease = None
            self._call.results.splice(Payload(lease.view[:used], lease, eligible=False))

    def release(self) -> None:
        """Give the memory back: no more is to be listed."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
