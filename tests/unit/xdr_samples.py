"""Declarations that use every kind of type, and the codecs to run them through."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any

import pytest

from rpcrdma.xdr import (
    DDP,
    DEFAULT,
    Payload,
    array,
    case,
    chain,
    codec,
    fixed,
    fixed_array,
    int32,
    int64,
    native,
    opaque,
    open_enum,
    struct,
    uint32,
    uint64,
    union,
)  # fmt: skip

CODECS: list[Any] = [pytest.param(codec, id="reference"), pytest.param(native, id="native")]


class Colour(IntEnum):
    RED = 0
    GREEN = 2
    BLUE = -1


class Status(IntEnum):
    OK = 0
    DENIED = 13
    GONE = 70


@struct
class Point:
    x: int32
    y: int64


@struct
class Scalars:
    a: uint32
    b: int32
    c: uint64
    d: int64
    e: bool
    f: Colour
    g: Annotated[int, open_enum(Colour)]


@struct
class Blobs:
    name: Annotated[bytes, opaque(9)]
    verifier: Annotated[bytes, fixed(8)]
    odd: Annotated[bytes, fixed(5)]


@struct
class Lists:
    words: Annotated[list[uint32], array(4)]
    points: Annotated[list[Point], array(100)]
    pair: Annotated[list[uint32], fixed_array(2)]
    names: Annotated[list[Annotated[bytes, opaque(4)]], chain(3)]
    maybe: Point | None


@struct
class Write:
    offset: uint64
    data: Annotated[memoryview | bytes | Payload, opaque(1000), DDP]
    trailer: uint32


@union(void=DEFAULT)
class Result:
    status: Status
    resok: Annotated[Blobs | None, case(Status.OK)] = None
    denied: Annotated[Point | None, case(Status.DENIED)] = None


@union(void=(Colour.RED,))
class Choice:
    colour: Colour
    number: Annotated[uint32 | None, case(Colour.GREEN)] = None


@union
class Either:
    new: bool
    left: Annotated[uint32 | None, case(True)] = None
    right: Annotated[Annotated[bytes, opaque(3)] | None, case(False)] = None


@union
class Fallback:
    kind: uint32
    first: Annotated[uint64 | None, case(1, 2)] = None
    other: Annotated[uint32 | None, DEFAULT] = None
