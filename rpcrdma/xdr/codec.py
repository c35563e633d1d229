"""The reference codec: RFC 4506 in plain Python on ``xdrlib3``, written to be read.

Owns the meaning of every declaration; the native codec must agree with it octet for octet and error for error
(``tests/unit/test_xdr_differential.py``). Imports the schema and :mod:`rpcrdma.xdr.payload`.

Reduction (RFC 8166 section 3.4): the encoder leaves payloads of DDP-eligible items out of its buffer and records where
they belong; the decoder takes data that arrived in Read chunks from those chunks, by their position in the unreduced
stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar, overload

from xdrlib3 import Packer, Unpacker

from rpcrdma.xdr import schema
from rpcrdma.xdr.errors import XdrError, XdrOverflow
from rpcrdma.xdr.payload import Payload
from rpcrdma.xdr.schema import Node, node_of

T = TypeVar("T")

DEFAULT_LIMIT: Final = 16 << 20
"""Octets an encoder takes unless it is told otherwise."""

_RANGES: Final = {
    schema.UINT32: (0, 0xFFFFFFFF),
    schema.INT32: (-0x80000000, 0x7FFFFFFF),
    schema.UINT64: (0, 0xFFFFFFFFFFFFFFFF),
    schema.INT64: (-0x8000000000000000, 0x7FFFFFFFFFFFFFFF),
}


def _padded(length: int) -> int:
    return (length + 3) & ~3


class Encoder:
    """Builds one message; ``limit`` bounds its unreduced length in octets.

    After an error the buffer holds what was encoded before it: :meth:`truncate` to a position noted earlier.
    """

    __slots__ = ("_chunked", "_packer", "limit", "payloads", "position")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.position = 0
        """Octets in the buffer: the reduced stream."""
        self.payloads: list[tuple[int, Payload]] = []
        """What was left out of the buffer: (offset in the buffer at which it belongs, payload)."""
        self._chunked = 0
        self._packer = Packer()

    @property
    def size(self) -> int:
        """Length of the whole message in octets, with the payloads and their padding."""
        return self.position + self._chunked

    def _room(self, length: int) -> None:
        if self.size + length > self.limit:
            raise XdrOverflow(f"more than {self.limit} octets")

    def _integer(self, kind: int, value: int) -> None:
        low, high = _RANGES[kind]
        if not isinstance(value, int) or not low <= value <= high:
            raise XdrError(f"{value!r} is no {schema.KIND_NAMES[kind]}")
        if kind in (schema.UINT32, schema.INT32):
            self._room(4)
            self._packer.pack_uint(value & 0xFFFFFFFF)
            self.position += 4
        else:
            self._room(8)
            self._packer.pack_uhyper(value & 0xFFFFFFFFFFFFFFFF)
            self.position += 8

    def uint32(self, value: int) -> None:
        """Encode an unsigned integer. Raises XdrError when it has more than 32 bits, XdrOverflow at the limit."""
        self._integer(schema.UINT32, value)

    def int32(self, value: int) -> None:
        """Encode a signed integer."""
        self._integer(schema.INT32, value)

    def uint64(self, value: int) -> None:
        """Encode an unsigned hyper integer."""
        self._integer(schema.UINT64, value)

    def int64(self, value: int) -> None:
        """Encode a signed hyper integer."""
        self._integer(schema.INT64, value)

    def boolean(self, value: bool) -> None:
        """Encode a truth value."""
        self.uint32(1 if value else 0)

    def fixed(self, data: bytes | bytearray | memoryview) -> None:
        """Encode fixed-length opaque data: the octets and their padding, no length."""
        octets = _octets(data)
        self._room(_padded(len(octets)))
        self._packer.pack_fopaque(len(octets), octets)
        self.position += _padded(len(octets))

    def opaque(self, data: bytes | bytearray | memoryview) -> None:
        """Encode variable-length opaque data: length, octets, padding."""
        octets = _octets(data)
        self._room(4 + _padded(len(octets)))
        self.uint32(len(octets))
        self.fixed(octets)

    def bulk(self, data: Payload | bytes | bytearray | memoryview) -> None:
        """Encode a DDP-eligible opaque: a Payload leaves only its length here, anything else goes inline."""
        if not isinstance(data, Payload):
            self.opaque(data)
            return
        self._room(4 + _padded(len(data)))
        self.uint32(len(data))
        self.payloads.append((self.position, data))
        self._chunked += _padded(len(data))

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Add octets that are XDR already, a multiple of four of them."""
        octets = _octets(data)
        if len(octets) % 4:
            raise XdrError("XDR comes in units of four octets (RFC 4506 section 3)")
        self.fixed(octets)

    def splice(self, payload: Payload) -> None:
        """As :meth:`append`, of octets that stay where they are: a payload that is not ``eligible``."""
        if len(payload) % 4:
            raise XdrError("XDR comes in units of four octets (RFC 4506 section 3)")
        self._room(len(payload))
        self.payloads.append((self.position, payload))
        self._chunked += len(payload)

    @overload
    def encode(self, kind: type[T], value: T) -> None: ...
    @overload
    def encode(self, kind: Any, value: Any) -> None: ...
    def encode(self, kind: Any, value: Any) -> None:
        """Encode ``value`` as the declared type ``kind`` (None: void). Raises XdrError, XdrOverflow."""
        node = node_of(kind)
        _ENCODERS[node.kind](self, node, value)

    def patch_uint32(self, position: int, value: int) -> None:
        """Overwrite the four octets at ``position`` of the buffer."""
        if not 0 <= position <= self.position - 4:
            raise XdrError(f"nothing was encoded at {position}")
        if not 0 <= value <= 0xFFFFFFFF:
            raise XdrError(f"{value!r} is no uint32")
        octets = self.getvalue()
        self._packer.reset()
        self._packer.pack_fopaque(position, octets[:position])
        self._packer.pack_uint(value)
        self._packer.pack_fopaque(len(octets) - position - 4, octets[position + 4 :])

    def truncate(self, position: int) -> None:
        """Forget what was encoded since the buffer was ``position`` octets long; release payloads recorded since."""
        if not 0 <= position <= self.position or position % 4:
            raise XdrError(f"cannot go back to {position}")
        octets = self.getvalue()[:position]
        self._packer.reset()
        self._packer.pack_fopaque(position, octets)
        self.position = position
        while self.payloads and self.payloads[-1][0] > position:
            _, payload = self.payloads.pop()
            self._chunked -= _padded(len(payload))
            payload.release()

    def getvalue(self) -> bytes:
        """A copy of the buffer."""
        return self._packer.get_buffer()

    def getbuffer(self) -> memoryview:
        """The buffer. While the view is held nothing more can be encoded (BufferError) by the native codec."""
        return memoryview(self._packer.get_buffer())


