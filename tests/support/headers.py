"""The codec of transport headers beside the reference: the same of every message, errors included."""

from __future__ import annotations

import random

from rpcrdma.wire import transport_header
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.header import Discard, Fault, Header, HeaderFault, MessageHeader, OptionHeader
from tests.support import reference_headers as reference
from tests.support.reference_headers import Reference

FAULTS = {Fault.VERSION: reference.VERSION, Fault.PROCEDURE: reference.PROCEDURE, Fault.HEADER: reference.HEADER}


def decoded(spoken: Codec, view: memoryview, most: int) -> str | Header:
    """What the codec says to a message."""
    try:
        return spoken.decode(view, most)
    except Discard:
        return reference.DISCARD
    except HeaderFault as raised:
        fault = raised
    assert (fault.xid, fault.version) == (int.from_bytes(view[:4], "big"), int.from_bytes(view[4:8], "big"))
    assert str(fault)
    return FAULTS[fault.fault]


def _fields(header: Header) -> Reference:
    option = None
    if isinstance(header, OptionHeader):
        option = (header.optdir, header.opttype, bytes(header.info))
    else:
        assert isinstance(header, MessageHeader) == (header.version == 2)
    return Reference(
        header.xid, header.version, header.credits, header.procedure, header.direction,
        header.inv_handle if isinstance(header, MessageHeader) else 0, header.reads, header.writes, header.reply,
        header.payload, option,
    )  # fmt: skip


def check_header(spoken: Codec, view: memoryview, most: int) -> str | Header:
    """Compare all that the codec says of a message. Returns that."""
    expected = reference.decode(bytes(view), most)
    seen = decoded(spoken, view, most)
    if isinstance(expected, str) or isinstance(seen, str):
        assert seen == expected
        return seen
    assert _fields(seen) == expected
    if expected.option is None:
        assert spoken.invalidates(seen) == reference.invalidates(expected)
        _check_handles(seen, expected)
        _check_replies(spoken, seen, expected)
    return seen


def _check_handles(header: Header, expected: Reference) -> None:
    handles = set(reference.offered(expected))
    assert all(transport_header.offers(header, handle) for handle in handles)
    assert not any(transport_header.offers(header, handle) for handle in {0, 1, 7, 0xFFFFFFFF} - handles)


def _check_replies(spoken: Codec, header: Header, expected: Reference) -> None:
    """The headers of replies that put nothing, one octet, all but one and as much as there is room for into each chunk;
    or anything, and only into some of the Write chunks."""
    rng = random.Random(expected.payload)
    rooms = [sum(length for _, length, _ in chunk) for chunk in expected.writes]
    room = sum(length for _, length, _ in expected.reply or [])
    for share in range(6):
        in_writes = [min((0, 1, max(most - 1, 0), most, rng.randint(0, most))[min(share, 4)], most) for most in rooms]
        if share >= 4:
            in_writes = in_writes[: rng.randint(0, len(rooms))]
        in_reply = min((0, 1, max(room - 1, 0), room, rng.randint(0, room))[min(share, 4)], room)
        size = spoken.reply_size(header)
        into = bytearray(size + 4)
        assert spoken.encode_reply(memoryview(into), header, 7, share & 1, in_writes, in_reply) == size
        assert into == reference.reply_header(expected, 7, share & 1, in_writes, in_reply) + bytes(4)
