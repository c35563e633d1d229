"""The reference codec's decoder of replies: what RDMA has placed is where the caller wanted it.

Imports :mod:`rpcrdma.xdr.codec`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rpcrdma.xdr.codec import Decoder
from rpcrdma.xdr.errors import XdrError


class ResultDecoder(Decoder):
    """Reads results as their requester does, who has ``places`` for the DDP-eligible items, in the items' order.

    Each place is (memory, octets that the responder has put there). The n-th DDP-eligible item is in the n-th place,
    and comes out as the beginning of that memory, if anything was put there. Otherwise it stands inline (RFC 8166
    section 4.3.2), and is copied into the memory; unless it is too long for it: then it is a view of ``data``.
    """

    __slots__ = ("_place", "places")

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        chunks: Sequence[tuple[int, memoryview]] = (),
        offset: int = 0,
        strict_padding: bool = False,
    ) -> None:
        super().__init__(data, chunks, offset, strict_padding)
        self.places: list[tuple[memoryview, int]] | None = None
        """To be set before anything is decoded."""
        self._place = 0

    def bulk(self, limit: int) -> memoryview:
        """Decode a DDP-eligible opaque."""
        length = self._size(limit)
        memory, there = None, 0
        if self.places is not None and self._place < len(self.places):
            memory, there = self.places[self._place]
            self._place += 1
        if there:
            assert memory is not None
            padded = (length + 3) & ~3
            if there not in (length, padded):
                raise XdrError(f"a chunk of {there} octets for an item of {length}")
            self._chunked += padded
            return memory[:length]
        view = self._data(length)
        if memory is None or length > len(memory):
            return view
        memory[:length] = view
        return memory[:length]

    def finish(self, strict: bool = False) -> None:
        """Raise XdrError if what was placed matched no DDP-eligible item or, if ``strict``, octets remain."""
        for _, there in (self.places or [])[self._place :]:
            if there:
                raise XdrError(f"a chunk of {there} octets matches no item")
        super().finish(strict)