def _octets(data: Any) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise XdrError(f"{type(data).__name__} is no opaque data")
    return bytes(data)


def _encode_void(encoder: Encoder, node: Node, value: Any) -> None:
    if value is not None:
        raise XdrError(f"{value!r} where nothing is declared")


def _encode_integer(encoder: Encoder, node: Node, value: Any) -> None:
    encoder._integer(node.kind, value)


def _encode_bool(encoder: Encoder, node: Node, value: Any) -> None:
    if not isinstance(value, int):
        raise XdrError(f"{value!r} is no bool")
    encoder.boolean(bool(value))


def _encode_enum(encoder: Encoder, node: Node, value: Any) -> None:
    if not isinstance(value, int) or (node.strict and value not in node.members):
        raise XdrError(f"{value!r} is no {node.name}")
    # Signed (RFC 4506 section 4.3), but protocols have "enumerations" up to 2**32 - 1 in their default arms.
    encoder.uint32(value & 0xFFFFFFFF if -0x80000000 <= value < 0 else value)


def _encode_opaque(encoder: Encoder, node: Node, value: Any) -> None:
    if node.kind == schema.BULK and isinstance(value, Payload):
        if len(value) > node.size:
            raise XdrError(f"{len(value)} octets, at most {node.size} are allowed")
        encoder.bulk(value)
        return
    octets = _octets(value)
    if node.kind == schema.FIXED:
        if len(octets) != node.size:
            raise XdrError(f"{len(octets)} octets, {node.size} are declared")
        encoder.fixed(octets)
        return
    if len(octets) > node.size:
        raise XdrError(f"{len(octets)} octets, at most {node.size} are allowed")
    encoder.opaque(octets)


def _encode_list(encoder: Encoder, node: Node, value: Any) -> None:
    element = node.element
    assert element is not None
    if not isinstance(value, (list, tuple)):
        raise XdrError(f"{type(value).__name__} is no list")
    if len(value) > node.size or (node.kind == schema.FIXED_ARRAY and len(value) != node.size):
        raise XdrError(f"{len(value)} elements, {node.size} are allowed")
    if node.kind == schema.ARRAY:
        encoder.uint32(len(value))
    encode = _ENCODERS[element.kind]
    for item in value:
        if node.kind == schema.CHAIN:
            encoder.boolean(True)
        encode(encoder, element, item)
    if node.kind == schema.CHAIN:
        encoder.boolean(False)


