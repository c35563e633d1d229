"""The codecs' octets and refusals (RFC 4506), and reduction (RFC 8166 section 3.4)."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from rpcrdma.xdr import Payload, SchemaError, XdrError, XdrOverflow, array, case, opaque, struct, uint32, union
from tests.unit.xdr_samples import (
    CODECS,
    Blobs,
    Choice,
    Colour,
    Either,
    Fallback,
    Lists,
    Point,
    Result,
    Scalars,
    Status,
    Write,
)  # fmt: skip

pytestmark = pytest.mark.parametrize("codec", CODECS)

VECTORS: list[tuple[Any, Any, str]] = [
    (uint32, 0xFFFFFFFE, "fffffffe"),
    (bool, True, "00000001"),
    (Point, Point(-2, -3), "fffffffe fffffffffffffffd"),
    (
        Scalars,
        Scalars(1, -1, 2**64 - 1, -(2**63), False, Colour.BLUE, 77),
        "00000001 ffffffff ffffffffffffffff 8000000000000000 00000000 ffffffff 0000004d",
    ),
    (Blobs, Blobs(b"abcde", b"12345678", b"vwxyz"), "00000005 6162636465000000 3132333435363738 767778797a000000"),
    (
        Lists,
        Lists([1, 2], [Point(1, 2)], [3, 4], [b"a", b""], None),
        "00000002 00000001 00000002  00000001 00000001 0000000000000002  00000003 00000004 "
        "00000001 00000001 61000000 00000001 00000000 00000000  00000000",
    ),
    (Lists, Lists([], [], [0, 0], [], Point(0, 0)), "00" * 20 + "00000001" + "00" * 12),
    (Result, Result(Status.GONE), "00000046"),
    (Result, Result(Status.DENIED, denied=Point(1, 1)), "0000000d 00000001 0000000000000001"),
    (Result, Result(99), "00000063"),
    (Choice, Choice(Colour.RED), "00000000"),
    (Choice, Choice(Colour.GREEN, 5), "00000002 00000005"),
    (Either, Either(True, left=9), "00000001 00000009"),
    (Either, Either(False, right=b"abc"), "00000000 00000003 61626300"),
    (Fallback, Fallback(2, first=1), "00000002 0000000000000001"),
    (Fallback, Fallback(0xFFFFFFFF, other=1), "ffffffff 00000001"),
    (None, None, ""),
]


@pytest.mark.parametrize(("kind", "value", "octets"), VECTORS)
def test_values_are_the_octets_of_rfc_4506(codec: Any, kind: Any, value: Any, octets: str) -> None:
    encoder = codec.Encoder()
    encoder.encode(kind, value)
    assert encoder.getvalue() == bytes.fromhex(octets)
    assert encoder.position == encoder.size == len(bytes.fromhex(octets))
    decoder = codec.Decoder(bytes.fromhex(octets))
    assert decoder.decode(kind) == value
    decoder.finish(strict=True)


@pytest.mark.parametrize(("kind", "value", "octets"), VECTORS)
def test_every_truncation_is_refused(codec: Any, kind: Any, value: Any, octets: str) -> None:
    whole = bytes.fromhex(octets)
    for length in range(len(whole)):
        with pytest.raises(XdrError):
            codec.Decoder(whole[:length]).decode(kind)


def test_an_enumeration_comes_out_as_its_member(codec: Any) -> None:
    assert codec.Decoder(bytes.fromhex("0000000d 00000001 0000000000000001")).decode(Result).status is Status.DENIED


@pytest.mark.parametrize(
    ("kind", "octets"),
    [
        (bool, "00000002"),
        (Colour, "00000001"),
        (Choice, "ffffffff"),
        (Choice, "00000007"),
        (Either, "00000002"),
        (Annotated[bytes, opaque(4)], "00000005 6162636465000000"),
        (Annotated[list[uint32], array(2)], "00000003 00000001 00000001 00000001"),
        (Lists, "00" * 16 + "00000001 00000000" * 4 + "00" * 8),
        (Point | None, "00000002" + "00" * 12),
    ],
)
def test_octets_outside_of_the_declaration_are_refused(codec: Any, kind: Any, octets: str) -> None:
    with pytest.raises(XdrError):
        codec.Decoder(bytes.fromhex(octets)).decode(kind)


def test_a_count_beyond_the_message_is_refused_before_elements_are_made(codec: Any) -> None:
    decoder = codec.Decoder(bytes.fromhex("000f4240") + bytes(4000))
    with pytest.raises(XdrError):
        decoder.decode(Annotated[list[uint32], array(1 << 20)])
    assert decoder.position == 4


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (uint32, -1),
        (uint32, 1 << 32),
        (uint32, "1"),
        (Point, Point(1 << 31, 0)),
        (Point, Point(0, -(1 << 63) - 1)),
        (Point, Scalars(1, 1, 1, 1, True, Colour.RED, 0)),
        (Scalars, Scalars(0, 0, -1, 0, True, Colour.RED, 0)),
        (Scalars, Scalars(0, 0, 1 << 64, 0, True, Colour.RED, 0)),
        (Colour, 1),
        (Choice, Choice(Colour.BLUE)),
        (Choice, Choice(Colour.GREEN)),
        (Blobs, Blobs(b"0123456789", b"12345678", b"12345")),
        (Blobs, Blobs(b"", b"1234567", b"12345")),
        (Blobs, Blobs("text", b"12345678", b"12345")),  # type: ignore[arg-type]
        (Lists, Lists([1] * 5, [], [0, 0], [], None)),
        (Lists, Lists([], [], [0], [], None)),
        (Lists, Lists([], [], [0, 0], [b""] * 4, None)),
        (Lists, Lists(7, [], [0, 0], [], None)),  # type: ignore[arg-type]
        (None, 1),
        (Write, Write(0, Payload(memoryview(bytes(1001))), 0)),
    ],
)
def test_values_outside_of_the_declaration_are_refused(codec: Any, kind: Any, value: Any) -> None:
    with pytest.raises(XdrError):
        codec.Encoder().encode(kind, value)


def test_padding_is_ignored_unless_asked_for(codec: Any) -> None:
    dirty = bytes.fromhex("00000001 61ff0000")
    kind = Annotated[bytes, opaque(4)]
    assert codec.Decoder(dirty).decode(kind) == b"a"
    with pytest.raises(XdrError):
        codec.Decoder(dirty, strict_padding=True).decode(kind)
    assert codec.Decoder(bytes.fromhex("00000001 61000000"), strict_padding=True).decode(kind) == b"a"


def test_primitives_agree_with_declarations(codec: Any) -> None:
    encoder = codec.Encoder()
    encoder.uint32(1)
    encoder.int32(-1)
    encoder.uint64(2**63)
    encoder.int64(-5)
    encoder.boolean(True)
    encoder.opaque(memoryview(b"abcde"))
    encoder.fixed(b"xyz")
    encoder.append(bytes.fromhex("0000002a"))
    decoder = codec.Decoder(memoryview(encoder.getvalue()))
    assert (decoder.uint32(), decoder.int32(), decoder.uint64(), decoder.int64()) == (1, -1, 2**63, -5)
    assert decoder.boolean() is True
    assert (decoder.opaque(5), decoder.fixed(3)) == (b"abcde", b"xyz")
    assert decoder.remaining == 4
    assert decoder.uint32() == 42
    with pytest.raises(XdrError):
        encoder.append(b"123")


def test_patch_and_truncate(codec: Any) -> None:
    encoder = codec.Encoder()
    encoder.uint32(0)
    encoder.uint64(7)
    encoder.patch_uint32(0, 0xDEADBEEF)
    assert encoder.getvalue().hex() == "deadbeef0000000000000007"
    for position, value in ((9, 1), (12, 1), (-1, 1), (0, -1), (0, 1 << 32)):
        with pytest.raises(XdrError):
            encoder.patch_uint32(position, value)
    encoder.truncate(4)
    encoder.uint32(1)
    assert bytes(encoder.getbuffer()).hex() == "deadbeef00000001"
    for position in (12, -4, 3):
        with pytest.raises(XdrError):
            encoder.truncate(position)


class Hold:
    released = 0

    def release(self) -> None:
        self.released += 1


def test_a_payload_stays_out_of_the_buffer(codec: Any) -> None:
    first, second = Hold(), Hold()
    encoder = codec.Encoder()
    encoder.encode(Write, Write(1, Payload(memoryview(b"abcde"), first), 9))
    mark = encoder.position
    assert encoder.getvalue() == bytes.fromhex("0000000000000001 00000005 00000009")
    assert encoder.size == 24
    payload = Payload(memoryview(b"1234"), second)
    encoder.bulk(payload)
    assert [(offset, bytes(item.view)) for offset, item in encoder.payloads] == [(12, b"abcde"), (20, b"1234")]
    encoder.truncate(mark + 4)  # the payload stands behind its length word, which is kept
    assert len(encoder.payloads) == 2
    encoder.truncate(mark)
    assert (first.released, second.released) == (0, 1)
    assert (encoder.size, len(encoder.payloads)) == (24, 1)


def test_what_is_spliced_in_is_part_of_the_message_and_stays_where_it_is(codec: Any) -> None:
    hold = Hold()
    encoder = codec.Encoder(limit=24)
    encoder.uint32(1)
    mark = encoder.position
    encoder.uint32(2)
    encoder.splice(Payload(memoryview(b"12345678"), hold, eligible=False))
    encoder.uint32(3)
    assert encoder.getvalue() == bytes.fromhex("00000001 00000002 00000003")
    assert [(offset, bytes(item.view), item.eligible) for offset, item in encoder.payloads] == [(8, b"12345678", False)]
    assert encoder.size == 20
    with pytest.raises(XdrOverflow):
        encoder.splice(Payload(memoryview(bytes(8))))
    with pytest.raises(XdrError):
        encoder.splice(Payload(memoryview(b"123")))
    encoder.truncate(mark)
    assert (hold.released, encoder.size, encoder.payloads) == (1, 4, [])


def test_plain_octets_in_an_eligible_item_go_inline(codec: Any) -> None:
    encoder = codec.Encoder()
    encoder.encode(Write, Write(1, b"abcde", 9))
    assert encoder.getvalue() == bytes.fromhex("0000000000000001 00000005 6162636465000000 00000009")
    assert encoder.payloads == []


def test_the_limit_counts_payloads_and_is_an_error_of_its_own(codec: Any) -> None:
    encoder = codec.Encoder(limit=24)
    encoder.encode(Write, Write(1, Payload(memoryview(b"abcde")), 9))
    with pytest.raises(XdrOverflow):
        encoder.uint32(0)
    encoder.limit = 28
    encoder.uint32(0)
    for kind, value in ((Point, Point(1, 1)), (Write, Write(1, Payload(memoryview(b"1")), 1)), (Lists, VECTORS[5][1])):
        encoder = codec.Encoder(limit=8)
        with pytest.raises(XdrOverflow):
            encoder.encode(kind, value)


REDUCED = bytes.fromhex("0000000000000001 00000005 00000009")


@pytest.mark.parametrize("chunk", [b"abcde", b"abcde\xff\xff\xff"])
def test_a_chunk_replaces_data_and_padding(codec: Any, chunk: bytes) -> None:
    view = memoryview(chunk)
    decoder = codec.Decoder(REDUCED, [(12, view)])
    value = decoder.decode(Write)
    assert (value.offset, bytes(value.data), value.trailer) == (1, b"abcde", 9)
    assert value.data.obj is chunk
    assert (decoder.position, decoder.unreduced_position) == (16, 24)
    decoder.finish(strict=True)


def test_positions_count_the_chunks_before_them(codec: Any) -> None:
    decoder = codec.Decoder(bytes(4) + REDUCED + REDUCED, [(16, memoryview(b"abcde")), (40, memoryview(b"vwxyz"))], 4)
    assert [bytes(decoder.decode(Write).data) for _ in range(2)] == [b"abcde", b"vwxyz"]
    decoder.finish(strict=True)


def test_data_without_a_chunk_is_inline_and_not_copied(codec: Any) -> None:
    data = bytes.fromhex("0000000000000001 00000005 6162636465000000 00000009")
    value = codec.Decoder(data).decode(Write)
    assert bytes(value.data) == b"abcde"
    assert value.data.obj is data


@pytest.mark.parametrize("chunk", [b"", b"abcd", b"abcdef", b"abcdefghi"])
def test_a_chunk_of_another_length_is_refused(codec: Any, chunk: bytes) -> None:
    with pytest.raises(XdrError):
        codec.Decoder(REDUCED, [(12, memoryview(chunk))]).decode(Write)


@pytest.mark.parametrize("position", [0, 8, 16, 100])
def test_a_chunk_that_matches_no_item_is_found_out(codec: Any, position: int) -> None:
    decoder = codec.Decoder(bytes.fromhex("0000000000000001 00000000 00000009"), [(position, memoryview(b""))])
    decoder.decode(Write)
    with pytest.raises(XdrError):
        decoder.finish()


def test_octets_that_remain_matter_only_when_strict(codec: Any) -> None:
    decoder = codec.Decoder(bytes(8))
    decoder.uint32()
    decoder.finish()
    with pytest.raises(XdrError):
        decoder.finish(strict=True)


def test_a_start_outside_of_the_message_is_refused(codec: Any) -> None:
    for offset in (-1, 5):
        with pytest.raises(XdrError):
            codec.Decoder(bytes(4), (), offset)


def test_declarations_that_cannot_be_bounded_do_not_compile(codec: Any) -> None:
    for kind in (
        Annotated[bytes, opaque()],
        Annotated[list[uint32], array()],
        Annotated[list[None], array(3)],
        int,
        list[uint32],
    ):
        with pytest.raises(SchemaError):
            codec.Encoder().encode(kind, [])


def test_unions_are_checked_when_declared(codec: Any) -> None:
    with pytest.raises(SchemaError, match="two arms"):

        @union(void=(1,))
        class Twice:
            kind: uint32
            arm: Annotated[uint32 | None, case(1)] = None

    with pytest.raises(SchemaError, match="no values of"):

        @union
        class Foreign:
            kind: Colour
            arm: Annotated[uint32 | None, case(77)] = None

    with pytest.raises(SchemaError, match="__post_init__"):

        @struct
        class Eager:
            number: uint32

            def __post_init__(self) -> None: ...

    with pytest.raises(SchemaError, match="declared before"):

        @struct
        class Recursive:
            next: Recursive | None


def test_values_are_compared_and_shown_by_their_declaration(codec: Any) -> None:
    @struct
    class Pair:
        left: uint32
        right: Annotated[bytes, opaque(8)]

    @struct
    class Alike:
        left: uint32
        right: Annotated[bytes, opaque(8)]

    assert Pair(1, b"x") == Pair(1, b"x")
    assert Pair(1, b"x") != Pair(1, b"y")
    assert Pair(1, b"x") != Pair(2, b"x")
    assert Pair(1, b"x") != Alike(1, b"x")
    assert repr(Pair(1, b"x")).endswith("Pair(left=1, right=b'x')")
    with pytest.raises(TypeError, match="unhashable"):
        hash(Pair(1, b"x"))
