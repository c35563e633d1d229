"""RDMA_ERROR as its receiver reads it (RFC 8166 section 4.5; draft-cel version Two, "Transport Errors").

Owns the decoder; imports :mod:`rpcrdma.wire.header`. Encoding is the versions' own business.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rpcrdma.wire.header import ERR_VERS, RDMA_ERROR, Shortage

SMALLEST_ERROR = 20
"""The fixed words and a code without a body."""

ERR_CHUNK = 2
"""Version One; version Two calls it RDMA2_ERR_BAD_XDR."""
RDMA2_ERR_BAD_XDR = 2
RDMA2_ERR_CANT_REPLY = 3
RDMA2_ERR_INVAL_PROC = 4
RDMA2_ERR_INVAL_OPTION = 5

NAMES = {
    1: {ERR_VERS: "ERR_VERS", ERR_CHUNK: "ERR_CHUNK"},
    2: {
        ERR_VERS: "RDMA2_ERR_VERS",
        RDMA2_ERR_BAD_XDR: "RDMA2_ERR_BAD_XDR",
        RDMA2_ERR_CANT_REPLY: "RDMA2_ERR_CANT_REPLY",
        RDMA2_ERR_INVAL_PROC: "RDMA2_ERR_INVAL_PROC",
        RDMA2_ERR_INVAL_OPTION: "RDMA2_ERR_INVAL_OPTION",
    },
}
"""The codes by version."""

_HEAD = struct.Struct(">5I")
_TWO = struct.Struct(">2I")
_THREE = struct.Struct(">3I")


class TransportError(NamedTuple):
    """A decoded RDMA_ERROR."""

    xid: int
    version: int
    code: int
    versions: tuple[int, int] = (0, 0)
    """ERR_VERS: the lowest and the highest that the peer supports."""
    shortage: Shortage = Shortage()
    """RDMA2_ERR_CANT_REPLY."""

    def __str__(self) -> str:
        name = NAMES[self.version][self.code] if self.version in NAMES else "ERR_VERS"
        if self.code == ERR_VERS:
            return f"{name} (versions {self.versions[0]} to {self.versions[1]})"
        if self.code == RDMA2_ERR_CANT_REPLY:
            processed, segment, needed = self.shortage
            return f"{name} ({'' if processed else 'not '}processed, segment {segment}, {needed} octets needed)"
        return name


def decode_error(view: memoryview) -> TransportError | None:
    """The error message ``view``; None for one that cannot be decoded, which is to be discarded (section 4.5).

    What follows the error is ignored. The code has a meaning only within the version, but for ERR_VERS.
    """
    if len(view) < SMALLEST_ERROR:
        return None
    xid, version, _, procedure, code = _HEAD.unpack_from(view)
    if procedure != RDMA_ERROR:
        return None
    if code == ERR_VERS:
        if len(view) < SMALLEST_ERROR + _TWO.size:
            return None
        return TransportError(xid, version, code, _TWO.unpack_from(view, SMALLEST_ERROR))
    if code not in NAMES.get(version, ()):
        return None
    if version == 2 and code == RDMA2_ERR_CANT_REPLY:
        if len(view) < SMALLEST_ERROR + _THREE.size:
            return None
        processed, segment, needed = _THREE.unpack_from(view, SMALLEST_ERROR)
        if processed > 1:
            return None
        return TransportError(xid, version, code, shortage=Shortage(processed == 1, segment, needed))
    return TransportError(xid, version, code)
