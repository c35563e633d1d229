"""Established contexts, with their sequence windows and sealers."""

from contextlib import AbstractContextManager
from typing import Any

from rpcrdma.gss.identity import Identity
from rpcrdma.gss.mechanism import Sealer

SEQUENCE_WINDOW: int
"""Sequence numbers that may come out of order."""
MAX_SEQUENCE: int
"""The first sequence number that is too large."""

MOST_SPARES: int
"""Sealers that are kept for workers, of all contexts."""

def new_handle() -> bytes:
    """Octets that nobody can guess: whoever knows a handle learns whether it is one."""

class Context:
    """An established context, with its sequence window and whose it is."""

    handle: bytes
    """What the client calls it by."""
    labels: tuple[tuple[bytes, int], ...]
    """The same with each service, for dicts that have octets of other kinds and are not to keep the context."""
    principal: str
    host: str
    """The client, by :func:`rpcrdma.addresses.host_of`, on whose account it is."""
    digest: int
    expires: float
    """On the clock of time.monotonic, as ``known_until``."""
    known_until: float
    """Then the principal is looked up again."""
    recent: bool
    gone: bool
    identity: Identity | None
    """Whom the principal is here."""
    credentials: tuple[Any, ...]
    """Of its calls by service (none, integrity, privacy), as RPC has them; empty: not made yet of ``identity``."""
    sealer: Sealer
    """The loop's own."""
    def __init__(self, exported: bytes, principal: str, host: str, expires: float) -> None: ...
    def admit(self, sequence: int) -> int:
        """Note a call with this number, whose header was verified: 0, or 1 if it must not be answered since it is below
        the window or a replay, or 2 if the number is too large (RFC 2203 section 5.3.3.1)."""
    def lent(self) -> AbstractContextManager[Sealer]:
        """A sealer for a worker thread; as many are made as are in use at a time. Some are kept for the next time."""
