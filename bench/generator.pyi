"""Native load generators. Implemented in ``generator.pyx``."""

from collections.abc import Iterable, Sequence
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
        chain: int = 0,
        given: int = 16,
        counted_at: Sequence[int] = (),
        counted_from: int = 0,
        once: bool = False,
    ) -> Self:
        """``templates``: whole calls, used in turn, in which XIDs are filled in. ``reply_size`` 0: any.
        ``sequence_at``: where a call has SEQUENCE's sequence id, behind which stands the slot; both are filled in.
        ``lenient``: a call may fail, so long as it is answered. ``chain``: so many templates after each other are made by
        one slot, one after the other. Where there are as many chains as slots, each slot has one of its own; otherwise
        a slot takes the next one, and a run of ``most`` calls makes that many in whole chains. ``pairs``: ``given``
        octets at the first place in the reply to a chain's first call are put at the second place in its other calls
        (without ``chain``, chains are of two). ``counted_at``: for each call of a chain, where it has a number that
        each of the slot's calls counts up (0: nowhere), the first being ``counted_from`` + 1. ``once``: a run makes each
        template once and ends."""
