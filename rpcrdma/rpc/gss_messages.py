"""The octets of RPCSEC_GSS in RPC messages (RFC 2203 section 5): credentials, verifiers, protected bodies.

Owns their formats, for both ends; imports nothing but struct. All lengths are checked against what there is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

VERSION: Final = 1
"""RPCSEC_GSS_VERS_1. A client of a later version goes back to it when it is denied (RFC 5403 section 2.1)."""
DATA, INIT, CONTINUE_INIT, DESTROY = range(4)
"""rpc_gss_proc_t."""
NONE, INTEGRITY, PRIVACY = 1, 2, 3
"""rpc_gss_service_t."""
FLAVOR: Final = 6

_WORD: Final = struct.Struct(">I")
_FIXED: Final = struct.Struct(">5I")
_LONGEST_HANDLE: Final = 64
"""Octets of a handle: ours have sixteen."""


@dataclass(frozen=True, slots=True)
class GssCredential:
    """rpc_gss_cred_t."""

    version: int
    procedure: int
    sequence: int
    service: int
    handle: bytes

    def encode(self) -> bytes:
        """Its octets, the body of an opaque_auth."""
        fixed = _FIXED.pack(self.version, self.procedure, self.sequence, self.service, len(self.handle))
        return fixed + self.handle + bytes(-len(self.handle) & 3)


def parse_credential(body: memoryview) -> GssCredential | None:
    """The credential in these octets; None for what is none. Of another version the version alone says something."""
    size = len(body)
    if size >= 4 and _WORD.unpack_from(body)[0] != VERSION:
        return GssCredential(_WORD.unpack_from(body)[0], 0, 0, 0, b"")
    if size < _FIXED.size:
        return None
    version, procedure, sequence, service, length = _FIXED.unpack_from(body)
    if length > _LONGEST_HANDLE or _FIXED.size + (length + 3 & ~3) != size or procedure > DESTROY:
        return None
    # Which service it is says nothing while a context is made (section 5.2.2).
    if procedure in (DATA, DESTROY) and service not in (NONE, INTEGRITY, PRIVACY):
        return None
    return GssCredential(version, procedure, sequence, service, bytes(body[_FIXED.size : _FIXED.size + length]))


def opaque(data: memoryview, offset: int) -> memoryview | None:
    """The opaque<> that is all of ``data`` from ``offset`` on; None: it is not."""
    if offset + 4 > len(data):
        return None
    (length,) = _WORD.unpack_from(data, offset)
    if offset + 4 + length + (-length & 3) != len(data):
        return None
    return data[offset + 4 : offset + 4 + length]


def protected(data: memoryview, offset: int, service: int) -> tuple[memoryview, memoryview] | None:
    """rpc_gss_integ_data or rpc_gss_priv_data that is all of ``data`` from ``offset`` on: what is protected, and its
    MIC (empty with privacy). None: it is not."""
    if service == PRIVACY:
        body = opaque(data, offset)
        return None if body is None else (body, data[:0])
    if offset + 4 > len(data):
        return None
    (length,) = _WORD.unpack_from(data, offset)
    end = offset + 4 + length
    if length & 3 or end > len(data):
        return None
    mic = opaque(data, end)
    return None if not mic else (data[offset + 4 : end], mic)


def sealed_head(head: bytes | bytearray | memoryview, verifier: bytes) -> bytes:
    """The head of an accepted reply, whose verifier is empty, with this MIC for one; an empty one stays."""
    if not verifier:
        return bytes(head)
    whole = bytes(head[:12]) + struct.pack(">II", FLAVOR, len(verifier)) + verifier + bytes(-len(verifier) & 3)
    return whole + bytes(head[20:])


def init_results(handle: bytes, major: int, minor: int, window: int, token: bytes) -> bytes:
    """rpc_gss_init_res (section 5.2.3.1)."""
    return b"".join((
        _WORD.pack(len(handle)), handle, bytes(-len(handle) & 3), struct.pack(">III", major, minor, window),
        _WORD.pack(len(token)), token, bytes(-len(token) & 3),
    ))  # fmt: skip


def parse_init_results(data: memoryview) -> tuple[bytes, int, int, int, bytes]:
    """Handle, major and minor status, window and token of such results. Raises ValueError."""
    try:
        (length,) = _WORD.unpack_from(data)
        at = 4 + length + (-length & 3)
        handle = bytes(data[4 : 4 + length])
        major, minor, window = struct.unpack_from(">III", data, at)
    except struct.error as error:
        raise ValueError("a context's results are cut short") from error
    token = opaque(data, at + 12)
    if token is None or len(handle) != length:
        raise ValueError("a context's results are not whole")
    return handle, major, minor, window, bytes(token)
