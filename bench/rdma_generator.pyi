"""The load generator over iWARP. Implemented in ``rdma_generator.pyx``."""

from collections.abc import Iterable, Sequence
from typing import Self

from bench.generator import Load

class RdmaGenerator(Load):
    """RPC-over-RDMA version One calls, each with its transport header."""

    invalidations: int
    def __new__(
        cls,
        fd: int,
        templates: Iterable[bytes],
        depth: int,
        rpc_at: int,
        handle_at: int = 0,
        written: int = 0,
        bulk: bytes = b"",
        *,
        sequence_at: int = 0,
        lenient: bool = False,
        pairs: tuple[int, int] = (0, 0),
        chain: int = 0,
        given: int = 16,
        counted_at: Sequence[int] = (),
        counted_from: int = 0,
    ) -> Self:
        """``rpc_at``: where the RPC message begins; ``handle_at``: where the chunk's handle stands; ``written``: octets
        the server must write; ``bulk``: what it may read."""
