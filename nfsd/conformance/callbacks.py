"""Questions about callbacks: backward calls (RFC 8167), and what RFC 8881 says of them over any transport."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

from nfsd.conformance.basics import ANY, file_of, write_arguments
from nfsd.conformance.basics import nfs3 as call3
from nfsd.conformance.link import (
    INLINE,
    Absent,
    Differs,
    Link,
    Target,
    asks,
    check,
    expect,
    name,
    opaque,
    outcome,
    rpc_call,
)
from nfsd.conformance.records import Records
from nfsd.conformance.sessions import PUTROOTFH, Session
from rpcrdma.peer.requester import Message
from rpcrdma.peer.wire import ReplyHeader, header, words

LOOKUP, OPEN, CLOSE, GETFH, PUTFH, DELEGRETURN, RECLAIM_COMPLETE = 15, 18, 4, 10, 22, 8, 58
CB_RECALL, CB_SEQUENCE, CB_ILLEGAL = 4, 11, 10044
DELAY, GRACE, NOT_SUPPORTED, CB_OP_ILLEGAL = 10008, 10013, 10004, 10044
READ_AND_WANTED = 0x101
"""OPEN4_SHARE_ACCESS_READ, with the wish for a read delegation."""
PATIENCE = 50.0
"""Seconds: a server may be in its grace period at first, and then gives no delegation."""
TRIES = 100
"""OPENs, twice a second, by a client that may have a delegation."""
_numbers = itertools.count()


@dataclass
class Callback:
    """One call of the server's, as it came."""

    rpc: bytes
    message: Message | None
    """Over RDMA."""
    operations: list[int]
    sequence: tuple[bytes, int, int] | None = None
    """Of CB_SEQUENCE: session, sequence ID, slot."""
    recalled: bytes = b""
    """The handle of CB_RECALL."""

    @classmethod
    def parse(cls, rpc: bytes, message: Message | None) -> Self:
        """Raises Differs."""
        try:
            return cls._parse(rpc, message)
        except struct.error as error:
            raise Differs(f"a callback that cannot be decoded: {rpc[:120].hex()}") from error

    @classmethod
    def _parse(cls, rpc: bytes, message: Message | None) -> Self:
        (_, direction, version, _, program_version, procedure), at = struct.unpack_from(">6I", rpc), 24
        expect((direction, version, program_version), (0, 2, 1), "direction, RPC version and version of a callback")
        for _ in range(2):  # credential and verifier
            (length,) = struct.unpack_from(">I", rpc, at + 4)
            at += 8 + length + (-length & 3)
        found = cls(rpc, message, [])
        if not procedure:
            return found
        expect(procedure, 1, "the procedure of a callback")
        (length,) = struct.unpack_from(">I", rpc, at)
        at += 4 + length + (-length & 3)
        minor, _, count = struct.unpack_from(">3I", rpc, at)
        expect(minor, 1, "the minor version of CB_COMPOUND")
        at += 12
        for _ in range(count):
            (number,) = struct.unpack_from(">I", rpc, at)
            found.operations.append(number)
            at += 4
            if number == CB_SEQUENCE:
                session, sequence, slot, _, _, lists = struct.unpack_from(">16s5I", rpc, at)
                found.sequence = session, sequence, slot
                at += 36
                for _ in range(lists):
                    at += 20 + 8 * int(struct.unpack_from(">I", rpc, at + 16)[0])
            elif number == CB_RECALL:
                (length,) = struct.unpack_from(">I", rpc, at + 20)
                found.recalled = rpc[at + 24 : at + 24 + length]
                at += 24 + length + (-length & 3)
            else:
                break  # how long its arguments are, nobody knows here; what follows is not asked about
        return found

    def answer(self) -> bytes:
        """The whole RPC reply of a client that does what it is asked."""
        head = self.rpc[:4] + words(1, 0, 0, 0, 0)
        if not self.operations:
            return head
        status, results = 0, []
        for number in self.operations:
            if number == CB_SEQUENCE and self.sequence is not None:
                session, sequence, slot = self.sequence
                results.append(words(number, 0) + session + words(sequence, slot, 15, 15))
            else:
                status = 0 if number == CB_RECALL else NOT_SUPPORTED
                results.append(words(number, status))
        return head + words(status) + opaque(b"") + words(len(results)) + b"".join(results)


