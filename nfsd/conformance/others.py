"""Questions about RFC 8267, RFC 8797, and draft-cel-nfsv4-rpcrdma-version-two-02."""

from __future__ import annotations

import struct

from nfsd.conformance.link import (
    LINUX,
    NFS,
    Differs,
    Link,
    Target,
    asks,
    check,
    expect,
    lengths,
    name,
    opaque,
    outcome,
    rpc_call,
    status,
)
from nfsd.conformance.rfc8166 import DATA, crowded, readdir_plus
from rpcrdma.peer.wire import ERROR, MSG, NOMSG, ReplyHeader, header, header_two, words

MOUNT = 100005
PUTROOTFH, LOOKUP, READ, READLINK = 24, 15, 25, 27
NO_STATEID = bytes(16)
TARGET = b"where the link leads, not too short"


async def symlink(link: Link, file: bytes) -> bytes:
    """The handle of a symbolic link whose target came in a Read chunk."""
    arguments = opaque(link.root) + opaque(file) + bytes(24) + words(len(TARGET))
    made = await link.call(10, arguments, data=TARGET)
    if not made.error and status(made.payload) == 17:
        await link.call(12, opaque(link.root) + opaque(file))
        made = await link.call(10, arguments, data=TARGET)
    check(made, "SYMLINK with its target in a Read chunk")
    length = int.from_bytes(made.payload[32:36], "big")
    return made.payload[36 : 36 + length]


@asks("RFC 8267 3 nfs3-eligible")
async def nfs3_eligible(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"eligible", DATA[:4000])
    expect(await link.content(handle, 4000) == DATA[:4000], True, "READ's data is in the Write chunk")
    area = link.peer.writable(100)
    found = await link.call(5, opaque(await symlink(link, b"link")), writes=[[area.segment()]])
    check(found, "READLINK")
    expect(lengths(found.writes[0]), [len(TARGET)], "READLINK's Write chunk")
    expect(bytes(area.memory[: len(TARGET)]), TARGET, "READLINK's target")


def compound(path: tuple[bytes, ...], *operations: bytes) -> bytes:
    """Arguments of NFSv4.0's COMPOUND on the file that ``path`` leads to."""
    way = [words(PUTROOTFH), *(words(LOOKUP) + opaque(part) for part in path)]
    return opaque(b"") + words(0, len(way) + len(operations)) + b"".join([*way, *operations])


def check4(found: ReplyHeader, what: str) -> None:
    """Differs unless it is a success."""
    if found.error or status(found.payload):
        raise Differs(f"{what}: {name(found)}")


@asks("RFC 8267 4 nfs4-eligible")
async def nfs4_eligible(target: Target) -> None:
    link = await target.link()
    await link.filled(b"eligible", DATA[:4000])
    await symlink(link, b"link")
    area = link.peer.writable(4000)
    way = compound((*target.path, b"eligible"), words(READ) + NO_STATEID + struct.pack(">QI", 0, 4000))
    found = await link.call(1, way, version=4, writes=[[area.segment()]])
    check4(found, "READ")
    expect(area.memory == DATA[:4000], True, "READ's data is in the Write chunk")
    area = link.peer.writable(100)
    way = compound((*target.path, b"link"), words(READLINK))
    found = await link.call(1, way, version=4, writes=[[area.segment()]])
    check4(found, "READLINK")
    if area.memory[:4] == words(len(TARGET)):
        raise Differs("READLINK's length word is put into the Write chunk, before the target")
    expect(bytes(area.memory[: len(TARGET)]), TARGET, "READLINK's target in the Write chunk")


@asks("RFC 8166 4.3.2.1 pairing")
async def pairing(target: Target) -> None:
    link = await target.link()
    await link.filled(b"eligible", DATA[:4000])
    areas = [link.peer.writable(3000), link.peer.writable(2000)]
    reads = [words(READ) + NO_STATEID + struct.pack(">QI", at, length) for at, length in ((0, 1000), (2000, 2000))]
    way = compound((*target.path, b"eligible"), *reads)
    found = await link.call(1, way, version=4, writes=[[area.segment()] for area in areas])
    check4(found, "two READs in one COMPOUND")
    expect([lengths(chunk) for chunk in found.writes], [[1000], [2000]], "the Write chunks")
    expect(areas[1].memory == DATA[2000:4000], True, "the second READ's data is in the second Write chunk")


@asks("RFC 8267 5 mount-over-tcp")
async def mount(target: Target) -> None:
    link = await target.link()
    found = await link.call(0, b"", program=MOUNT)
    if name(found) != "PROG_UNAVAIL":
        raise Differs(f"MOUNT's NULL: {name(found)}")


@asks("RFC 8267 6.3 any-port")
async def any_port(target: Target) -> None:
    for _ in range(2):  # each connection comes from another port above 1023
        link = await target.link()
        check(await link.call(1, opaque(link.root)), "GETATTR")


@asks("RFC 8267 6.4.1 must-use-write-chunk")
async def must_use(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"small", b"sixteen octets..")
    expect(await link.content(handle, 16), b"sixteen octets..", "the Write chunk of a small READ")


