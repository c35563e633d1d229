"""Questions about RFC 5531, RFC 1813 and RFC 8881, over any transport: what every client of a server relies on."""

from __future__ import annotations

import itertools
import random
import struct

from nfsd.conformance.link import (
    NFS,
    Differs,
    Exchanger,
    Target,
    asks,
    behind_attributes,
    expect,
    opaque,
    outcome,
    rpc_call,
)
from nfsd.conformance.link import status as status3
from nfsd.conformance.records import Records
from rpcrdma.peer.wire import words

ANY = ("rdma", "tcp")
BADHANDLE, STALE, EXIST, NOENT, NOT_SYNC = 10001, 70, 17, 2, 10002
_xids = itertools.count(random.SystemRandom().randrange(1 << 30))


async def nfs3(to: Exchanger, procedure: int, arguments: bytes) -> bytes:
    """The whole RPC reply of a call of NFSv3."""
    xid = next(_xids)
    found = await to.exchange(rpc_call(xid, procedure) + arguments)
    expect(found[:4], words(xid), "the XID of the reply")
    return found


async def good(to: Exchanger, procedure: int, arguments: bytes, what: str) -> bytes:
    """Its reply; Differs unless it is a success."""
    found = await nfs3(to, procedure, arguments)
    if outcome(found) != "success":
        raise Differs(f"{what}: {outcome(found)}")
    return found


async def file_of(to: Exchanger, directory: bytes, file: bytes) -> bytes:
    """The handle of a file that is made for this, empty."""
    how = words(0, 1, 0o644, 0, 0, 1, 0, 0, 0, 0)
    found = await good(to, 8, opaque(directory) + opaque(file) + how, "CREATE")
    length = int.from_bytes(found[32:36], "big")
    return found[36 : 36 + length]


@asks("RFC 5531 9 xid", "RFC 1813 3.3.0 null", over=ANY)
async def null(target: Target) -> None:
    to = await target.exchanger()
    for xid in (0, 1, 0xFFFFFFFF, next(_xids)):
        call = struct.pack(">6I", xid, 0, 2, NFS, 3, 0) + bytes(16)
        expect(await to.exchange(call), words(xid, 1, 0, 0, 0, 0), "the reply of NULL")


@asks("RFC 5531 9 rpc-mismatch", over=ANY)
async def rpc_mismatch(target: Target) -> None:
    to = await target.exchanger()
    for version in (1, 3):
        xid = next(_xids)
        found = await to.exchange(struct.pack(">6I", xid, 0, version, NFS, 3, 0) + bytes(16))
        expect(found, words(xid, 1, 1, 0, 2, 2), f"the reply to RPC version {version}")


@asks("RFC 5531 9 prog-unavail", over=ANY)
async def prog_unavail(target: Target) -> None:
    to = await target.exchanger()
    found = await to.exchange(rpc_call(next(_xids), 0, program=0x20005531, version=1))
    expect(outcome(found), "PROG_UNAVAIL", "a program that there is not")


@asks("RFC 5531 9 prog-mismatch", over=ANY)
async def prog_mismatch(target: Target) -> None:
    to = await target.exchanger()
    for version in (1, 99):
        found = await to.exchange(rpc_call(next(_xids), 0, version=version))
        expect(outcome(found), "PROG_MISMATCH", f"NFS version {version}")
        lowest, highest = struct.unpack(">II", found[24:32])
        if not lowest <= 3 <= highest or lowest <= version <= highest:
            raise Differs(f"NFS version {version} is refused with the range {lowest} to {highest}")


@asks("RFC 5531 9 proc-unavail", over=ANY)
async def proc_unavail(target: Target) -> None:
    to = await target.exchanger()
    for version, procedure in ((3, 22), (4, 2)):
        found = await to.exchange(rpc_call(next(_xids), procedure, version=version))
        expect(outcome(found), "PROC_UNAVAIL", f"procedure {procedure} of NFS version {version}")


@asks("RFC 5531 9 garbage-args", over=ANY)
async def garbage_args(target: Target) -> None:
    to = await target.exchanger()
    for what, arguments in (("no handle", b""), ("a handle of 65 octets", opaque(b"h" * 65))):
        expect(outcome(await nfs3(to, 1, arguments)), "GARBAGE_ARGS", f"GETATTR with {what}")


@asks("RFC 5531 9 auth-error", over=ANY)
async def auth_error(target: Target) -> None:
    to = await target.exchanger()
    xid = next(_xids)
    call = struct.pack(">8I", xid, 0, 2, NFS, 3, 1, 0x5531, 0) + bytes(8) + opaque(target.root)
    expect((await to.exchange(call))[:16], words(xid, 1, 1, 1), "the reply to a credential of flavor 0x5531")


@asks("RFC 5531 11 fragments", over=("tcp",))
async def fragments(target: Target) -> None:
    to = await target.exchanger()
    assert isinstance(to, Records)
    for count in (2, 7, 44):
        xid = next(_xids)
        try:
            found = await to.exchange(rpc_call(xid, 0), count)
        except ConnectionError as lost:
            raise Differs(f"a call in {count} fragments: {lost}") from lost
        expect(found, words(xid, 1, 0, 0, 0, 0), f"the reply to a call in {count} fragments")


@asks("RFC 1813 2.6 bad-handle", over=ANY)
async def bad_handle(target: Target) -> None:
    to = await target.exchanger()
    for handle in (b"", b"\1" * 28, b"\xee" * 64):
        found = status3(await nfs3(to, 1, opaque(handle)))
        if found not in (BADHANDLE, STALE):
            raise Differs(f"GETATTR of a handle of {len(handle)} octets that is none: NFS status {found}")


