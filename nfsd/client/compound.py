"""COMPOUNDs as a client sends them: operations in, results out. Owns no state; imports the protocol's declarations.

RFC 8881 section 16.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from nfsd.protocol import nfs4 as p
from rpcrdma.xdr import Decoder, Encoder, XdrError

MINOR: Final = 1
_MOST_RESULTS: Final = 1024

Op = tuple[int, Any]
"""An operation's number and its arguments; None for those that have none."""


class Compound(NamedTuple):
    """The results of a COMPOUND."""

    status: int
    """nfsstat4 of the last operation that ran."""
    results: list[Any]
    """One for each operation that ran, the failed one included."""
    numbers: list[int]


def encode(encoder: Encoder, operations: Sequence[Op], minor: int = MINOR) -> None:
    """Put COMPOUND4args."""
    encoder.opaque(b"")
    encoder.uint32(minor)
    encoder.uint32(len(operations))
    for number, arguments in operations:
        encoder.uint32(number)
        kind = p.OPERATIONS[number].arguments
        if kind is not None:
            encoder.encode(kind, arguments)


def decode(decoder: Decoder, operations: Sequence[Op]) -> Compound:
    """Take COMPOUND4res, the answer to ``operations``. Raises XdrError for what is none."""
    status = decoder.uint32()
    decoder.opaque(_MOST_RESULTS)
    count = decoder.uint32()
    if count > len(operations):
        raise XdrError(f"{count} results for {len(operations)} operations")
    results, numbers = [], []
    for index in range(count):
        number = decoder.uint32()
        if number != operations[index][0]:
            raise XdrError(f"the result of operation {number} where that of {operations[index][0]} belongs")
        results.append(decoder.decode(p.OPERATIONS[number].results))
        numbers.append(number)
    decoder.finish(strict=True)
    # Section 16.2.3: all but the last have succeeded, and the last has the status of the whole.
    statuses = [status_of(result) for result in results]
    if any(statuses[:-1]) or (statuses and statuses[-1] != status) or (not status and count != len(operations)):
        raise XdrError(f"results of status {statuses} in a COMPOUND of status {status}")
    return Compound(status, results, numbers)


def status_of(result: Any) -> int:
    """The nfsstat4 of one result: it is what every result begins with."""
    return int(getattr(result, type(result).__slots__[0]))


def putfh(handle: bytes) -> Op:
    """PUTFH, which most COMPOUNDs begin with."""
    return p.OP_PUTFH, p.PUTFH4args(handle)
