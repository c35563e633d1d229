"""Numbers a responder keeps, named after the trace points of Linux's svcrdma. Implemented in ``counters.pyx``."""

from collections.abc import Iterator

from rpcrdma.wire.header import Fault

NAMES: tuple[str, ...]
"""Of all counters."""

class Counters:
    """Plain integers, shared by all connections of a server and resolved once."""

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
    def items(self) -> Iterator[tuple[str, int]]:
        """Names and values, for a metrics page."""
    def refused(self, version: int, fault: Fault) -> None:
        """Count an error sent. Version One has one code for all but the version."""
    def settled(self, version: int) -> None:
        """Count a connection that settled on ``version``."""