@asks("RFC 1813 3.3.2 guard", over=ANY)
async def guard(target: Target) -> None:
    to = await target.exchanger()
    handle = await file_of(to, target.root, b"guard")
    found = await nfs3(to, 2, opaque(handle) + words(1, 0o600, 0, 0, 0, 0, 0) + words(1, 1, 1))
    expect(status3(found), NOT_SYNC, "SETATTR with the guard 1.000000001")
    found = await good(to, 1, opaque(handle), "GETATTR")
    expect(int.from_bytes(found[32:36], "big") & 0o777, 0o644, "the mode after that")


@asks("RFC 1813 3.3.3 noent", over=ANY)
async def noent(target: Target) -> None:
    to = await target.exchanger()
    found = await nfs3(to, 3, opaque(target.root) + opaque(b"a name that nobody has made"))
    expect(status3(found), NOENT, "LOOKUP")


@asks("RFC 1813 3.3.6 eof", over=ANY)
async def eof(target: Target) -> None:
    to = await target.exchanger()
    handle = await file_of(to, target.root, b"eof")
    for offset in (0, 1, 1 << 40):
        found = await good(to, 6, opaque(handle) + struct.pack(">QI", offset, 512), f"READ at {offset}")
        at = behind_attributes(found, 28)
        expect(found[at : at + 12], words(0, 1, 0), f"count, eof and data of an empty file at {offset}")


def write_arguments(handle: bytes, data: bytes, stable: int) -> bytes:
    """WRITE at the start."""
    return opaque(handle) + struct.pack(">QII", 0, len(data), stable) + opaque(data)


def behind_wcc(rpc: bytes, at: int) -> int:
    """Behind a wcc_data."""
    return behind_attributes(rpc, at + 4 + (24 if rpc[at + 3] else 0))


@asks("RFC 1813 3.3.7 stable", over=ANY)
async def stable(target: Target) -> None:
    to = await target.exchanger()
    handle = await file_of(to, target.root, b"stable")
    found = await good(to, 7, write_arguments(handle, b"abcd", 2), "WRITE")
    at = behind_wcc(found, 28)
    expect(found[at : at + 8], words(4, 2), "count and how it is committed")


@asks("RFC 1813 3.3.21 verifier", over=ANY)
async def verifier(target: Target) -> None:
    to = await target.exchanger()
    handle = await file_of(to, target.root, b"verifier")
    found = await good(to, 7, write_arguments(handle, b"abcd", 0), "WRITE")
    written = found[behind_wcc(found, 28) + 8 :]
    found = await good(to, 21, opaque(handle) + bytes(12), "COMMIT")
    expect(found[behind_wcc(found, 28) :], written, "COMMIT's verifier")


@asks("RFC 1813 3.3.8 exclusive", over=ANY)
async def exclusive(target: Target) -> None:
    to = await target.exchanger()
    there = opaque(target.root) + opaque(b"exclusive %d" % next(_xids)) + words(2)
    await good(to, 8, there + b"verifier", "CREATE EXCLUSIVE")
    await good(to, 8, there + b"verifier", "CREATE EXCLUSIVE with the same verifier")
    expect(status3(await nfs3(to, 8, there + b"anything")), EXIST, "CREATE EXCLUSIVE with another verifier")


async def directory_of(to: Exchanger, directory: bytes, name: bytes) -> bytes:
    """The handle of a new directory."""
    found = await good(to, 9, opaque(directory) + opaque(name) + words(1, 0o755, 0, 0, 0, 0, 0), "MKDIR")
    length = int.from_bytes(found[32:36], "big")
    return found[36 : 36 + length]


@asks("RFC 1813 3.3.13 notempty", over=ANY)
async def notempty(target: Target) -> None:
    to = await target.exchanger()
    name = b"full %d" % next(_xids)
    inside = await directory_of(to, target.root, name)
    await directory_of(to, inside, b"inside")
    if not status3(await nfs3(to, 13, opaque(target.root) + opaque(name))):
        raise Differs("RMDIR of a directory that is not empty: success")
    await good(to, 13, opaque(inside) + opaque(b"inside"), "RMDIR")
    await good(to, 13, opaque(target.root) + opaque(name), "RMDIR of the directory that is empty now")


def entries(rpc: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], bool]:
    """Of READDIR's reply: the verifier, names with their cookies, and whether that was all."""
    at = behind_attributes(rpc, 28)
    verifier, at = rpc[at : at + 8], at + 8
    found = []
    while rpc[at + 3]:
        length = int.from_bytes(rpc[at + 12 : at + 16], "big")
        end = at + 16 + length + (-length & 3)
        found.append((rpc[at + 16 : at + 16 + length], rpc[end : end + 8]))
        at = end + 8
    return verifier, found, bool(rpc[at + 7])


@asks("RFC 1813 3.3.16 cookies", over=ANY)
async def cookies(target: Target) -> None:
    to = await target.exchanger()
    inside = await directory_of(to, target.root, b"names %d" % next(_xids))
    made = [b"name %d" % number for number in range(20)]
    for each in made:
        await file_of(to, inside, each)
    cookie, cookie_verifier, names, calls, all_of_it = bytes(8), bytes(8), [], 0, False
    while not all_of_it:
        arguments = opaque(inside) + cookie + cookie_verifier + words(300)
        cookie_verifier, found, all_of_it = entries(await good(to, 16, arguments, "READDIR"))
        if not found and not all_of_it:
            raise Differs("READDIR returns neither a name nor the end")
        names += [each for each, _ in found if each not in (b".", b"..")]
        cookie = found[-1][1] if found else cookie
        calls += 1
        if calls > 50:
            raise Differs("READDIR does not come to an end")
    expect(sorted(names), sorted(made), "the names that came")
    expect(calls > 1, True, "300 octets hold no 20 names")
