"""Decoding results whose DDP-eligible items may be in the requester's memory already (RFC 8166 section 4.3.2)."""

from __future__ import annotations

from typing import Any

import pytest

from rpcrdma.xdr import XdrError, _decoder, results
from tests.unit.xdr_samples import Write

pytestmark = pytest.mark.parametrize("codec", [results, _decoder], ids=["reference", "native"])

REDUCED = bytes.fromhex("0000000000000001 00000005 00000009")
INLINE = bytes.fromhex("0000000000000001 00000005 6162636465000000 00000009")


def decoder_of(codec: Any, data: bytes, *places: tuple[memoryview, int]) -> Any:
    decoder = codec.ResultDecoder(data, (), 0)
    decoder.places = list(places)
    return decoder


@pytest.mark.parametrize("there", [5, 8])
def test_what_was_placed_is_taken_from_its_place(codec: Any, there: int) -> None:
    memory = bytearray(b"vwxyz...12345678")
    decoder = decoder_of(codec, REDUCED, (memoryview(memory), there))
    value = decoder.decode(Write)
    decoder.finish(strict=True)
    assert (value.offset, bytes(value.data), value.trailer) == (1, b"vwxyz", 9)
    assert value.data.obj is memory


def test_what_stands_inline_is_copied_to_its_place(codec: Any) -> None:
    memory = bytearray(b"." * 8)
    decoder = decoder_of(codec, INLINE, (memoryview(memory), 0))
    value = decoder.decode(Write)
    decoder.finish(strict=True)
    assert value.data.obj is memory
    assert (bytes(value.data), bytes(memory)) == (b"abcde", b"abcde...")


def test_what_is_too_long_for_its_place_or_has_none_stays_where_it_is(codec: Any) -> None:
    memory = bytearray(b"....")
    decoder = decoder_of(codec, INLINE + INLINE, (memoryview(memory), 0))
    assert [bytes(decoder.decode(Write).data) for _ in range(2)] == [b"abcde", b"abcde"]
    decoder.finish(strict=True)
    assert memory == b"...."


def test_the_items_find_their_places_in_order(codec: Any) -> None:
    places = [memoryview(bytearray(b"first...")), memoryview(bytearray(8)), memoryview(bytearray(b"third"))]
    decoder = decoder_of(codec, REDUCED + INLINE + REDUCED, (places[0], 5), (places[1], 0), (places[2], 5))
    assert [bytes(decoder.decode(Write).data) for _ in range(3)] == [b"first", b"abcde", b"third"]
    decoder.finish(strict=True)


@pytest.mark.parametrize("there", [1, 4, 6, 7, 16])
def test_another_length_than_the_items_is_an_error(codec: Any, there: int) -> None:
    with pytest.raises(XdrError):
        decoder_of(codec, REDUCED, (memoryview(bytearray(16)), there)).decode(Write)


def test_what_was_placed_for_no_item_is_an_error(codec: Any) -> None:
    decoder = decoder_of(codec, INLINE, (memoryview(bytearray(8)), 0), (memoryview(bytearray(8)), 8))
    decoder.decode(Write)
    with pytest.raises(XdrError):
        decoder.finish()
