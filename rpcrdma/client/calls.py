"""A call between its caller and the connection that carries it. Imports the messages and options of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from rpcrdma.client.errors import BadReply, TransportError
from rpcrdma.client.messages import Message, Reply, decode_reply
from rpcrdma.engine.choice import LINUX, ChunkChoice
from rpcrdma.engine.requester import Request
from rpcrdma.rpc.program import RpcReply
from rpcrdma.wire import errors

Read = Callable[[bytes, Sequence[tuple[memoryview, int]]], Reply]
"""Reads a reply, as :func:`rpcrdma.client.messages.decode_reply`."""


class PendingCall:
    """One call: everything needed to send it, again if need be, and where its outcome goes."""

    __slots__ = (
        "_loop", "_make", "_places", "_read", "choice", "into", "message", "outcome", "reply_max", "sent_at",
        "transmissions",
    )  # fmt: skip

    def __init__(
        self,
        message: Message,
        outcome: asyncio.Future[Reply],
        into: Sequence[memoryview] = (),
        reply_max: int = 0,
        choice: ChunkChoice = LINUX,
        *,
        make: Callable[[int], Message] | None = None,
        read: Read = decode_reply,
        places: Sequence[memoryview] | None = None,
    ) -> None:
        """``make`` makes the message that is sent the next time; None: the same. ``read`` reads the reply. ``places``
        are where its items go, if that is not ``into``, where the server may put them."""
        self.message = message
        self._make, self._read, self._places = make, read, places
        self.outcome = outcome
        self.into = into
        self.reply_max = reply_max
        """Octets of the longest reply, without what goes into ``into``."""
        self.choice = choice
        self.transmissions = 0
        self.sent_at: float | None = None
        """When it was last sent, by the loop's clock; None: it waits for its turn."""
        self._loop = outcome.get_loop()

    def renew(self) -> None:
        """It is going to be sent again."""
        if self._make is not None:
            self.message = self._make(self.message.xid)

    def sent(self) -> None:
        """It is on its way."""
        self.transmissions += 1
        self.sent_at = self._loop.time()

    def answered(self, octets: bytes, places: Sequence[tuple[memoryview, int]]) -> None:
        """Take the whole RPC reply."""
        if self.outcome.done():
            return
        if self._places is not None:
            places = [(memory, 0) for memory in self._places]
        try:
            reply = self._read(octets, places)
        except Exception as error:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(reply)

    def refused(self, error: errors.TransportError) -> None:
        """The server's transport answered with an error."""
        self.failed(TransportError(error))

    def malformed(self, reason: str) -> None:
        """The server's answer is none."""
        self.failed(BadReply(reason))

    def failed(self, error: BaseException) -> None:
        """There will be no reply."""
        if not self.outcome.done():
            self.outcome.set_exception(error)


class Carrier(Protocol):
    """One live connection. It ends with its owner's ``lost``, and is of no use afterwards."""

    local_address: str
    peer_address: str

    @property
    def version(self) -> int:
        """Of RPC-over-RDMA: the one in use, or being tried; 0 over TCP."""

    def send(self, call: Request) -> None:
        """Send a call, or queue it until it may be sent. Its reply goes to :meth:`Request.answered`."""

    def forget(self, call: Request) -> None:
        """Nobody waits for the call any more: its memory is its caller's again when this returns."""

    def reply_backward(self, token: object, reply: RpcReply | None) -> None:
        """Answer a backward call that the owner was given with ``token``; None: it gets no reply. Releases the reply
        once it has been sent."""

    @property
    def max_backchannel_size(self) -> int:
        """Octets of the largest backward call or reply."""

    def close(self, *, abort: bool = False) -> None:
        """End it: after what is under way has left, or at once with ``abort``."""

    async def wait_closed(self) -> None:
        """Return when it has ended, and its memory has been given back."""


class Owner(Protocol):
    """What a carrier tells the connection it works for."""

    def finished(self, call: Request) -> None:
        """A call was answered, or failed."""

    @property
    def takes_calls(self) -> bool:
        """Whether backward calls are taken at all; where not, a carrier drops them."""

    def called_back(self, carrier: Carrier, message: memoryview, token: object) -> None:
        """The server has sent a whole RPC call. Answer it by :meth:`Carrier.reply_backward`, perhaps at once."""

    def lost(self, carrier: Carrier, reason: str) -> None:
        """The carrier is gone. Calls that it has not finished may be sent again."""


Dial = Callable[[Owner], Awaitable[Carrier]]
"""Makes a carrier. Raises OSError."""
