"""Numbers a responder keeps, named after the trace points of Linux's svcrdma. Imports nothing of the project."""

from __future__ import annotations

from collections.abc import Iterator


class Counters:
    """Plain integers, shared by all connections of a server and resolved once."""

    __slots__ = (
        "backward_calls",
        "backward_replies",
        "calls",
        "discards",
        "err_chunk",
        "err_vers",
        "inline_replies",
        "invalidations",
        "long_calls",
        "long_replies",
        "memory_waits",
        "no_replies",
        "read_bytes",
        "read_failures",
        "reads",
        "receives",
        "replies",
        "send_failures",
        "starved_grants",
        "write_bytes",
        "writes",
    )

    backward_calls: int
    backward_replies: int
    calls: int
    discards: int
    err_chunk: int
    err_vers: int
    inline_replies: int
    invalidations: int
    long_calls: int
    long_replies: int
    memory_waits: int
    no_replies: int
    read_bytes: int
    read_failures: int
    reads: int
    receives: int
    replies: int
    send_failures: int
    starved_grants: int
    write_bytes: int
    writes: int

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def items(self) -> Iterator[tuple[str, int]]:
        """Names and values, for a metrics page."""
        return ((name, getattr(self, name)) for name in self.__slots__)
