"""The native codec of transport headers beside the reference codecs: the same of every message, errors included."""

from __future__ import annotations

from rpcrdma.engine.reduce import fill, unused
from rpcrdma.wire import transport_header
from rpcrdma.wire.header import CALL, OPTION, SMALLEST_HEADER, Codec, Discard, Fault, Header, HeaderFault
from rpcrdma.wire.version_two import MessageHeader, OptionHeader

FAULTS = {Fault.PROCEDURE: "procedure", Fault.HEADER: "header"}


def reference(spoken: Codec, view: memoryview, most: int) -> str | Header:
    """What the reference codec says to a message of its version."""
    if len(view) < SMALLEST_HEADER:
        return "discard"
    try:
        return spoken.decode(view, most)
    except Discard:
        return "discard"
    except HeaderFault as fault:
        return FAULTS[fault.fault]


def _fields(header: Header) -> tuple[object, ...]:
    handle = header.inv_handle if isinstance(header, MessageHeader) else 0
    return (
        header.xid, header.version, header.credits, header.procedure, header.direction, handle, header.reads,
        header.writes, header.reply, header.payload,
    )  # fmt: skip


def check_native_header(spoken: Codec, view: memoryview, most: int) -> Header | None:
    """Compare all that native code says of a message. Returns the header, if it is a call's."""
    expected = reference(spoken, view, most)
    seen = transport_header.decode(view, most)
    if isinstance(expected, str):
        assert seen == expected
        return None
    assert seen == _fields(expected)
    if isinstance(expected, OptionHeader):
        assert expected.direction == OPTION
        return None
    assert transport_header.invalidated(view, most) == spoken.invalidates(expected)
    _check_replies(spoken, view, most, expected)
    return expected if expected.direction == CALL else None


def _check_replies(spoken: Codec, view: memoryview, most: int, header: Header) -> None:
    """The headers of replies that put nothing, one octet, all but one and as much as there is room for into the first
    Write chunk and into the Reply chunk."""
    first = header.writes[0] if header.writes else []
    rooms = [min(sum(length for _, length, _ in chunk), 1 << 20) for chunk in (first, header.reply or [])]
    for share in range(4):
        sizes = [min((0, 1, max(room - 1, 0), room)[share], room) for room in rooms]
        writes = [unused(chunk) for chunk in header.writes]
        if writes:
            _, writes[0] = fill(header.writes[0], (memoryview(bytes(sizes[0])),))
        reply = None
        if header.reply is not None:
            _, reply = fill(header.reply, (memoryview(bytes(sizes[1])),))
        into = memoryview(bytearray(spoken.reply_size(header)))
        size = spoken.encode_reply(into, header, 7, share & 1, writes, reply)
        assert size == len(into)
        assert transport_header.encode_reply(view, most, 7, share & 1, *sizes) == bytes(into)
