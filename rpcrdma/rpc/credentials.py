"""Credentials of RPC calls as they come off the wire: AUTH_NONE and AUTH_SYS (RFC 5531 sections 8.2, 10 and A).

Owns :class:`CredentialReader`; imports the vocabulary of :mod:`rpcrdma.rpc` only. Written out by hand, not
through the declarations: every call comes by here.
"""

from __future__ import annotations

import struct
from typing import Final

from rpcrdma.rpc.messages import MAX_GIDS, MAX_MACHINE_NAME, auth_stat
from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS, AUTH_TLS, RpcCredential

_ANONYMOUS: Final = RpcCredential(AUTH_NONE)
_CACHE_LIMIT: Final = 4096
_NO_ID: Final = 0xFFFFFFFF
"""(uid_t)-1 and (gid_t)-1: no one's id, which the kernel takes for "leave it as it is" wherever it takes an id."""
_TWO: Final = struct.Struct(">II")


class CredentialReader:
    """Turns the octets of credentials into objects, the same object for the same caller."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, RpcCredential] = {}

    def read(self, flavor: int, body: memoryview) -> RpcCredential | auth_stat:
        """The caller, or the reason to refuse."""
        if flavor == AUTH_SYS:
            # The stamp in front is arbitrary (RFC 5531 appendix A): without it equal callers have equal octets.
            key = bytes(body[4:])
            known = self._known.get(key)
            if known is not None:
                return known
            credential = parse_auth_sys(body)
            if credential is None:
                return auth_stat.AUTH_BADCRED
            if len(self._known) >= _CACHE_LIMIT:
                self._known.clear()
            self._known[key] = credential
            return credential
        if flavor == AUTH_NONE:
            return _ANONYMOUS if not body else auth_stat.AUTH_BADCRED
        if flavor == AUTH_TLS:
            # RFC 9289 section 4.1: whatever is denied tells a client that there is no TLS here, and the NULL call that
            # asks for it is not to be mistaken for a call; with any other procedure it MUST be this status.
            return auth_stat.AUTH_BADCRED
        return auth_stat.AUTH_REJECTEDCRED


def parse_auth_sys(body: memoryview) -> RpcCredential | None:
    """Decode authsys_parms (RFC 5531 appendix A); None when the octets are not exactly that. This is where ids are
    checked: behind it an id is one that somebody can have, or None."""
    size = len(body)
    if size < 20:
        return None
    (_, name_length) = _TWO.unpack_from(body, 0)
    ids = 8 + (name_length + 3 & ~3)
    if name_length > MAX_MACHINE_NAME or ids + 12 > size:
        return None
    uid, gid, count = struct.unpack_from(">III", body, ids)
    if count > MAX_GIDS or ids + 12 + 4 * count != size:
        return None
    machine = bytes(body[8 : 8 + name_length]).decode("utf-8", "backslashreplace")
    gids = struct.unpack_from(f">{count}I", body, ids + 12)
    if _NO_ID in gids:
        gids = tuple(group for group in gids if group != _NO_ID)
    return RpcCredential(AUTH_SYS, None if uid == _NO_ID else uid, None if gid == _NO_ID else gid, gids, machine)