def _encode_optional(encoder: Encoder, node: Node, value: Any) -> None:
    assert node.element is not None
    encoder.boolean(value is not None)
    if value is not None:
        _ENCODERS[node.element.kind](encoder, node.element, value)


def _encode_struct(encoder: Encoder, node: Node, value: Any) -> None:
    if type(value) is not node.cls:
        raise XdrError(f"{type(value).__name__} is no {node.name}")
    for name, part in node.fields:
        _ENCODERS[part.kind](encoder, part, getattr(value, name))


def _encode_union(encoder: Encoder, node: Node, value: Any) -> None:
    if type(value) is not node.cls:
        raise XdrError(f"{type(value).__name__} is no {node.name}")
    name, discriminant = node.fields[0]
    selected = getattr(value, name)
    _ENCODERS[discriminant.kind](encoder, discriminant, selected)
    index = node.arms.get(bool(selected) if discriminant.kind == schema.BOOL else int(selected), node.default)
    if index is None:
        raise XdrError(f"{node.name} has no arm for {selected!r}")
    if index:
        arm, part = node.fields[index]
        _ENCODERS[part.kind](encoder, part, getattr(value, arm))


_ENCODERS: Final[tuple[Callable[[Encoder, Node, Any], None], ...]] = (
    _encode_void, _encode_integer, _encode_integer, _encode_integer, _encode_integer, _encode_bool, _encode_enum,
    _encode_opaque, _encode_opaque, _encode_opaque, _encode_list, _encode_list, _encode_list, _encode_optional,
    _encode_struct, _encode_union,
)  # fmt: skip


class Decoder:
    """Reads one message; DDP-eligible opaques come out as memoryviews, of ``data`` or of a chunk, other ones as bytes.

    ``data`` is the message as received inline, decoded from octet ``offset`` on. ``chunks`` are the Read chunks that
    were taken out of it: (position in the unreduced message, counted from octet 0 of ``data``; octets), in ascending
    order (RFC 8166 section 3.4.5). With ``strict_padding`` a non-zero padding octet is an error (RFC 4506 section 3
    has them zero; receivers usually let it pass, and so do we).
    """

    __slots__ = ("_chunked", "_chunks", "_length", "_unpacker", "_view", "strict_padding")

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        chunks: Sequence[tuple[int, memoryview]] = (),
        offset: int = 0,
        strict_padding: bool = False,
    ) -> None:
        self._view = memoryview(data).toreadonly()
        self._length = len(self._view)
        if not 0 <= offset <= self._length:
            raise XdrError(f"offset {offset} is outside of the message")
        self._unpacker = Unpacker(self._view)  # type: ignore[arg-type]  # it only slices
        self._unpacker.set_position(offset)
        self._chunks = list(chunks)
        self._chunked = 0
        self.strict_padding = strict_padding

    @property
    def position(self) -> int:
        """Octets of ``data`` that are behind us."""
        return self._unpacker.get_position()

    @property
    def remaining(self) -> int:
        """Octets of ``data`` before us."""
        return self._length - self.position

    @property
    def unreduced_position(self) -> int:
        """Octets of the unreduced message that are behind us."""
        return self.position + self._chunked

    @property
    def skipped_chunk(self) -> bool:
        """Whether a chunk belongs before where we are: what was decoded since was not what the peer meant."""
        return bool(self._chunks) and self._chunks[0][0] < self.unreduced_position

    def _need(self, length: int) -> None:
        if length > self.remaining:
            raise XdrError(f"{length} octets wanted, {self.remaining} remain")

    def uint32(self) -> int:
        """Decode an unsigned integer. Raises XdrError when the message ends before it does (as all below)."""
        self._need(4)
        return self._unpacker.unpack_uint()

    def int32(self) -> int:
        """Decode a signed integer."""
        self._need(4)
        return self._unpacker.unpack_int()

    def uint64(self) -> int:
        """Decode an unsigned hyper integer."""
        self._need(8)
        return self._unpacker.unpack_uhyper()

    def int64(self) -> int:
        """Decode a signed hyper integer."""
        self._need(8)
        return self._unpacker.unpack_hyper()

    def boolean(self) -> bool:
        """Decode a truth value, which is 0 or 1 and nothing else (RFC 4506 section 4.4)."""
        value = self.uint32()
        if value > 1:
            raise XdrError(f"{value} is no boolean")
        return value == 1

    def _data(self, length: int) -> memoryview:
        self._need(_padded(length))
        view = self._unpacker.unpack_fopaque(length)
        if self.strict_padding and any(self._view[self.position - (-length % 4) : self.position]):
            raise XdrError("padding that is not zero")
        return view  # type: ignore[return-value]  # a slice of what it was given

    def fixed(self, size: int) -> bytes:
        """Decode fixed-length opaque data."""
        if size < 0:
            raise XdrError(f"{size} octets")
        return bytes(self._data(size))

    def _size(self, limit: int) -> int:
        length = self.uint32()
        if length > limit:
            raise XdrError(f"{length} octets, at most {limit} are allowed")
        return length

    def opaque(self, limit: int) -> bytes:
        """Decode variable-length opaque data of at most ``limit`` octets."""
        return bytes(self._data(self._size(limit)))

    def bulk(self, limit: int) -> memoryview:
        """Decode a DDP-eligible opaque, from the chunk at this position if there is one, without a copy.

        A chunk holds the item, or the item with its padding (RFC 8166 section 3.4.5.2: either may be sent, and neither
        the data nor the padding is in the inline stream then).
        """
        length = self._size(limit)
        if not self._chunks or self._chunks[0][0] != self.unreduced_position:
            return self._data(length)
        _, view = self._chunks.pop(0)
        if len(view) not in (length, _padded(length)):
            raise XdrError(f"a chunk of {len(view)} octets for an item of {length}")
        self._chunked += _padded(length)
        return view[:length]

    @overload
    def decode(self, kind: type[T]) -> T: ...
    @overload
    def decode(self, kind: Any) -> Any: ...
    def decode(self, kind: Any) -> Any:
        """Decode a value of the declared type ``kind`` (None: void). Raises XdrError, with the position left open."""
        node = node_of(kind)
        return _DECODERS[node.kind](self, node)

    def finish(self, strict: bool = False) -> None:
        """Raise XdrError if a chunk matched no DDP-eligible item (RFC 8166 4.5.2) or, if ``strict``, octets remain."""
        if self._chunks:
            raise XdrError(f"a chunk at position {self._chunks[0][0]} matches no item")
        if strict and self.remaining:
            raise XdrError(f"{self.remaining} octets too many")


