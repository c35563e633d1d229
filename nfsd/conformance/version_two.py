"""Questions about draft-cel-nfsv4-rpcrdma-version-two-02, to a server that has version Two."""

from __future__ import annotations

import struct
from typing import Any

from nfsd.conformance.link import Absent, Differs, Link, Target, asks, expect, lengths, opaque, rpc_call, untouched
from nfsd.conformance.link import name as named
from nfsd.conformance.rfc8166 import DATA
from rpcrdma.peer.requester import Exposed, Message
from rpcrdma.peer.wire import MSG, REPLY, ReplyHeader, header, header_two, option, words

DRAFT = "draft-cel-nfsv4-rpcrdma-version-two-02"
ERR_VERS, BAD_XDR, CANT_REPLY, INVAL_PROC, INVAL_OPTION = range(1, 6)
HEAD = 36
"""Octets of a header without chunks."""
WAITS = 3
"""Times that the first message is sent: siw's accepting side may notice one only when the next one comes."""


class Two:
    """A connection whose first message was of version Two."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def call(self, procedure: int, arguments: bytes = b"", xid: int | None = None, **how: Any) -> Message:
        """An NFSv3 call, its rdma_inv_handle and chunks those of ``how``; the message that comes back."""
        if xid is None:
            xid = self.link.next_xid()
        self.link.peer.send(header_two(xid, **how), rpc_call(xid, procedure) + arguments)
        message = await self.link.message()
        expect(message.header.xid, xid, "the XID of the answer")
        return message

    async def null(self) -> ReplyHeader:
        """NULL's answer."""
        return (await self.call(0)).header


async def unsettled(target: Target) -> Two:
    """A connection on which nothing has been said."""
    return Two(await target.link(wake=False))


async def settled(target: Target) -> Two:
    """One on which a NULL was answered in version Two. Raises Absent."""
    two = await unsettled(target)
    found = await two.null()
    if found.error == ERR_VERS and found.versions[1] < 2:
        raise Absent("it has no version Two")
    expect((found.version, found.error), (2, 0), "version and error of the answer to NULL in version Two")
    return two


def whole(found: ReplyHeader, what: str) -> None:
    """Differs unless it is the reply of a success, in version Two."""
    expect(found.version, 2, f"the version of {what}")
    if named(found) != "success":
        raise Differs(f"{what}: {named(found)}")


async def a_file(target: Target, name: bytes) -> bytes:
    """The handle of a file that has DATA; made in version One, on another connection."""
    return await (await target.link()).filled(name, DATA)


def reading(handle: bytes, count: int) -> bytes:
    """Arguments of READ, from the start."""
    return opaque(handle) + struct.pack(">QI", 0, count)


@asks(
    f"{DRAFT} Negotiation supported",
    f"{DRAFT} Negotiation version-of-the-call",
    f"{DRAFT} XDR header",
    f"{DRAFT} Message-Direction msg",
    f"{DRAFT} Presence-Of-Payload msg",
)
async def supported(target: Target) -> None:
    two = await settled(target)
    for _ in range(3):
        found = await two.null()
        whole(found, "NULL's answer")
        expect((found.procedure, found.direction, found.inv_handle), (MSG, REPLY, 0), "procedure, direction, handle")
        expect(found.payload, words(found.xid, 1, 0, 0, 0, 0), "the payload")
        expect((found.reads, found.writes, found.reply), (0, (), None), "chunks")


@asks(f"{DRAFT} Negotiation settled", f"{DRAFT} Transport-Errors vers", f"{DRAFT} Transport-Errors fields")
async def stays(target: Target) -> None:
    two = await settled(target)
    link = two.link
    for version in (1, 3):
        xid = link.next_xid()
        found = await link.raw(header(xid, version=version), rpc_call(xid, 0))
        expect((found.error, found.xid, found.version), (ERR_VERS, xid, version), "error, XID and version")
        lowest, highest = found.versions
        if not lowest <= 2 <= highest:
            raise Differs(f"version {version} is refused with the range {found.versions}")
    whole(await two.null(), "NULL after that")


@asks(f"{DRAFT} Negotiation first-message")
async def first_message(target: Target) -> None:
    await settled(target)  # or there is no version Two
    handle = await a_file(target, b"first")
    two = await unsettled(target)
    message = await two.call(6, reading(handle, 2000))
    if len(message.octets) > 1024:
        raise Differs(f"the first message is answered with {len(message.octets)} octets")