class Channel:
    """A connection whose messages are sorted by direction."""

    def __init__(self, way: Link | Records) -> None:
        self.way = way
        self.calls: list[Callback] = []
        self.called = asyncio.Event()
        self.open = asyncio.Event()
        """While it is not set, callbacks wait for their answers."""
        self.open.set()
        self.grant = 0
        """Credits of the last forward reply."""
        self._waiting: dict[int, asyncio.Future[tuple[bytes, ReplyHeader | None]]] = {}
        self._tasks = [asyncio.ensure_future(self._read())]

    @classmethod
    async def make(cls, target: Target) -> Channel:
        """A new connection."""
        return cls(await target.link() if target.transport == "rdma" else await target.records())

    async def _read(self) -> None:
        while True:
            message, found = None, None
            if isinstance(self.way, Link):
                message = await self.way.message()
                found = message.header
                rpc = found.payload if found.procedure != 4 else b""
                xid = found.xid
            else:
                rpc = await self.way.record()
                xid = int.from_bytes(rpc[:4], "big")
            if rpc[4:8] == bytes(4):
                self.calls.append(Callback.parse(rpc, message))
                self.called.set()
                self._tasks.append(asyncio.ensure_future(self._answer(self.calls[-1])))
            elif xid in self._waiting:
                self._waiting.pop(xid).set_result((rpc, found))

    async def _answer(self, call: Callback) -> None:
        await self.open.wait()
        if isinstance(self.way, Link):
            self.way.peer.send(header(int.from_bytes(call.rpc[:4], "big"), credit=1), call.answer())
        else:
            self.way.send(call.answer())

    async def reply(self, message: bytes) -> tuple[bytes, ReplyHeader | None]:
        """The answer to a forward call, and its header over RDMA. Raises Differs, ConnectionError."""
        xid = int.from_bytes(message[:4], "big")
        reply: asyncio.Future[tuple[bytes, ReplyHeader | None]] = asyncio.get_running_loop().create_future()
        self._waiting[xid] = reply
        if isinstance(self.way, Link):
            self.way.peer.send(header(xid), message)
        else:
            self.way.send(message)
        reading = self._tasks[0]
        both: set[asyncio.Future[Any]] = {reply, reading}
        await asyncio.wait(both, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return reply.result()
        if reading.done():
            reading.result()  # raises why
        raise Differs("no reply to a forward call")

    async def exchange(self, message: bytes) -> bytes:
        """As of a connection for whole RPC messages."""
        rpc, found = await self.reply(message)
        if found is not None and found.error:
            raise Differs(f"it is answered with {name(found)}")
        return rpc

    def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()


async def delegated(target: Target, session: Session, file: bytes) -> tuple[bytes, bytes]:
    """Handle of the file, and the stateid of a delegation: the server gives one when it knows that callbacks work.
    Raises Absent if it gives none."""
    way = [words(PUTROOTFH), *(words(LOOKUP) + opaque(part) for part in target.path)]
    owner = session.client + opaque(b"conformance")
    opening = words(OPEN, 0, READ_AND_WANTED, 0) + owner + words(0, 0) + opaque(file)
    tries, end = 0, asyncio.get_running_loop().time() + PATIENCE
    while tries < TRIES and asyncio.get_running_loop().time() < end:
        status, found = await session.run(*way, opening, words(GETFH))
        if not status:
            tries += 1
            # Results of SEQUENCE, of the way, and OPEN's number and status stand before its stateid.
            at = 4 + 44 + 8 * len(way) + 8
            stateid, at = found[at : at + 16], at + 16 + 20 + 4
            at += 4 + 4 * int.from_bytes(found[at : at + 4], "big")
            kind = int.from_bytes(found[at : at + 4], "big")
            handle = _last_handle(found)
            if kind == 1:
                return handle, found[at + 4 : at + 20]
            await session.run(words(PUTFH) + opaque(handle), words(CLOSE, 0) + stateid)
        elif status not in (GRACE, DELAY):
            raise Differs(f"OPEN: NFS status {status}")
        await asyncio.sleep(0.5)
    if not tries:
        raise Absent(f"it is in its grace period for more than {PATIENCE:.0f} s")
    raise Absent("it gives no delegation")


def _last_handle(found: bytes) -> bytes:
    """GETFH's, at the end of the results."""
    for length in range(4, 129, 4):
        at = len(found) - length - 12
        size = int.from_bytes(found[at + 8 : at + 12], "big")
        if found[at : at + 8] == words(GETFH, 0) and size <= length < size + 4:
            return found[at + 12 : at + 12 + size]
    raise Differs("GETFH's result is not the last one")


@contextlib.asynccontextmanager
async def recalled(target: Target) -> AsyncIterator[tuple[Channel, Session, Callback]]:
    """A channel, its session, and the recall that has come on it; its answer waits for ``open``."""
    file = b"delegated %d" % next(_numbers)  # one whose delegation was recalled gets no other for a while
    other = await target.exchanger()
    handle = await file_of(other, target.root, file)
    channel = await Channel.make(target)
    try:
        await channel.exchange(rpc_call(next(Link._xids), 0))
        if channel.calls:
            raise Differs("a backward call comes before there is a session")
        session = await Session.make(channel, backward=True)
        await session.run(words(RECLAIM_COMPLETE, 0))
        found, stateid = await delegated(target, session, file)
        channel.open.clear()
        before = len(channel.calls)
        changing = asyncio.ensure_future(call3(other, 7, write_arguments(handle, b"new.", 2)))
        try:
            try:
                async with asyncio.timeout(10):
                    while not any(call.recalled for call in channel.calls[before:]):
                        channel.called.clear()
                        await channel.called.wait()
            except TimeoutError:
                raise Differs(f"no CB_RECALL; the WRITE: {_outcome(changing)}") from None
            yield channel, session, next(call for call in channel.calls[before:] if call.recalled)
            channel.open.set()
            if changing.done() and outcome(changing.result()) == "success":
                raise Differs("the WRITE has been made before the delegation came back")
            await session.run(words(PUTFH) + opaque(found), words(DELEGRETURN) + stateid)
            await asyncio.wait_for(changing, 20)
        finally:
            changing.cancel()
    finally:
        channel.close()


def _outcome(changing: asyncio.Future[bytes]) -> str:
    return outcome(changing.result()) if changing.done() and not changing.exception() else "no answer"


@asks("RFC 8167 6 only-when-ready", "RFC 8167 5.1 version", "RFC 8167 5.1 call-fields", "RFC 8167 5.3 short-otherwise")
async def fields(target: Target) -> None:
    async with recalled(target) as (_, _, callback):
        assert callback.message is not None
        call = callback.message.header
        expect(call.version, 1, "the version of a backward call")
        expect(call.xid, int.from_bytes(call.payload[:4], "big"), "the XID in its header")
        expect((call.procedure, call.reads, call.writes, call.reply), (0, 0, (), None), "procedure and chunks")
        if not call.credit:
            raise Differs("a backward call asks for no credits")


@asks("RFC 8167 4.2 thresholds", "RFC 8267 6.5.2 callbacks")
async def short(target: Target) -> None:
    async with recalled(target) as (_, _, callback):
        assert callback.message is not None
        if len(callback.message.octets) > INLINE:
            raise Differs(f"a backward call of {len(callback.message.octets)} octets")


@asks("RFC 8167 2.4 xid-spaces", "RFC 8167 4.1 credits-apart")
async def apart(target: Target) -> None:
    async with recalled(target) as (channel, _, callback):
        assert isinstance(channel.way, Link)
        granted = channel.way.grant
        xid = int.from_bytes(callback.rpc[:4], "big")
        found = await channel.exchange(rpc_call(xid, 0))
        expect(found, words(xid, 1, 0, 0, 0, 0), "a forward call with a backward call's XID")
        channel.open.set()
        _, answered = await channel.reply(rpc_call(channel.way.next_xid(), 0))
        if answered is not None and answered.credit < 2 <= granted:
            raise Differs("the one credit of a backward reply limits the forward direction")
    link = await target.link()
    check(await link.call(1, opaque(link.root)), "GETATTR on another connection")


@asks("RFC 8881 20.9.3 sequence-first", "RFC 8881 10.4 recall", over=ANY)
async def recall(target: Target) -> None:
    async with recalled(target) as (_, session, callback):
        expect(callback.operations[0], CB_SEQUENCE, "the first operation of a callback")
        expect((callback.sequence or (b"",))[0], session.sessionid, "the session of CB_SEQUENCE")
