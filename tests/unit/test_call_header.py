"""The header of calls, as the declarations of RFC 5531 have it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcrdma.rpc.call_header import CallHeader, Flaw
from rpcrdma.rpc.messages import call_body, opaque_auth, rpc_body, rpc_msg
from rpcrdma.xdr import pack

words = st.integers(0, 0xFFFFFFFF)
bodies = st.binary(max_size=400)


@given(words, st.tuples(words, words, words), words, bodies, words, bodies, st.binary(max_size=20))
def test_a_header_says_what_was_packed(xid, number, flavor, body, verifier_flavor, verifier, behind):
    call = call_body(2, *number, opaque_auth(flavor, body), opaque_auth(verifier_flavor, verifier))
    packed = pack(rpc_msg, rpc_msg(xid, rpc_body(0, call)))
    found = CallHeader(memoryview(packed + behind))
    assert found.flaw == Flaw.FLAWLESS
    assert (found.xid, found.number, found.flavor, bytes(found.credential)) == (xid, number, flavor, body)
    assert (found.verifier_flavor, bytes(found.verifier)) == (verifier_flavor, verifier)
    assert found.arguments == len(packed)
    assert found.unverified == ((verifier_flavor, verifier) == (0, b""))
    signed = len(packed) - 8 - len(verifier) - -len(verifier) % 4
    assert bytes(found.signed) == packed[:signed]


def header(*, kind=0, version=2, length=0, size=40):
    return memoryview((struct.pack(">8I", 7, kind, version, 100003, 3, 0, 1, length) + bytes(500))[:size])


@pytest.mark.parametrize(("octets", "flaw"), [
    (header(size=7), Flaw.NO_CALL),
    (header(kind=1), Flaw.NO_CALL),
    (header(kind=1, size=8), Flaw.NO_CALL),
    (header(size=8), Flaw.CUT_SHORT),
    (header(version=3, size=12), Flaw.OTHER_VERSION),
    (header(version=3, size=11), Flaw.CUT_SHORT),
    (header(size=39), Flaw.CUT_SHORT),
    (header(length=400, size=439), Flaw.CUT_SHORT),
    (header(length=400, size=440), Flaw.FLAWLESS),
    (header(length=401, size=532), Flaw.LONG_CREDENTIAL),
    (header(length=0xFFFFFFFF), Flaw.LONG_CREDENTIAL),
])  # fmt: skip
def test_a_flaw_is_told(octets, flaw):
    found = CallHeader(octets)
    assert found.flaw == flaw
    assert flaw == Flaw.NO_CALL or found.xid == 7


def test_a_verifier_may_be_longer_than_the_message():
    octets = header()[:32].tobytes() + struct.pack(">2I", 6, 0xFFFFFFFF) + b"abc"
    found = CallHeader(memoryview(octets))
    assert found.flaw == Flaw.FLAWLESS
    assert not found.unverified
    assert bytes(found.verifier) == b"abc"
    assert found.arguments == 40 + (1 << 32) > len(octets)
