"""The native codec and the reference codec agree, octet for octet and error for error, on every declaration."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nfsd.protocol import nfs4
from rpcrdma.xdr import XdrError, XdrOverflow, codec, native, node_of, schema, struct, uint32
from tests.unit.xdr_values import DECLARED, samples_of, typed_values, values_of

SLOW = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))


def encoded(module: Any, cls: type, value: Any, limit: int = 1 << 20) -> tuple[Any, ...]:
    """Everything that can be seen of an encoding, or of its failure."""
    encoder = module.Encoder(limit)
    encoder.uint32(7)
    error: type[BaseException] | None = None
    try:
        encoder.encode(cls, value)
    except XdrError as raised:
        error = type(raised)
    payloads = [(position, bytes(payload.view)) for position, payload in encoder.payloads]
    return error, encoder.getvalue(), encoder.position, encoder.size, payloads


def decoded(module: Any, cls: type, data: bytes, chunks: list[tuple[int, memoryview]], strict: bool) -> tuple[Any, ...]:
    """Everything that can be seen of a decoding, or of its failure."""
    decoder = module.Decoder(data, chunks, 4, strict)
    try:
        value = decoder.decode(cls)
    except XdrError as raised:
        return type(raised), None
    after = (decoder.position, decoder.unreduced_position, decoder.remaining)
    try:
        decoder.finish(strict=True)
    except XdrError as raised:
        return type(raised), value, after
    return None, value, after


def chunks_of(payloads: list[tuple[int, bytes]], padding: bytes = b"") -> list[tuple[int, memoryview]]:
    """What was reduced, as chunks at their positions in the unreduced stream, with ``padding`` up to four octets."""
    chunks, shift = [], 0
    for at, data in payloads:
        chunks.append((at + shift, memoryview(data + padding[: -len(data) % 4])))
        shift += (len(data) + 3) & ~3
    return chunks


DAMAGE = [value.to_bytes(4, "big") for value in (0, 1, 2, 3, 5, 6, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)]


def test_every_declaration_with_every_word_damaged() -> None:
    outcomes = {True: 0, False: 0}
    for cls in DECLARED:
        for value in samples_of(node_of(cls)):
            reference = encoded(codec, cls, value)
            assert encoded(native, cls, value) == reference
            error, octets, _, _, payloads = reference
            assert error is None
            for padding in (b"", b"\xff\xff\xff"):
                chunks = chunks_of(payloads, padding)
                result = decoded(codec, cls, octets, chunks, False)
                assert decoded(native, cls, octets, chunks, False) == result
                assert result[0] is None
            for at in range(4, min(len(octets), 256), 4):
                for word in DAMAGE:
                    damaged = octets[:at] + word + octets[at + 4 :]
                    result = decoded(codec, cls, damaged, chunks, True)
                    assert decoded(native, cls, damaged, chunks, True) == result, (cls, value, at, word)
                    outcomes[result[0] is None] += 1
                cut = decoded(codec, cls, octets[:at], chunks, False)
                assert decoded(native, cls, octets[:at], chunks, False) == cut
                assert cut[0] is XdrError
    assert min(outcomes.values()) > 10_000


@SLOW
@given(typed_values())
def test_values_are_the_same_octets_both_ways(typed: tuple[type, Any]) -> None:
    cls, value = typed
    reference = encoded(codec, cls, value)
    assert encoded(native, cls, value) == reference
    error, octets, position, size, payloads = reference
    assert error is None
    chunks = chunks_of(payloads)
    result = decoded(codec, cls, octets, chunks, True)
    assert decoded(native, cls, octets, chunks, True) == result
    assert result[0] is None
    assert result[2] == (position, size, 0)
    assert encoded(native, cls, result[1])[3] == size


@SLOW
@given(typed_values(wrong=True))
def test_wrong_values_are_the_same_errors(typed: tuple[type, Any]) -> None:
    cls, value = typed
    assert encoded(native, cls, value) == encoded(codec, cls, value)


def test_the_limit_is_met_at_the_same_place() -> None:
    for cls in DECLARED:
        for value in samples_of(node_of(cls)):
            size = encoded(codec, cls, value)[3]
            for limit in range(4, min(size, 256) + 4, 4):
                reference = encoded(codec, cls, value, limit)
                assert encoded(native, cls, value, limit) == reference
                assert reference[0] is (XdrOverflow if limit < size else None)
                assert reference[3] <= limit


@SLOW
@given(typed_values(), st.data(), st.booleans())
def test_damaged_octets_are_the_same_values_or_errors(
    typed: tuple[type, Any], data: st.DataObject, strict: bool
) -> None:
    cls, value = typed
    octets = bytearray(encoded(codec, cls, value)[1])
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(octets) - 1))
        octets[at] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]))
    cut = data.draw(st.integers(4, len(octets)))
    length = data.draw(st.sampled_from([cut, len(octets), len(octets)]))
    positions = data.draw(st.lists(st.integers(0, len(octets)), max_size=2, unique=True).map(sorted))
    chunks = [(position & ~3, memoryview(b"12345678")[: data.draw(st.integers(0, 8))]) for position in positions]
    message = bytes(octets[:length])
    assert decoded(native, cls, message, chunks, strict) == decoded(codec, cls, message, chunks, strict)


@SLOW
@given(st.sampled_from(DECLARED), st.binary(max_size=64).map(lambda data: bytes(4) + data))
def test_arbitrary_octets_are_the_same_values_or_errors(cls: type, octets: bytes) -> None:
    assert decoded(native, cls, octets, [], False) == decoded(codec, cls, octets, [], False)


def test_every_declaration_is_stored_by_offset() -> None:
    encoder = native.Encoder()
    assert len(DECLARED) > 300
    for cls in DECLARED:
        with pytest.raises(XdrError):
            encoder.encode(cls, None)
        node = node_of(cls)
        assert node.kind in (schema.STRUCT, schema.UNION)
        assert node.native.uses_slots


def test_fields_whose_slots_cannot_be_relied_on_are_set_by_name() -> None:
    @struct
    class Hooked:
        first: uint32
        second: uint32

    slot = vars(Hooked)["second"]
    seen: list[int] = []

    def store(self: Any, value: int) -> None:
        seen.append(value)
        slot.__set__(self, value)

    Hooked.second = property(slot.__get__, store)  # type: ignore[assignment]
    made = native.Decoder(bytes.fromhex("00000001 00000002")).decode(Hooked)
    assert not node_of(Hooked).native.uses_slots
    assert (made.first, made.second, seen) == (1, 2, [2])
    encoder = native.Encoder()
    encoder.encode(Hooked, made)
    assert encoder.getvalue() == bytes.fromhex("00000001 00000002")


@pytest.mark.parametrize(("choice", "chosen"), [("", True), ("reference", False)])
def test_the_environment_chooses_the_codec(choice: str, chosen: bool) -> None:
    script = "from rpcrdma.xdr import NATIVE, Decoder; print(NATIVE, Decoder.__module__)"
    environment = os.environ | {"RPCRDMA_XDR": choice, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(chosen), "rpcrdma.xdr._decoder" if chosen else "rpcrdma.xdr.codec"]


def test_objects_made_by_the_native_codec_are_ordinary_ones() -> None:
    made = native.Decoder(bytes(16)).decode(nfs4.stateid4)
    assert made == nfs4.stateid4(0, bytes(12))
    made.seqid = 5
    made.other = b"x" * 12
    assert (made.seqid, repr(made)) == (5, repr(nfs4.stateid4(5, b"x" * 12)))
    del made.seqid
    with pytest.raises(AttributeError):
        native.Encoder().encode(nfs4.stateid4, made)


def test_a_view_of_the_buffer_holds_it_still() -> None:
    encoder = native.Encoder()
    encoder.uint64(1)
    view = encoder.getbuffer()
    for change in (lambda: encoder.uint32(1), lambda: encoder.truncate(0), lambda: encoder.patch_uint32(0, 1)):
        with pytest.raises(BufferError):
            change()
    assert bytes(view) == bytes(7) + b"\1"
    view.release()
    encoder.uint32(1)
    assert encoder.position == 12


def test_no_object_outlives_its_message() -> None:
    """Neither decoding nor failing in the middle leaks references."""
    args = nfs4.OPEN4args(
        0, 1, 0, nfs4.state_owner4(1, b"owner"), nfs4.openflag4(nfs4.opentype4.OPEN4_NOCREATE),
        nfs4.open_claim4(nfs4.open_claim_type4.CLAIM_NULL, file=b"name"),
    )  # fmt: skip
    encoder = native.Encoder()
    encoder.encode(nfs4.OPEN4args, args)
    octets = encoder.getvalue()

    def use() -> None:
        for length in range(0, len(octets) + 1, 4):
            try:
                native.Decoder(octets[:length]).decode(nfs4.OPEN4args)
            except XdrError:
                continue
        for limit in range(0, len(octets), 4):
            with pytest.raises(XdrOverflow):
                native.Encoder(limit).encode(nfs4.OPEN4args, args)

    use()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(50):
        use()
    gc.collect()
    assert sys.getallocatedblocks() - before < 50


def test_values_cover_every_kind() -> None:
    """The strategies reach every kind, so that the tests above mean something."""
    kinds = set()

    def visit(node: Any) -> None:
        kinds.add(node.kind)
        for part in [part for _, part in node.fields] + ([node.element] if node.element else []):
            visit(part)

    for cls in DECLARED:
        visit(node_of(cls))
        values_of(node_of(cls)).validate()
    assert kinds == set(range(1, 16))
