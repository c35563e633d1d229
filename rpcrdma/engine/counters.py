"""Numbers a responder keeps, named after the trace points of Linux's svcrdma. Imports :mod:`rpcrdma.wire` only."""

from __future__ import annotations

from collections.abc import Iterator

from rpcrdma.wire.header import Fault

_TWO = {
    Fault.PROCEDURE: "err_inval_proc",
    Fault.HEADER: "err_bad_xdr",
    Fault.NO_ROOM: "err_cant_reply",
    Fault.OPTION: "err_inval_option",
}


class Counters:
    """Plain integers, shared by all connections of a server and resolved once."""

    __slots__ = (
        "backward_calls",
        "backward_replies",
        "calls",
        "discards",
        "err_bad_xdr",
        "err_cant_reply",
        "err_chunk",
        "err_inval_option",
        "err_inval_proc",
        "err_vers",
        "inline_replies",
        "invalidations",
        "long_calls",
        "long_replies",
        "memory_waits",
        "native_calls",
        "no_replies",
        "options",
        "read_bytes",
        "read_failures",
        "reads",
        "receives",
        "replies",
        "send_failures",
        "starved_grants",
        "version_one",
        "version_two",
        "write_bytes",
        "writes",
    )

    backward_calls: int
    backward_replies: int
    calls: int
    native_calls: int
    """Those of them that were answered natively."""
    discards: int
    err_bad_xdr: int
    err_cant_reply: int
    err_chunk: int
    err_inval_option: int
    err_inval_proc: int
    err_vers: int
    inline_replies: int
    invalidations: int
    long_calls: int
    long_replies: int
    memory_waits: int
    no_replies: int
    options: int
    read_bytes: int
    read_failures: int
    reads: int
    receives: int
    replies: int
    send_failures: int
    starved_grants: int
    version_one: int
    """Connections that settled on version One."""
    version_two: int
    write_bytes: int
    writes: int

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def items(self) -> Iterator[tuple[str, int]]:
        """Names and values, for a metrics page."""
        return ((name, getattr(self, name)) for name in self.__slots__)

    def refused(self, version: int, fault: Fault) -> None:
        """Count an error sent. Version One has one code for all but the version."""
        name = "err_vers" if fault is Fault.VERSION else "err_chunk" if version == 1 else _TWO[fault]
        setattr(self, name, getattr(self, name) + 1)

    def settled(self, version: int) -> None:
        """Count a connection that settled on ``version``."""
        if version == 1:
            self.version_one += 1
        else:
            self.version_two += 1
