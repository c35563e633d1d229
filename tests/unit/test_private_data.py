"""RFC 8797: the format of the private data, and what two peers make of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcrdma.wire.private_data import ABSENT, PrivateData, find, negotiate
from tests.rfc.plugin import covers

MAGIC = bytes.fromhex("f6ab0e18")


@covers("RFC 8797 4 format")
def test_format_is_that_of_section_4():
    assert PrivateData(True, 4096, 8192).encode() == MAGIC + bytes([1, 1, 3, 7])
    assert PrivateData(False, 1024, 262144).encode() == MAGIC + bytes([1, 0, 0, 255])


@pytest.mark.parametrize("size", [0, 1023, 1025, 4095, 262144 + 1024])
def test_sizes_outside_the_format_are_refused(size):
    with pytest.raises(ValueError, match="multiple of 1024"):
        PrivateData(True, size, 4096).encode()
    with pytest.raises(ValueError, match="multiple of 1024"):
        PrivateData(True, 4096, size).encode()


@covers("RFC 8797 5.2 any-offset")
@given(st.booleans(), st.integers(1, 256), st.integers(1, 256), st.binary(max_size=40), st.binary(max_size=40))
def test_found_at_any_offset(invalidation, send, receive, before, behind):
    data = PrivateData(invalidation, send * 1024, receive * 1024)
    if MAGIC not in before + data.encode()[:3]:
        assert find(before + data.encode() + behind) == data


@covers("RFC 8797 4 reserved")
def test_reserved_flags_are_ignored():
    found = find(MAGIC + bytes([1, 0xFE, 3, 3]))
    assert found == PrivateData(False, 4096, 4096)
    assert find(MAGIC + bytes([1, 0xFF, 3, 3])) == PrivateData(True, 4096, 4096)


def test_octets_behind_the_format_are_ignored():
    assert find(MAGIC + bytes([1, 1, 3, 3]) + b"future fields") == PrivateData(True, 4096, 4096)


@covers("RFC 8797 5.2 checks", "RFC 8797 5.1 absent")
@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\0" * 512,
        MAGIC,
        MAGIC + bytes([1, 1, 3]),
        MAGIC + bytes([2, 1, 3, 3]),
        MAGIC + bytes([0, 1, 3, 3]),
        MAGIC[::-1] + bytes([1, 1, 3, 3]),
    ],
)
def test_absent_cut_off_or_of_another_version(octets):
    assert find(octets) is None
    # Section 5.1: as if R were clear and both sizes zero.
    own = PrivateData(True, 4096, 4096)
    properties = negotiate(own, find(octets))
    assert (properties.send_threshold, properties.receive_threshold) == (1024, 1024)
    assert not properties.remote_invalidation
    assert properties == negotiate(own, ABSENT)


def test_an_identifier_of_another_format_does_not_hide_ours():
    assert find(MAGIC + bytes([9, 9, 9, 9]) + MAGIC + bytes([1, 1, 3, 3])) == PrivateData(True, 4096, 4096)
    assert find(MAGIC + MAGIC + bytes([1, 0, 0, 0])) == ABSENT


@given(st.binary(max_size=600))
def test_any_octets_can_be_searched(octets):
    found = find(octets)
    assert found is None or 1024 <= found.send_size <= 262144


@covers("RFC 8797 4.1 both-r", "RFC 8797 4.1 either-clear")
@pytest.mark.parametrize(("ours", "theirs"), [(True, True), (True, False), (False, True), (False, False)])
def test_remote_invalidation_takes_both_r_bits(ours, theirs):
    properties = negotiate(PrivateData(ours, 4096, 4096), PrivateData(theirs, 4096, 4096))
    assert properties.remote_invalidation == (ours and theirs)


@covers("RFC 8797 4.2 sizes")
def test_thresholds_are_the_smaller_sizes_in_each_direction():
    properties = negotiate(PrivateData(True, 8192, 2048), PrivateData(True, 4096, 16384))
    assert properties.send_threshold == 8192
    assert properties.receive_threshold == 2048
    properties = negotiate(PrivateData(True, 65536, 65536), PrivateData(True, 1024, 262144))
    assert (properties.send_threshold, properties.receive_threshold) == (65536, 1024)
