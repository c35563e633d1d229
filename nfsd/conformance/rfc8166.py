"""Questions about RFC 8166."""

from __future__ import annotations

import struct

from nfsd.conformance.link import (
    INLINE,
    RECEIVES,
    Differs,
    Link,
    Target,
    asks,
    behind_attributes,
    check,
    expect,
    lengths,
    name,
    opaque,
    rpc_call,
    untouched,
)
from rpcrdma.peer.requester import FILL
from rpcrdma.peer.wire import DONE, ERROR, MSG, MSGP, NOMSG, ReplyHeader, Segment, header, words

DATA = bytes((number * 7 + (number >> 8)) & 0xFF for number in range(100_001))
BAD = 0x7E57BAD0


def head(found: ReplyHeader) -> tuple[int, bytes]:
    """Of a READ's reply: count, and what follows the length of the data."""
    at = behind_attributes(found.payload, 28)
    return int.from_bytes(found.payload[at : at + 4], "big"), found.payload[at + 12 :]


def readdir_plus(link: Link, most: int = 32768) -> bytes:
    """Arguments of READDIRPLUS."""
    return opaque(link.root) + bytes(16) + words(most, most)


async def crowded(link: Link) -> None:
    """Make a directory listing longer than a message."""
    for number in range(60):
        await link.create(b"a name of some length, number %d" % number)


@asks("RFC 8166 2.3.2 order", "RFC 8166 3.4.6 segments-in-order", "RFC 8166 3.4.6 echo")
async def segments(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"segments", DATA)
    area = link.peer.writable(130_000)
    chunk = area.segments(40_000, 30_000, 60_000)
    found = await link.read(handle, len(DATA), writes=[chunk])
    at_once = bytes(area.memory)
    check(found, "READ")
    expect(lengths(found.writes[0]), [40_000, 30_000, 30_001], "lengths")
    echoed = [part._replace(length=0) for part in found.writes[0]]
    expect(echoed, [part._replace(length=0) for part in chunk], "the chunk that came back")
    expect(at_once[: len(DATA)] == DATA, True, "all data is there with the reply")
    await link.raw(header(link.next_xid()), rpc_call(link.xid, 0))
    expect(area.memory == at_once, True, "the memory is as it was")


@asks("RFC 8166 3.2 one-send", "RFC 8166 4.3.1 reply-read-list")
async def long_call(target: Target) -> None:
    link = await target.link()
    for long in (0, 1, 3):
        found = await link.call(1, opaque(link.root), long=long)
        check(found, "GETATTR as a Long Call" if long else "GETATTR")
        expect((found.reads, len(found.payload)), (0, 28 + 84), "read segments and octets of the reply")


@asks("RFC 8166 4.2.4 nomsg")
async def nothing_at_all(target: Target) -> None:
    link = await target.link()
    try:
        await link.refuses(header(link.next_xid(), procedure=NOMSG))
    except Differs as differs:
        raise Differs(f"RDMA_NOMSG without chunks: {differs}") from differs


@asks("RFC 8166 3.3.1 grant", "RFC 8166 3.3.1 never-zero", "RFC 8166 3.3.1 requests-ignored", "RFC 8166 4.2.3 credits")
async def credit_values(target: Target) -> None:
    link = await target.link()
    grants = set()
    for asked in (0, 1, 32, 100_000):
        link.send_null(asked)
        await link.reply()
        grants.add(link.grant)
    await link.refuses(header(link.next_xid(), procedure=77))
    for _ in range(3):
        many = min(link.grant, RECEIVES)
        for _ in range(many):
            link.send_null()
        for _ in range(many):
            await link.reply()
    if link.least < 1:
        raise Differs("a message grants zero credits")


@asks("RFC 8166 3.3.2 receive-size")
async def receive_size(target: Target) -> None:
    link = await target.link()
    handle = await link.create(b"sizes")
    arguments = opaque(handle) + struct.pack(">QII", 0, 0, 2)
    room = INLINE - 28 - len(rpc_call(0, 7)) - len(arguments) - 4
    inline = opaque(handle) + struct.pack(">QIII", 0, room, 2, room) + bytes(room)
    check(await link.call(7, inline), f"a call of {INLINE} octets")