@asks(
    f"{DRAFT} Default-Values receive-4096",
    f"{DRAFT} Default-Values send-4096",
    f"{DRAFT} Negotiation threshold-change",
)
async def thresholds(target: Target) -> None:
    await settled(target)
    handle = await a_file(target, b"sizes")
    two = await settled(target)
    room = 4096 - HEAD - len(rpc_call(0, 7)) - len(opaque(handle)) - 20
    arguments = opaque(handle) + struct.pack(">QIII", 0, room, 2, room) + DATA[:room]
    whole((await two.call(7, arguments)).header, "a call of 4096 octets")
    longest = 4096 - HEAD - 24 - (4 + 88 + 12)
    message = await two.call(6, reading(handle, longest))
    whole(message.header, "a reply of 4096 octets")
    message = await two.call(6, reading(handle, longest + 4))
    if len(message.octets) > 4096:
        raise Differs(f"a reply of {len(message.octets)} octets, and nothing was agreed on")


async def invalidating(target: Target) -> tuple[Two, bytes]:
    """A connection, and the handle of a file."""
    await settled(target)
    handle = await a_file(target, b"invalidated")
    return await settled(target), handle


async def placed(two: Two, handle: bytes, *, name: bool) -> tuple[Message, Exposed]:
    """A READ into a Write chunk, whose handle is named or not."""
    area = two.link.peer.writable(4000)
    inv_handle = area.handle if name else 0
    message = await two.call(6, reading(handle, 4000), inv_handle=inv_handle, writes=[[area.segment()]])
    whole(message.header, "READ into a Write chunk")
    expect(message.header.inv_handle, inv_handle, "the reply's rdma_inv_handle")
    expect(area.memory == DATA[:4000], True, "the data is in the Write chunk")
    return message, area


@asks(
    f"{DRAFT} Remote-Invalidation echo",
    f"{DRAFT} Remote-Invalidation zero",
    f"{DRAFT} Remote-Invalidation no-other",
    invalidated=True,
)
async def echo(target: Target) -> None:
    two, handle = await invalidating(target)
    for name in (False, True, False):
        message, area = await placed(two, handle, name=name)
        if message.invalidated not in ((None, area.handle) if name else (None,)):
            raise Differs(f"the handle {message.invalidated:#x} is invalidated")


@asks(f"{DRAFT} Remote-Invalidation named", invalidated=True)
async def named_handle(target: Target) -> None:
    two, handle = await invalidating(target)
    message, area = await placed(two, handle, name=True)
    expect(message.invalidated, area.handle, "the handle that is invalidated")


@asks(
    f"{DRAFT} Transport-Errors inval-proc",
    f"{DRAFT} Transport-Errors bad-xdr",
    f"{DRAFT} Transport-Errors inval-option",
    f"{DRAFT} Presence-Of-Payload error",
)
async def errors(target: Target) -> None:
    two = await settled(target)
    link = two.link
    empty = words(0, 0, 0, 0, 0)
    cases = [
        *((f"procedure {each}", words(link.next_xid(), 2, 32, each) + empty, INVAL_PROC) for each in (2, 3, 6)),
        ("a Write list without an end", words(link.next_xid(), 2, 32, MSG, 0, 0, 0, 1, 0xFFFFFFFF, 0), BAD_XDR),
        ("direction 2", words(link.next_xid(), 2, 32, MSG, 2, 0, 0, 0, 0), BAD_XDR),
        ("an unknown option", option(link.next_xid(), 77, b"anything there?"), INVAL_OPTION),
    ]  # fmt: skip
    wrong = []
    for what, octets, code in cases:
        found = await link.raw(octets)
        got = found.xid, found.version, found.error
        if got != (int.from_bytes(octets[:4], "big"), 2, code):
            wrong.append(f"{what}: XID, version and error {got}, not error {code}")
    if wrong:
        raise Differs("; ".join(wrong))
    whole(await two.null(), "NULL after that")


@asks(
    f"{DRAFT} Transport-Errors cant-reply",
    f"{DRAFT} Transport-Errors processed",
    f"{DRAFT} Transport-Errors segment",
    f"{DRAFT} Transport-Errors needed",
    f"{DRAFT} Transport-Errors retry",
)
async def no_room(target: Target) -> None:
    await settled(target)
    handle = await a_file(target, b"room")
    two = await settled(target)
    small = two.link.peer.writable(60_000)
    xid = two.link.next_xid()
    found = (await two.call(6, reading(handle, 100_000), xid, writes=[small.segments(40_000, 20_000)])).header
    expect(found.error, CANT_REPLY, "the error for a Write chunk of 60000 octets for 100000")
    untouched(small, "the Write chunk that is too small")
    assert found.shortage is not None
    _, index, needed = found.shortage
    fits = {1: 80_000, 2: 60_000}
    if index > 2 or (index and needed != fits[index]):
        raise Differs(f"segment {index} is said to need {needed} octets; the first has 40000, the second 20000")
    large = two.link.peer.writable(100_000)
    found = (await two.call(6, reading(handle, 100_000), xid, writes=[large.segments(40_000, 60_000)])).header
    whole(found, "the same XID, with room")
    expect(lengths(found.writes[0]), [40_000, 60_000], "the lengths")
    expect(large.memory == DATA[:100_000], True, "the data is in the Write chunk")
