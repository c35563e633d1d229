"""The synthetic peer as a responder: a server that answers what a test says, well-formed or not, on any provider."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import REPLY, ReplyHeader, Segment, header, header_two, words
from rpcrdma.verbs.interface import ConnectRequest, ListenAddress, Provider
from tests.peer.rig import DEVICE_ADDRESS, LINUX, Rig


@dataclass
class CallHeader(ReplyHeader):
    """A received call."""

    read_segments: tuple[tuple[int, Segment], ...] = ()

    @classmethod
    def parse(cls, message: bytes) -> CallHeader:
        self = super().parse(message)
        assert isinstance(self, cls)
        at = 16 if self.version == 1 else 24
        found = []
        for _ in range(self.reads):
            _, position, handle, length, offset = struct.unpack_from(">IIIIQ", message, at)
            found.append((position, Segment(handle, length, offset)))
            at += 24
        self.read_segments = tuple(found)
        return self


class Side(Peer):
    """The server's side of one connection."""

    async def call_header(self) -> CallHeader:
        """The next call, its lists taken apart."""
        return CallHeader.parse((await self.message()).octets)

    def reply(self, call: CallHeader, results: bytes = b"", *, invalidate: int | None = None, **fields: object) -> None:
        """A reply with status SUCCESS; ``fields`` are the header's."""
        self.send(reply_header(call, **fields), rpc_reply(call.xid, results), invalidate=invalidate)


def filled(chunk: Sequence[Segment], length: int) -> list[Segment]:
    """An offered chunk as it comes back with ``length`` octets in it."""
    returned = []
    for segment in chunk:
        used = min(segment.length, length)
        returned.append(segment._replace(length=used))
        length -= used
    return returned


def rpc_reply(xid: int, results: bytes = b"") -> bytes:
    """A whole RPC reply that accepts the call."""
    return words(xid, REPLY, 0, 0, 0, 0) + results


def reply_header(call: CallHeader, **fields: object) -> bytes:
    """The transport header of a reply in the call's version, with its chunks as they come back unused."""
    reply = None if call.reply is None else filled(call.reply, 0)
    writes = [filled(chunk, 0) for chunk in call.writes]
    values: dict[str, object] = {"credit": 32, "writes": writes, "reply": reply} | fields
    xid = values.pop("xid", call.xid)
    assert isinstance(xid, int)
    if values.pop("version", call.version) == 1:
        return header(xid, **values)  # type: ignore[arg-type]  # the header's own fields
    return header_two(xid, direction=REPLY, inv_handle=call.inv_handle, **values)  # type: ignore[arg-type]


class Server:
    """A listener. Use as an asynchronous context manager; it checks on the way out that every buffer came back."""

    def __init__(self, provider: Callable[[Pool], Provider] | None = None, private_data: bytes = LINUX) -> None:
        self.pool = Pool(256 << 20)
        self.private_data = private_data
        self.sides: list[Side] = []
        self.refusing = 0
        """How many of the next connection requests are to be rejected."""
        self._provider_of = provider or Rig.default_provider
        self._new: asyncio.Queue[Side] = asyncio.Queue()

    async def __aenter__(self) -> Server:
        self.provider = self._provider_of(self.pool)
        self.listener = await self.provider.listen(ListenAddress(DEVICE_ADDRESS or "127.0.0.1", 0), self._requested)
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        for side in self.sides:
            if side.reason is None:
                side.endpoint.close(abort=True)
        await self.provider.close()
        async with asyncio.timeout(20):
            while any(side.reason is None for side in self.sides) or (kind is None and self.pool.in_use):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert self.pool.leaked == 0

    def _requested(self, request: ConnectRequest) -> None:
        if self.refusing:
            self.refusing -= 1
            request.reject(self.private_data)
            return
        side = Side(self.pool.account(64 << 20))
        leases = [side._account.lease(4096) for _ in range(160)]
        side.endpoint = request.accept(side, self.private_data, leases, initiator_depth=16)
        side.private_data = request.private_data
        self.sides.append(side)
        self._new.put_nowait(side)

    async def accepted(self) -> Side:
        """The next connection."""
        return await asyncio.wait_for(self._new.get(), 20)