@asks("RFC 8166 3.3.2 send-size")
async def send_size(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"sizes", DATA)
    longest = INLINE - 28 - 24 - (4 + 88 + 12)
    found = await link.read(handle, longest)
    check(found, f"a reply of {INLINE} octets")
    found = await link.read(handle, longest + 4)
    if found.procedure != ERROR:
        raise Differs(f"a reply of {28 + len(found.payload)} octets to a peer that takes {INLINE}")


@asks("RFC 8166 3.3.3 start")
async def start(target: Target) -> None:
    link = await target.link(b"")
    handle = await link.create(b"start")
    for at in range(0, 3000, 500):
        arguments = opaque(handle) + struct.pack(">QIII", at, 500, 2, 500) + DATA[at : at + 500]
        check(await link.call(7, arguments), "WRITE")
    found = await link.read(handle, 2000)
    if found.procedure == MSG:
        raise Differs(f"a reply of {28 + len(found.payload)} octets to a peer that takes 1024")
    check(await link.read(handle, 1024 - 28 - 24 - 104), "a reply of 1024 octets")


@asks("RFC 8166 3.4.2 only-eligible")
async def eligible(target: Target) -> None:
    link = await target.link()
    area = link.peer.writable(4096)
    found = await link.call(16, opaque(link.root) + bytes(16) + words(2000), writes=[[area.segment()]])
    check(found, "READDIR")
    expect([lengths(chunk) for chunk in found.writes], [[0]], "the Write chunk")
    untouched(area, "the Write chunk")


@asks("RFC 8166 3.4.5 same-position", "RFC 8166 3.4.5.1 reads-first")
async def same_position(target: Target) -> None:
    link = await target.link()
    handle = await link.create(b"position")
    source = link.peer.readable(DATA)
    check(await link.write(handle, DATA, data=source.segments(10, 40_000, 1, 59_990)), "WRITE")
    expect(await link.content(handle, len(DATA)) == DATA, True, "the data was written as it is")


@asks("RFC 8166 3.4.5 position")
async def position(target: Target) -> None:
    wrong = []
    for away in (-4, 2, 4, 4096):
        link = await target.link()
        handle = await link.create(b"position")
        right = len(rpc_call(0, 7)) + len(opaque(handle)) + 20
        try:
            found = await link.write(handle, DATA[:512], position=right + away)
            if name(found) == "success":
                wrong.append(f"{away} octets off: success")
        except ConnectionError as lost:
            wrong.append(f"{away} octets off: the connection is lost ({lost})")
    if wrong:
        raise Differs("WRITE whose Read chunk is not where the data belongs, " + "; ".join(wrong))


@asks("RFC 8166 3.4.5.2 roundup")
async def roundup(target: Target) -> None:
    link = await target.link()
    handle = await link.create(b"roundup")
    for source in (b"12345", b"12345\xaa\xbb\xcc"):
        check(await link.write(handle, b"12345", data=source), f"a Read chunk of {len(source)} octets for 5")
        expect(await link.content(handle, 8), b"12345", "what was written")


@asks("RFC 8166 3.4.6.2 no-roundup", "RFC 8166 3.4.4.1 length-stays")
async def no_roundup(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"five", b"12345")
    area = link.peer.writable(64)
    found = await link.read(handle, 64, writes=[[area.segment()]])
    check(found, "READ")
    expect(head(found), (5, b""), "the count, and what stays in the stream")
    expect(found.payload[-4:], words(5), "the length word")
    expect(bytes(area.memory), b"12345" + bytes([FILL]) * 59, "the Write chunk")