def _decode_void(decoder: Decoder, node: Node) -> None:
    return None


def _decode_enum(decoder: Decoder, node: Node) -> int:
    value = decoder.uint32()
    member: IntEnum | None = node.members.get(value)
    if member is None and value >= 0x80000000:
        member = node.members.get(value - 0x100000000)
    if member is not None:
        return member
    if node.strict:
        raise XdrError(f"{value} is no {node.name}")
    return value


def _decode_list(decoder: Decoder, node: Node) -> list[Any]:
    element = node.element
    assert element is not None
    decode = _DECODERS[element.kind]
    values: list[Any] = []
    if node.kind == schema.CHAIN:
        while decoder.boolean():
            if len(values) == node.size:
                raise XdrError(f"more than {node.size} elements")
            values.append(decode(decoder, element))
        return values
    count = node.size
    if node.kind == schema.ARRAY:
        count = decoder.uint32()
        if count > node.size:
            raise XdrError(f"{count} elements, at most {node.size} are allowed")
    decoder._need(count * element.min_size)
    for _ in range(count):
        values.append(decode(decoder, element))  # noqa: PERF401 (the loop is the specification)
    return values


def _decode_optional(decoder: Decoder, node: Node) -> Any:
    assert node.element is not None
    return _DECODERS[node.element.kind](decoder, node.element) if decoder.boolean() else None


def _decode_struct(decoder: Decoder, node: Node) -> Any:
    assert node.cls is not None
    return node.cls(*[_DECODERS[part.kind](decoder, part) for _, part in node.fields])


def _decode_union(decoder: Decoder, node: Node) -> Any:
    assert node.cls is not None
    discriminant = node.fields[0][1]
    selected = _DECODERS[discriminant.kind](decoder, discriminant)
    index = node.arms.get(int(selected), node.default)
    if index is None:
        raise XdrError(f"{node.name} has no arm for {selected!r}")
    if not index:
        return node.cls(selected)
    arm, part = node.fields[index]
    return node.cls(selected, **{arm: _DECODERS[part.kind](decoder, part)})


_DECODERS: Final[tuple[Callable[[Decoder, Node], Any], ...]] = (
    _decode_void,
    lambda decoder, node: decoder.uint32(),
    lambda decoder, node: decoder.int32(),
    lambda decoder, node: decoder.uint64(),
    lambda decoder, node: decoder.int64(),
    lambda decoder, node: decoder.boolean(),
    _decode_enum,
    lambda decoder, node: decoder.opaque(node.size),
    lambda decoder, node: decoder.fixed(node.size),
    lambda decoder, node: decoder.bulk(node.size),
    _decode_list, _decode_list, _decode_list, _decode_optional, _decode_struct, _decode_union,
)  # fmt: skip
