"""Native load generators. Implemented in ``generator.pyx``."""

from collections.abc import Iterable
from typing import Self

class CallFailed(RuntimeError):
    """A call was not answered with success."""

    status: int
    refused: bool
    """By RPC; else the status is NFS's."""
    def __init__(self, status: int, refused: bool) -> None: ...

class Load:
    """Calls on one connection: templates, slots and latencies."""

    def run(self, seconds: float, most: int = 0) -> tuple[int, float]:
        """Keep the calls outstanding for so long, or until ``most`` were made. Returns (answered, seconds taken).
        RuntimeError when a reply is not the expected one."""
    def percentile(self, part: float) -> float:
        """Latency in microseconds below which this part of the calls was answered."""

class Loads:
    """Connections that have their calls outstanding at the same time."""

    def __init__(self, loads: Iterable[Load]) -> None: ...
    def run(self, seconds: float, most: int = 0) -> tuple[int, float]:
        """As :meth:`Load.run`; ``most`` calls of all of them."""
    def percentile(self, part: float) -> float:
        """Of the calls of all of them."""

class Generator(Load):
    """RPC calls over TCP with record marks."""

    def __new__(
        cls,
        fd: int,
        templates: Iterable[bytes],
        depth: int,
        reply_size: int = 0,
        *,
        sequence_at: int = 0,
        lenient: bool = False,
        pairs: tuple[int, int] = (0, 0),
    ) -> Self:
        """``templates``: whole calls, used in turn, in which XIDs are filled in. ``reply_size`` 0: any.
        ``sequence_at``: where a call has SEQUENCE's sequence id, behind which stands the slot; both are filled in.
        ``lenient``: a call may fail, so long as it is answered. ``pairs``: each slot has two templates of its own that
        take turns; 16 octets at the first place in the one's reply are put at the second place in the other."""