@asks("RFC 8166 3.5.3 placement", "RFC 8166 4.3.3 reply-chunk-unused")
async def placement(target: Target) -> None:
    link = await target.link()
    await crowded(link)
    area = link.peer.writable(40_000)
    found = await link.call(1, opaque(link.root), reply=area.segments(100, 39_900))
    if found.procedure == MSG:
        expect(lengths(found.reply or ()), [0, 0], "the Reply chunk that is not needed")
        untouched(area, "the Reply chunk")
    area = link.peer.writable(40_000)  # the other may have been invalidated
    found = await link.call(17, readdir_plus(link), reply=area.segments(100, 39_900))
    expect(found.procedure, NOMSG, "a long listing's procedure")
    expect(bytes(area.memory[:4]), words(found.xid), "the reply in the Reply chunk")
    expect(lengths(found.reply or ())[0], 100, "the first segment's length")
    found = await link.call(17, readdir_plus(link))
    expect(name(found), "ERR_CHUNK", "without a Reply chunk")


@asks("RFC 8166 3.5.3 long-call-inline")
async def long_call_inline(target: Target) -> None:
    link = await target.link()
    call = rpc_call(link.next_xid(), 1) + opaque(link.root)
    reads = [(0, link.peer.readable(call).segment())]
    try:
        await link.refuses(header(link.xid, reads=reads), call)
    except Differs as differs:
        raise Differs(f"RDMA_MSG with a Position Zero Read chunk: {differs}") from differs


@asks("RFC 8166 4.2.1 xid")
async def xids(target: Target) -> None:
    link = await target.link()
    found = await link.raw(header(link.next_xid()), rpc_call(link.xid ^ 0x5555, 0))
    if not found.error:
        inner = int.from_bytes(found.payload[:4], "big")
        both = "both of them" if found.xid == link.xid != inner else "one of them"
        raise Differs(f"a call with one XID in its header and another behind it is executed; the reply has {both}")


@asks("RFC 8166 4.2.2 version", "RFC 8166 4.5.1 range", "RFC 8166 4.5 error-fields")
async def versions(target: Target) -> None:
    link = await target.link()
    for version in (0, 3, 0xFFFFFFFF):
        found = await link.refuses(words(link.next_xid(), version, 32, 0, 0, 0, 0), bytes(40), code=1)
        expect(found.version, version, "the version of ERR_VERS")
        lowest, highest = found.versions
        if not lowest <= 1 <= highest or lowest <= version <= highest:
            raise Differs(f"version {version} is refused with the range {found.versions}")


@asks("RFC 8166 4.2.4 error-unanswered")
async def errors(target: Target) -> None:
    link = await target.link()
    for body in (words(1, 1, 1), words(2), words(9)):
        await link.discards(words(link.next_xid(), 1, 32, ERROR), body.ljust(12, b"\0"))


@asks("RFC 8166 4.3.2 long-call-and-read-chunk")
async def long_and_read_chunk(target: Target) -> None:
    link = await target.link()
    handle = await link.create(b"order")
    check(await link.write(handle, DATA[:5000], long=1), "WRITE as a Long Call with a Read chunk")
    expect(await link.content(handle, 5000) == DATA[:5000], True, "the data was written as it is")


@asks("RFC 8166 4.3.1 any-order")
async def any_order(target: Target) -> None:
    link = await target.link()
    handle = await link.create(b"order")
    rpc = rpc_call(link.next_xid(), 7) + opaque(handle) + struct.pack(">QIII", 0, 5000, 2, 5000)
    reads = [(len(rpc), link.peer.readable(DATA[:5000]).segment()), (0, link.peer.readable(rpc).segment())]
    found = await link.raw(header(link.xid, procedure=NOMSG, reads=reads))
    check(found, "WRITE as a Long Call, the Position Zero Read chunk last in the list")
    expect(await link.content(handle, 5000) == DATA[:5000], True, "the data was written as it is")


@asks("RFC 8166 4.3.2.2 unused")
async def unused(target: Target) -> None:
    link = await target.link()
    area = link.peer.writable(100)
    chunks = [area.segments(50, 50), [area.segment(0, 7)]]
    found = await link.read(b"\1" * 20, 100, writes=chunks)
    if found.error:
        raise Differs(f"READ of no file: {name(found)}")
    expect([lengths(chunk) for chunk in found.writes], [[0, 0], [0]], "the Write chunks of a READ that failed")
    untouched(area, "a Write chunk")


