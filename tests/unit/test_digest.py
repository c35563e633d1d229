"""Digests: of the octets, however they were cut, and of every one of them."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from rpcrdma.digest import digest_of

PIECES = st.lists(st.binary(max_size=300), max_size=8)


@given(PIECES, PIECES)
def test_it_is_of_the_octets_alone(one, other):
    assert digest_of(*one) == digest_of(b"".join(one))
    assert (digest_of(*one) == digest_of(*other)) == (b"".join(one) == b"".join(other))


def test_every_octet_and_its_place_count():
    octets = bytearray(700)
    seen = {digest_of(octets)}
    for at in range(len(octets)):
        octets[at] = 1
        seen.add(digest_of(octets))
        octets[at] = 0
    assert len(seen) == 701


def test_the_length_counts():
    assert len({digest_of(bytes(length)) for length in range(1000)}) == 1000


def test_what_is_moved_or_swapped_is_something_else():
    blocks = [bytes([number]) * 96 for number in range(6)]
    seen = set()
    for shift in range(6):
        seen.add(digest_of(*blocks[shift:], *blocks[:shift]))
    assert len(seen) == 6
    halves = bytes(8) + b"\1" * 8
    assert digest_of(halves) != digest_of(halves[8:], halves[:8])


def test_another_process_has_another_secret():
    ours = digest_of(b"the same octets")
    code = "from rpcrdma.digest import digest_of; print(digest_of(b'the same octets'))"
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(theirs) != ours
