"""What values of the configuration may look like: numbers, sizes, ids, words, and what people write for them.

Owns the annotated types that the declarations are made of; imports pydantic.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _size(value: Any) -> Any:
    """``512 MiB``, ``64K`` or a plain number of octets."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d{1,15})\s*([kmgt]?)(?:i?b)?\s*", value, re.IGNORECASE)
        if found is None:
            raise ValueError("is no size; write for example 512MiB or a number of octets")
        return int(found[1]) * _UNITS[found[2].lower()]
    return value


def _id(value: Any) -> Any:
    """A user's or group's number. The largest of 32 bits is (uid_t)-1, which the kernel takes for "as it is"."""
    if value == 0xFFFFFFFF:
        raise ValueError("is no one's id but means -1 to the system; the usual anonymous user and group is 65534")
    return value


def _asynchronous(value: Any) -> Any:
    if value is True or value is False or value == "names":
        return value
    raise ValueError("must be true, false or names")


def _secure(value: Any) -> Any:
    if value is True or value is False or value == "tcp":
        return value
    raise ValueError("must be true, false or tcp")


def _umask(value: Any) -> Any:
    """Octal, as everywhere, whether it begins with a 0 or not."""
    if isinstance(value, str) and re.fullmatch(r"0?o?[0-7]{1,3}", value):
        return int(value, 8)
    raise ValueError("is no umask; write up to three octal digits, as in 022")


def _processes(value: Any) -> Any:
    """``auto`` is as many as there are processors for us."""
    return len(os.sched_getaffinity(0)) if value == "auto" else value


def loopback(value: Any) -> Any:
    """A port alone is one of the loopback address."""
    return f"127.0.0.1:{value}" if isinstance(value, int) and not isinstance(value, bool) else value


def lone_string(key: str) -> BeforeValidator:
    """A string stands for the mapping with only this key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


Integer = Annotated[int, Field(strict=True)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Size = Annotated[int, BeforeValidator(_size), Field(strict=True)]
Identity = Annotated[int, BeforeValidator(_id), Field(strict=True, ge=0, le=0xFFFFFFFE)]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]
Squash = Literal["root", "none", "all"]
Asynchronous = Annotated[Literal[True, False, "names"], BeforeValidator(_asynchronous)]
Secure = Annotated[Literal[True, False, "tcp"], BeforeValidator(_secure)]
XprtSec = Annotated[tuple[Literal["none", "tls", "mtls"], ...], Field(min_length=1)]
Sec = Annotated[tuple[Literal["krb5p", "krb5i", "krb5", "sys", "none"], ...], Field(min_length=1)]
TransferSize = Annotated[Size, Field(ge=4096, le=1 << 20, multiple_of=4096)]
Version = Literal["3", "4", "4.0", "4.1", "4.2"]
Versions = Annotated[tuple[Version, ...], Field(min_length=1)]
Umask = Annotated[int, BeforeValidator(_umask)]
Processes = Annotated[int, BeforeValidator(_processes), Field(strict=True, ge=1, le=128)]