@asks("RFC 8166 4.3.2.3 empty")
async def empty(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"empty", b"0123456789ab")
    found = await link.read(handle, 12, writes=[[]])
    check(found, "READ with an empty Write chunk")
    expect(found.writes, ((),), "the Write list")
    expect(head(found), (12, b"0123456789ab"), "the data inline")


@asks("RFC 8166 4.5 too-short")
async def too_short(target: Target) -> None:
    answered = []
    for length in (4, 12, 20, 27):
        link = await target.link()
        try:
            await link.discards(header(link.next_xid())[:length])
        except (Differs, ConnectionError):
            answered.append(f"{length}")
    if answered:
        raise Differs(f"messages of {', '.join(answered)} octets are answered, or cost the connection")


@asks("RFC 8166 4.5.2 malformed", "RFC 8166 8.1.4 bounds")
async def malformed(target: Target) -> None:
    cases = {
        "a Read list that does not end": words(1, 60, 1, 8, 0, 0) * 2,
        "a Write chunk of 4294967295 segments": words(0, 1, 0xFFFFFFFF) + bytes(16),
        "a Reply chunk of 268435457 segments": words(0, 0, 1, 0x10000001) + bytes(16),
        "4294967295 octets in a Read chunk": words(1, 68, 1, 0xFFFFFFFF, 0, 0, 0, 0, 0),
    }
    found: list[str] = []
    for what, lists in cases.items():
        await _refused(target, found, what, lists)
    link = await target.link()
    try:
        await link.refuses(header(link.next_xid(), procedure=77), rpc_call(link.xid, 0))
    except (Differs, ConnectionError) as error:
        found.append(f"procedure 77: {error}")
    if found:
        raise Differs("; ".join(found))


async def _refused(target: Target, found: list[str], what: str, lists: bytes) -> None:
    link = await target.link()
    try:
        await link.refuses(words(link.next_xid(), 1, 32, MSG) + lists)
    except (Differs, ConnectionError) as error:
        found.append(f"{what}: {error}")


@asks("RFC 8166 4.5.2 garbage-arguments")
async def garbage(target: Target) -> None:
    link = await target.link()
    found = await link.call(1, opaque(link.root), data=b"a chunk for nothing.")
    if name(found) not in ("ERR_CHUNK", "GARBAGE_ARGS"):
        raise Differs(f"a Read chunk that fits no argument: {name(found)}")


@asks("RFC 8166 4.5.3 no-room")
async def no_room(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"room", DATA)
    area = link.peer.writable(40_000)
    found = await link.read(handle, 60_000, writes=[area.segments(10_000, 30_000)])
    if not found.error:
        raise Differs(f"READ into a Write chunk that is too small: {name(found)}, {head(found)[0]} octets")
    untouched(area, "the Write chunk that is too small")


@asks("RFC 8166 4.5.3 refused-memory")
async def refused_memory(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"refused", DATA)
    arguments = opaque(handle) + struct.pack(">QI", 0, 5000)
    xid = link.next_xid()
    message = header(xid, writes=[[Segment(BAD, 5000, 0)]]), rpc_call(xid, 6) + arguments
    link.peer.send(*message)
    await link.peer.over()
    link = await target.link()
    try:
        found = await link.raw(*message)
    except ConnectionError as lost:
        raise Differs("sent again, the call costs the next connection, too") from lost
    expect(name(found), "ERR_CHUNK", "sent again, the call gets")


@asks("RFC 8166 4.6.1 msgp")
async def msgp(target: Target) -> None:
    link = await target.link()
    rpc = rpc_call(link.next_xid(), 0)
    await link.refuses(words(link.xid, 1, 32, MSGP, 4, 2048, 0, 0, 0), rpc)


@asks("RFC 8166 4.6.2 done")
async def done(target: Target) -> None:
    link = await target.link()
    await link.discards(words(link.next_xid(), 1, 32, DONE, 0, 0, 0))
