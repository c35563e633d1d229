"""Questions about callbacks: RFC 8167, and what RFC 8267 says of NFSv4.1."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncIterator
from typing import Any

from nfsd.conformance.link import INLINE, Differs, Link, Target, asks, check, expect, opaque, rpc_call
from nfsd.protocol import nfs4 as p
from rpcrdma.peer.requester import Message
from rpcrdma.peer.wire import ReplyHeader, header
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4

TRIES = 240
"""Twice a second: a server may be in its grace period at first, and give no delegation."""
_names = itertools.count()
"""For clients and files: a file whose delegation was recalled gets no other for a while."""


class Channel:
    """A connection whose messages are sorted by direction; also what Client4 wants of transport and server."""

    max_backchannel_size = 1

    def __init__(self, link: Link) -> None:
        self.link = link
        self.end = CallbackEnd()
        self.calls: list[Message] = []
        """Backward calls."""
        self.called = asyncio.Event()
        self.open = asyncio.Event()
        """While it is not set, they wait for their answers."""
        self.open.set()
        self._waiting: dict[int, asyncio.Future[ReplyHeader]] = {}
        self._answers: list[asyncio.Task[None]] = []
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            message = await self.link.message()
            found = message.header
            if found.procedure != 4 and found.payload[4:8] == bytes(4):
                self.calls.append(message)
                self.called.set()
                self._answers.append(asyncio.ensure_future(self._answer(found)))
            elif found.xid in self._waiting:
                self._waiting.pop(found.xid).set_result(found)

    async def _answer(self, call: ReplyHeader) -> None:
        await self.open.wait()
        self.link.peer.send(header(call.xid, credit=1), await self.end.answer(call.payload, self))

    async def exchange(self, xid: int, *parts: bytes) -> ReplyHeader:
        """The answer to a forward call."""
        self._waiting[xid] = asyncio.get_running_loop().create_future()
        self.link.peer.send(*parts)
        done, _ = await asyncio.wait(
            {self._waiting[xid], self._reader}, timeout=30, return_when=asyncio.FIRST_COMPLETED
        )
        for future in done:
            return future.result()  # type: ignore[return-value]
        raise Differs("no reply to a forward call")

    async def call(self, _: Any, message: bytes) -> bytes:
        """One forward call of Client4's."""
        xid = int.from_bytes(message[:4], "big")
        return (await self.exchange(xid, header(xid), message)).payload

    def close(self) -> None:
        """Stop reading."""
        for task in (self._reader, *self._answers):
            task.cancel()


async def delegated(client: Client4, directory: str, file: bytes) -> tuple[bytes, p.stateid4]:
    """Handle of the file, and the stateid of a delegation: the server gives one when it knows that callbacks work."""
    for _ in range(TRIES):
        want = p.OPEN4_SHARE_ACCESS_READ | p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG
        args = client.open_args(file, access=want)
        status, results = await client.raw(*client.in_session(*client.path(directory), (p.OP_OPEN, args), p.OP_GETFH))
        if status == p.NFS4_OK:
            opened, handle = (result.resok4 for _, result in results[-2:])
            granted = opened.delegation
            if granted.delegation_type == p.open_delegation_type4.OPEN_DELEGATE_READ:
                return handle.object, granted.read.stateid
            await client.close(opened.stateid, handle.object)
        elif status not in (p.NFS4ERR_GRACE, p.NFS4ERR_DELAY):
            raise Differs(f"OPEN: {p.nfsstat4(status).name}")
        await asyncio.sleep(0.5)
    raise Differs("no delegation is given, and so none recalled")


@contextlib.asynccontextmanager
async def recalled(target: Target) -> AsyncIterator[tuple[Channel, Message]]:
    """A channel and the recall that has come on it; its answer waits for ``open``."""
    other = await target.link()
    number = next(_names)
    file = b"delegated %d" % number
    handle = await other.filled(file, b"old")
    channel = Channel(await target.link())
    client = Client4(channel, 1, transport=channel, name=b"checklist %d" % number)  # type: ignore[arg-type]
    try:
        await channel.exchange(*_null(channel.link.next_xid()))
        if channel.calls:
            raise Differs("a backward call comes before there is a session")
        await client.connect()
        found, stateid = await delegated(client, "/".join(part.decode() for part in target.path), file)
        channel.open.clear()
        before = len(channel.calls)
        arguments = opaque(handle) + struct.pack(">QIII", 0, 3, 2, 3) + opaque(b"new")[4:]
        changing = asyncio.ensure_future(other.call(7, arguments))
        try:
            async with asyncio.timeout(20):
                while len(channel.calls) == before:
                    await channel.called.wait()
                    channel.called.clear()
            yield channel, channel.calls[before]
            channel.open.set()
            await client.on(found, (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid)))
            await asyncio.wait_for(changing, 20)
        finally:
            changing.cancel()
    finally:
        channel.close()


def _null(xid: int) -> tuple[int, bytes, bytes]:
    return xid, header(xid), rpc_call(xid, 0)


@asks("RFC 8167 6 only-when-ready", "RFC 8167 5.1 version", "RFC 8167 5.1 call-fields", "RFC 8167 5.3 short-otherwise")
async def fields(target: Target) -> None:
    async with recalled(target) as (_, message):
        call = message.header
        expect(call.version, 1, "the version of a backward call")
        expect(call.xid, int.from_bytes(call.payload[:4], "big"), "the XID in its header")
        expect((call.procedure, call.reads, call.writes, call.reply), (0, 0, (), None), "procedure and chunks")
        if not call.credit:
            raise Differs("a backward call asks for no credits")


@asks("RFC 8167 4.2 thresholds", "RFC 8267 6.5.2 callbacks")
async def short(target: Target) -> None:
    async with recalled(target) as (channel, message):
        if len(message.octets) > INLINE:
            raise Differs(f"a backward call of {len(message.octets)} octets")
        expect([number for number, _ in channel.end.executed], [], "what was executed before the answer")
    expect(p.OP_CB_RECALL in channel.end.operations, True, "CB_RECALL comes on the client's connection")


@asks("RFC 8167 2.4 xid-spaces", "RFC 8167 4.1 credits-apart")
async def apart(target: Target) -> None:
    async with recalled(target) as (channel, message):
        granted = channel.link.grant
        xid = message.header.xid
        found = await channel.exchange(*_null(xid))
        expect(found.payload, struct.pack(">6I", xid, 1, 0, 0, 0, 0), "a forward call with a backward call's XID")
        channel.open.set()
        found = await channel.exchange(*_null(channel.link.next_xid()))
        if found.credit < 2 <= granted:
            raise Differs("the one credit of a backward reply limits the forward direction")
    link = await target.link()
    check(await link.call(1, opaque(link.root)), "GETATTR on another connection")
