"""What principals a keytab has keys of (MIT's format, version 2: two octets, then entries, each behind its length).

Owns :func:`principals_in`. Keys are passed over: nothing here does cryptography. Imports :mod:`rpcrdma.plain_files`.
"""

from __future__ import annotations

import struct
from typing import Final

from rpcrdma.plain_files import NotAFile, read

_VERSION: Final = b"\x05\x02"
_MOST: Final = 1 << 20
"""Octets of a keytab that are looked at."""


class KeytabError(Exception):
    """The file is no keytab that can be used; the message ends with the remedy, behind a semicolon."""


def principals_in(path: str) -> list[str]:
    """The principals of a keytab, each once, in the order of their first keys. Raises KeytabError."""
    try:
        octets = read(path, _MOST)
    except NotAFile as error:
        raise KeytabError(f"{path}: {error.strerror}; name a keytab") from None
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise KeytabError(f"{path}: {what}; it must be there, and the server's user must be able to read it") from None
    if octets[:2] != _VERSION:
        raise KeytabError(f"{path}: is no keytab; make one with kadmin's ktadd")
    found: dict[str, None] = {}
    at = 2
    try:
        while at + 4 <= len(octets):
            (size,) = struct.unpack_from(">i", octets, at)
            at += 4
            if size > 0:
                found[_principal(octets[at : at + size])] = None
            elif size == 0:
                break
            at += abs(size)  # below zero: a hole, where an entry was
    except (struct.error, UnicodeDecodeError):
        raise KeytabError(f"{path}: is damaged; make it anew with kadmin's ktadd") from None
    return list(found)


def _principal(entry: bytes) -> str:
    (count,) = struct.unpack_from(">H", entry)
    at, parts = 2, []
    for _ in range(count + 1):
        (size,) = struct.unpack_from(">H", entry, at)
        if at + 2 + size > len(entry):
            raise struct.error
        parts.append(entry[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return f"{'/'.join(parts[1:])}@{parts[0]}"


def realms_of(principals: list[str], service: str = "nfs") -> list[str]:
    """The realms in which a service has keys, each once."""
    named = (name.rpartition("@") for name in principals if name.startswith(f"{service}/"))
    return list(dict.fromkeys(realm for _, _, realm in named))
