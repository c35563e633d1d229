"""XDR (RFC 4506): wire types declared once, walked by a reference codec and by a native one.

``Encoder`` and ``Decoder`` are the native ones where the extension is built, unless ``RPCRDMA_XDR=reference`` is in the
environment. Layer above :mod:`rpcrdma.memory`; imports nothing else of the project, and does no I/O.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from rpcrdma.xdr.errors import SchemaError, XdrError, XdrOverflow
from rpcrdma.xdr.markers import (
    DDP,
    DEFAULT,
    array,
    case,
    chain,
    fixed,
    fixed_array,
    int32,
    int64,
    opaque,
    open_enum,
    uint32,
    uint64,
)
from rpcrdma.xdr.payload import Payload
from rpcrdma.xdr.schema import Node, node_of, struct, union

if TYPE_CHECKING or os.environ.get("RPCRDMA_XDR") == "reference":
    from rpcrdma.xdr.codec import Decoder, Encoder
    from rpcrdma.xdr.results import ResultDecoder
else:
    try:
        from rpcrdma.xdr.native import Decoder, Encoder, ResultDecoder
    except ImportError:
        from rpcrdma.xdr.codec import Decoder, Encoder
        from rpcrdma.xdr.results import ResultDecoder

NATIVE: Final = Encoder.__module__ == "rpcrdma.xdr._encoder"
"""Whether the native codec is in use."""

__all__ = [
    "DDP",
    "DEFAULT",
    "NATIVE",
    "Decoder",
    "Encoder",
    "Node",
    "Payload",
    "ResultDecoder",
    "SchemaError",
    "XdrError",
    "XdrOverflow",
    "array",
    "case",
    "chain",
    "fixed",
    "fixed_array",
    "int32",
    "int64",
    "node_of",
    "opaque",
    "open_enum",
    "pack",
    "struct",
    "uint32",
    "uint64",
    "union",
    "unpack",
]

T = TypeVar("T")


@overload
def pack(kind: type[T], value: T) -> bytes: ...
@overload
def pack(kind: Any, value: Any) -> bytes: ...
def pack(kind: Any, value: Any) -> bytes:
    """The XDR of ``value`` as the declared type ``kind``. Raises XdrError; a Payload inside is an error here."""
    encoder = Encoder()
    encoder.encode(kind, value)
    if encoder.payloads:
        raise XdrError("a payload needs an encoder of its own")
    return encoder.getvalue()


@overload
def unpack(kind: type[T], data: bytes | bytearray | memoryview) -> T: ...
@overload
def unpack(kind: Any, data: bytes | bytearray | memoryview) -> Any: ...
def unpack(kind: Any, data: bytes | bytearray | memoryview) -> Any:
    """The value of the declared type ``kind`` that ``data`` is, all of it. Raises XdrError."""
    decoder = Decoder(data)
    value = decoder.decode(kind)
    decoder.finish(strict=True)
    return value