@asks("RFC 8267 6.4.2 read-chunks")
async def read_chunks(target: Target) -> None:
    for count in (1, 2, 4, 16):
        link = await target.link()
        handle = await link.create(b"sixteen")
        source = link.peer.readable(DATA[:16000])
        what = f"a Long Call of {count} segments with a Read chunk of {count}"
        try:
            check(
                await link.write(handle, DATA[:16000], data=source.segments(*[16000 // count] * count), long=count),
                what,
            )
        except ConnectionError as lost:
            raise Differs(f"{what}: {lost}") from lost
        expect(await link.content(handle, 16000) == DATA[:16000], True, "the data was written as it is")


@asks("RFC 8267 6.4.2 write-chunks")
async def write_chunks(target: Target) -> None:
    link = await target.link()
    handle = await link.filled(b"sixteen", DATA[:16000])
    area, spare = link.peer.writable(16000), link.peer.writable(40_000)
    parts = {"writes": [area.segments(*[1000] * 16)], "reply": spare.segments(*[2500] * 16)}
    found = await link.read(handle, 16000, **parts)
    rpc = bytes(spare.memory[: sum(lengths(found.reply or ()))]) if found.procedure == NOMSG else found.payload
    expect(outcome(rpc), "success", "READ with a Write chunk and a Reply chunk of 16 segments each")
    expect(area.memory == DATA[:16000], True, "the data is in the Write chunk")
    await crowded(link)
    spare = link.peer.writable(40_000)  # the other may have been invalidated
    found = await link.call(17, readdir_plus(link), reply=spare.segments(*[2500] * 16))
    expect(found.procedure, NOMSG, "a listing in a Reply chunk of 16 segments")


def said(octets: bytes) -> tuple[int, int, int, int] | None:
    """Version, flags, send and receive size in private data; None if there are none."""
    at = octets.find(words(0xF6AB0E18))
    return None if at < 0 else struct.unpack_from("4B", octets, at + 4)


@asks("RFC 8797 4 format")
async def private_data(target: Target) -> None:
    link = await target.link()
    found = said(link.peer.private_data)
    if found is None:
        raise Differs("no private data")
    version, flags, *_ = found
    expect((version, flags & 0xFE), (1, 0), "version and reserved flags")


async def invalidated(link: Link) -> bool:
    """Whether the reply to a READ with a Write chunk comes with an invalidation."""
    handle = await link.filled(b"five", b"12345")
    area = link.peer.writable(64)
    arguments = opaque(handle) + struct.pack(">QI", 0, 64)
    link.peer.send(header(link.next_xid(), writes=[[area.segment()]]), rpc_call(link.xid, 6) + arguments)
    message = await link.message()
    if message.invalidated not in (None, area.handle):
        raise Differs(f"the handle {message.invalidated:#x} of no chunk of the call is invalidated")
    return message.invalidated is not None


def offer(version: int = 1, flags: int = 1, sizes: bytes = b"\3\3") -> bytes:
    """A client's private data."""
    return words(0xF6AB0E18) + bytes([version, flags]) + sizes


@asks("RFC 8797 4.1 both-r", invalidated=True)
async def both_r(target: Target) -> None:
    link = await target.link(LINUX)
    agreed = bool((said(link.peer.private_data) or (0, 0))[1] & 1)
    if await invalidated(link) and not agreed:
        raise Differs("Send with Invalidate, though the server has not set R itself")


@asks("RFC 8797 4.1 either-clear", "RFC 8797 5.1 per-connection")
async def either_clear(target: Target) -> None:
    await invalidated(await target.link())
    if await invalidated(await target.link(offer(flags=0))):
        raise Differs("Send with Invalidate to a client that has not set R")


@asks("RFC 8797 4 reserved", invalidated=True)
async def reserved(target: Target) -> None:
    if await invalidated(await target.link(offer(flags=0xFE))):
        raise Differs("reserved flags are taken for R")
    handle_known = await invalidated(await target.link(offer(flags=1)))
    expect(await invalidated(await target.link(offer(flags=0xFF))), handle_known, "R is seen beside reserved flags")


@asks("RFC 8797 4.2 sizes")
async def threshold(target: Target) -> None:
    link = await target.link(offer(flags=0, sizes=b"\1\1"))
    handle = await link.filled(b"sizes", DATA)
    found = await link.read(handle, 3000)
    if found.procedure != ERROR:
        raise Differs(f"a reply of {28 + len(found.payload)} octets to a peer that takes 2048")
    found = await link.read(handle, 2048 - 28 - 24 - 104)
    expect((found.procedure, 28 + len(found.payload)), (MSG, 2048), "a reply of 2048 octets")


@asks("RFC 8797 5.1 absent")
async def absent(target: Target) -> None:
    for octets in (b"", b"\1\2\3\4abcd"):
        if await invalidated(await target.link(octets)):
            raise Differs("Send with Invalidate to a client without private data")


@asks("RFC 8797 5.2 any-offset", invalidated=True)
async def any_offset(target: Target) -> None:
    usual = await invalidated(await target.link(LINUX))
    if usual and not await invalidated(await target.link(b"other octets" + LINUX)):
        raise Differs("private data is seen at its beginning only")


@asks("RFC 8797 5.2 checks")
async def checks(target: Target) -> None:
    if await invalidated(await target.link(offer(version=2))):
        raise Differs("private data of version 2 is taken for version 1")
    # RDMA-CM fills up with zeros what it carries over InfiniBand and RoCE: nobody sees there that it was cut short.
    if target.provider.can_be_invalidated and await invalidated(await target.link(offer()[:6])):
        raise Differs("private data that is cut short is believed")


DRAFT = "draft-cel-nfsv4-rpcrdma-version-two-02"


@asks(f"{DRAFT} Negotiation unsupported")
async def unsupported(target: Target) -> None:
    link = await target.link()  # which has settled on version One
    rpc = rpc_call(link.next_xid(), 0, NFS)
    found = await link.refuses(header_two(link.xid), rpc, code=1)
    expect((found.version, found.versions[0]), (2, 1), "version and least of the range of ERR_VERS")
