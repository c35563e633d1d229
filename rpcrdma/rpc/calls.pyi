"""What native calls are to the replay cache, and to others. Implemented in ``calls.pyx``; of use to native code, but for
one function."""

from rpcrdma.rpc.dispatch import Row

def failed(transport: object, xid: int, row: Row | None, what: str, error: BaseException) -> None:
    """Count and log a native call in which a program has failed: ``row`` is its procedure's; without one it is
    ``what``."""
