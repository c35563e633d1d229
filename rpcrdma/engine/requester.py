"""The requester's side of one RPC-over-RDMA connection, without I/O (RFC 8166, RFC 8797, draft-cel version Two).

Owns :class:`Requester`: the calls that are outstanding, the window, the memory exposed for them, the version, and what
becomes of each message that arrives. Imports :mod:`rpcrdma.wire`, :mod:`rpcrdma.memory` and this package.

Operation
    Inputs: :meth:`send`, :meth:`forget`, :meth:`received`, :meth:`completed`, :meth:`close`. Outputs, to be posted by
    the owner after each input: :attr:`receives` first, then :attr:`reads` and :attr:`chains`. ``failure`` is set when
    the connection must be ended at once.

The window
    No more calls are outstanding than the last reply granted, one before the first reply (section 3.3.3), and never
    more than we have Receives for, whatever is granted. A call that nobody waits for any more counts until its reply.

Memory
    Whatever the server may access is withdrawn before a call is over (section 8.1): before its results are looked at,
    before an error is reported, before a cancelled call's caller goes on. A handle that the server has invalidated
    itself is not invalidated again. One that it must not invalidate belongs to another call, which cannot end well any
    more: that ends the connection.

Wrong replies
    What is wrong in the header of a reply makes it be discarded silently (section 4.5). The call then has no reply
    until its owner loses patience.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rpcrdma.engine.callee import Callee
from rpcrdma.engine.choice import ChunkChoice, Message, choose
from rpcrdma.engine.exchange import Exchange
from rpcrdma.engine.exposure import Registrations
from rpcrdma.engine.versions import VERSION_ONE, VERSIONS, final
from rpcrdma.memory import Account, Lease, OutOfMemory
from rpcrdma.verbs.interface import RdmaRead, RdmaWrite, Received, Send
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.errors import RDMA2_ERR_CANT_REPLY, SMALLEST_ERROR, TransportError, decode_error
from rpcrdma.wire.header import (
    CALL,
    ERR_VERS,
    FIXED_WORDS,
    OPTION,
    RDMA_ERROR,
    RDMA_NOMSG,
    REPLY,
    SMALLEST_HEADER,
    Discard,
    Fault,
    Header,
    HeaderFault,
    OptionHeader,
)
from rpcrdma.wire.private_data import Properties
from rpcrdma.wire.version_two import INITIAL_THRESHOLD

MAX_SEGMENTS = 4096


class Options(Protocol):
    """What is asked of the settings."""

    @property
    def credits(self) -> int:
        """Calls to keep outstanding."""

    @property
    def backward_credits(self) -> int:
        """Backward calls to be taken at a time."""

    @property
    def max_reply(self) -> int:
        """Octets of the longest reply."""


class Request(Protocol):
    """A call as its maker hands it over, and where its outcome goes. Of the last four one is called, at most once."""

    @property
    def message(self) -> Message:
        """The RPC call."""

    @property
    def into(self) -> Sequence[memoryview]:
        """Memory for the results' DDP-eligible items."""

    @property
    def reply_max(self) -> int:
        """Octets of the longest reply, without those."""

    @property
    def choice(self) -> ChunkChoice:
        """How to convey it."""

    def sent(self) -> None:
        """The call is on its way, for the first time or again."""

    def answered(self, octets: bytes, places: Sequence[tuple[memoryview, int]]) -> None:
        """Take the RPC reply, and (memory, octets put there) for each of ``into``."""

    def refused(self, error: TransportError) -> None:
        """The server's transport has answered with an error."""

    def malformed(self, reason: str) -> None:
        """The server's answer is none."""

    def failed(self, error: BaseException) -> None:
        """The call could not be sent."""


class Counters:
    """What happened on one connection."""

    __slots__ = ("discards", "errors", "invalidated", "replies", "sends")

    def __init__(self) -> None:
        self.sends = 0
        self.replies = 0
        self.errors = 0
        """RDMA_ERROR received."""
        self.discards = 0
        """Messages that were ignored."""
        self.invalidated = 0
        """Handles that the server has invalidated."""


class Requester:
    """The state machine of one connection."""

    def __init__(
        self,
        options: Options,
        negotiated: Properties,
        versions: Sequence[int],
        registrations: Registrations,
        memory: Account,
        finished: Callable[[Request], None],
        callee: Callee | None = None,
        *,
        can_be_invalidated: bool = True,
    ) -> None:
        """``versions`` are to be tried in this order, from the highest. ``finished`` is told of each request that got
        its outcome. ``can_be_invalidated`` says whether the server's Send With Invalidate may name our memory."""
        self.version = versions[0]
        """In use, or being tried."""
        self.settled = len(versions) == 1 and self.version == 1
        """Whether the version is that of the connection's remaining life."""
        self.window = 1
        """Calls that may be outstanding."""
        self.receives: list[Lease] = []
        self.reads: list[tuple[list[RdmaRead], object]] = []
        self.chains: list[tuple[Sequence[RdmaWrite], Send, object]] = []
        self.failure: str | None = None
        self.counters = Counters()
        self._versions = list(versions)
        self._options = options
        self._negotiated = negotiated
        self._registrations = registrations
        self._memory = memory
        self._finished = finished
        self._callee = callee
        self._can_be_invalidated = can_be_invalidated
        self._waiting: deque[Exchange] = deque()
        self._pending: dict[int, Exchange] = {}
        self._closed = False
        if callee is not None:
            callee.attach(self)

    @property
    def codec(self) -> Codec:
        """Of the version in use."""
        codecs: Mapping[int, Codec] = VERSION_ONE if self.version == 1 else VERSIONS
        return codecs[self.version]

    @property
    def properties(self) -> Properties:
        """What holds for the next message."""
        if self.version == 1 or self.settled:
            return self.final_properties
        # "Protocol Version Negotiation": the server may know version One only, with its smallest thresholds.
        least = INITIAL_THRESHOLD
        return Properties(least, least, self._can_be_invalidated)

    @property
    def final_properties(self) -> Properties:
        """What holds once the version is settled."""
        return final(self.version, self._negotiated, self._can_be_invalidated)

    @property
    def outstanding(self) -> int:
        """Calls sent and not answered, those that nobody waits for among them."""
        return len(self._pending)

    # Inputs

    def send(self, request: Request) -> None:
        """Send a call as soon as the window allows. Raises ValueError when it cannot be sent as it is wanted."""
        exchange = Exchange(request)
        if self.settled:
            self._plan(exchange)
        self._waiting.append(exchange)
        self._fill()

    def forget(self, request: Request) -> None:
        """Nobody waits for this call any more. The server has no access to its memory when this returns; if it uses
        that all the same, the connection is lost."""
        exchange = self._pending.get(request.message.xid)
        if exchange is not None and exchange.request is request:
            exchange.withdraw(self._registrations)
            exchange.request = None
            return
        self._waiting = deque(exchange for exchange in self._waiting if exchange.request is not request)

    def received(self, messages: Sequence[Received]) -> None:
        """Take a batch of messages, each with one count of its lease."""
        for lease, length, invalidated in messages:
            if self._closed:
                lease.release()
                continue
            if self.failure is None:
                self._take(lease.view[:length], invalidated)
            self.receives.append(lease)  # nothing of it was kept
        self._fill()

    def completed(self, token: object, ok: bool) -> None:
        """Take the completion of what was posted with ``token``."""
        if self._callee is not None and self._callee.completed(token, ok):
            return
        if not ok and not self._closed:
            self.fail("a Send failed")

    def close(self) -> None:
        """The connection is gone, and with it all access to our memory. No request gets an outcome any more."""
        self._closed = True
        for exchange in self._pending.values():
            exchange.withdraw(self._registrations)
        self._pending.clear()
        self._waiting.clear()
        self._registrations.clear()
        for lease in self.receives:
            lease.release()
        self.receives.clear()
        self.reads.clear()
        self.chains.clear()
        if self._callee is not None:
            self._callee.close()

    def fail(self, reason: str) -> None:
        """The connection must be ended."""
        if self.failure is None:
            self.failure = reason

    # Sending

    def _plan(self, exchange: Exchange) -> None:
        """Choose the chunks, for the version and the thresholds that hold now. Raises ValueError."""
        request = exchange.request
        assert request is not None
        properties = self.properties
        exchange.plan = choose(
            request.message,
            request.into,
            max(request.reply_max, exchange.reply_room),
            exchange.choice,
            self.codec.call_size,
            properties.send_threshold,
            properties.receive_threshold,
        )
        exchange.planned = (self.version, self.settled)

    def _fill(self) -> None:
        """Send what the window allows."""
        while self._waiting and len(self._pending) < self.window and self.failure is None and not self._closed:
            exchange = self._waiting.popleft()
            request = exchange.request
            assert request is not None
            try:
                if exchange.planned != (self.version, self.settled):
                    self._plan(exchange)
                message = self._transmit(exchange)
            except OutOfMemory as error:
                exchange.withdraw(self._registrations)
                if self._pending:
                    self._waiting.appendleft(exchange)  # the next reply makes room
                    return
                self._over(request, error)
            except (ValueError, OSError, BufferError) as error:
                exchange.withdraw(self._registrations)
                self._over(request, error)
            else:
                self._pending[request.message.xid] = exchange
                self.counters.sends += 1
                request.sent()
                self.chains.append(((), Send((message,)), None))

    def _over(self, request: Request, error: BaseException) -> None:
        request.failed(error)
        self._finished(request)

    def _transmit(self, exchange: Exchange) -> bytes:
        """Expose the call's memory; returns what is to be sent. Raises OutOfMemory, OSError, BufferError."""
        exchange.expose(self._registrations, self._memory)
        request, plan = exchange.request, exchange.plan
        assert request is not None
        exchange.invalidate = 0
        if self.version != 1 and self._can_be_invalidated and exchange.choice.invalidate == "auto":
            exchange.invalidate = exchange.first_handle
        header = self.codec.encode_call(
            request.message.xid,
            self._options.credits,
            plan.procedure,
            exchange.reads,
            exchange.writes,
            exchange.reply,
            exchange.invalidate,
        )
        return header if plan.procedure == RDMA_NOMSG else header + plan.stream

    # Receiving

    def _take(self, view: memoryview, invalidated: int | None) -> None:
        """Take one message."""
        if len(view) < SMALLEST_ERROR:
            self._discard(invalidated)
            return
        xid, version, _, procedure = FIXED_WORDS.unpack_from(view)
        if procedure == RDMA_ERROR:
            # Shorter than the smallest header where the code has no body; its XID alone is trusted (section 4.2.4).
            error = decode_error(view)
            exchange = None if error is None else self._pending.get(xid)
            if error is None or exchange is None:
                self._discard(invalidated)
            elif self._was_allowed(exchange, invalidated):
                self._take_error(exchange, error)
            return
        if len(view) < SMALLEST_HEADER or version != self.version:
            self._discard(invalidated)
            return
        try:
            header = self.codec.decode(view, MAX_SEGMENTS)
        except Discard:
            self._discard(invalidated)
            return
        except HeaderFault as fault:
            self._take_fault(fault, view, invalidated)
            return
        if header.direction == OPTION:
            self._take_option(header, invalidated)
        elif header.direction == CALL and not (header.procedure == RDMA_NOMSG and not header.reads):
            self._take_call(header, view, invalidated)
        else:
            self._take_reply(header, view, invalidated)

    def _discard(self, invalidated: int | None) -> None:
        self.counters.discards += 1
        if invalidated is not None:
            self.fail(f"a message that answers no call has invalidated the handle {invalidated:#x}")

    def _was_allowed(self, exchange: Exchange, invalidated: int | None) -> bool:
        """Note what the server has invalidated with its answer to this call."""
        if invalidated is None:
            return True
        # RFC 8797 section 4.1 wants R of both sides. Linux's server (6.1) goes by ours alone; when it is the call's own
        # memory, that harms nobody.
        allowed = self._can_be_invalidated
        if self.version != 1:
            # "Remote Invalidation": that handle or none. And none before the requester could know that they agree.
            allowed = exchange.invalidate == invalidated
        if not exchange.was_invalidated(invalidated) or not allowed:
            self.fail(f"the server has invalidated the handle {invalidated:#x}, which was not the call's to lose")
            return False
        self.counters.invalidated += 1
        return True

    def _take_fault(self, fault: HeaderFault, view: memoryview, invalidated: int | None) -> None:
        """A header that does not decode. That of a call gets an error (section 4.5); what cannot be told is taken for
        a reply, as most messages are."""
        is_call = self.version != 1 and view[16:20] == bytes(4) and fault.xid not in self._pending
        self._discard(invalidated)
        if is_call and self._callee is not None:
            self.answer(self.codec.encode_error(fault.xid, self._options.backward_credits, fault.fault))

    def _take_option(self, header: Header, invalidated: int | None) -> None:
        """RDMA2_OPTIONAL: no extension is known here, and who asks is told ("Optional Features")."""
        assert isinstance(header, OptionHeader)
        self._discard(invalidated)
        if header.optdir == CALL:
            self.answer(self.codec.encode_error(header.xid, self._options.backward_credits, Fault.OPTION))

    def _take_call(self, header: Header, view: memoryview, invalidated: int | None) -> None:
        if invalidated is not None or self._callee is None:
            self._discard(invalidated)
        elif not self._callee.take(header, view):
            self.counters.discards += 1

    def answer(self, message: bytes) -> None:
        """Send what answers a backward call, or is an error."""
        self.chains.append(((), Send((message,)), None))

    def _take_error(self, exchange: Exchange, error: TransportError) -> None:
        request = exchange.request
        self.counters.errors += 1
        del self._pending[error.xid]
        exchange.withdraw(self._registrations)
        if error.code == ERR_VERS:
            low, high = error.versions
            lower = [version for version in self._versions if version < self.version and low <= version <= high]
            if lower and not self.settled:
                # "Responder Does Not Support RPC-over-RDMA Version Two": nothing was executed.
                self.version = lower[0]
                self.settled = self.version == 1
                if request is not None:
                    self._waiting.appendleft(exchange)
                return
        if request is None:
            return
        if error.code == RDMA2_ERR_CANT_REPLY and self._make_room(exchange, error):
            self._waiting.appendleft(exchange)
            return
        request.refused(error)
        self._finished(request)

    def _make_room(self, exchange: Exchange, error: TransportError) -> bool:
        """Whether the call may be sent again, with the Reply chunk that the server says it needs ("Transport Errors":
        with the same XID, so that a finished call is not executed again)."""
        _, segment, needed = error.shortage
        in_writes = sum(len(chunk) for chunk in exchange.writes)
        if not needed or (segment and segment <= in_writes) or exchange.enlarged:
            return False
        if segment and exchange.reply is not None:
            # One segment is too small by so much; they all become one.
            index = segment - in_writes - 1
            if index >= len(exchange.reply):
                return False
            needed += sum(length for _, length, _ in exchange.reply) - exchange.reply[index][1]
        return exchange.enlarge(needed, self._options.max_reply)

    def _take_reply(self, header: Header, view: memoryview, invalidated: int | None) -> None:
        exchange = self._pending.get(header.xid)
        if exchange is None:
            self._discard(invalidated)
            return
        if not self._was_allowed(exchange, invalidated):
            return
        placed = exchange.placed(header)
        if placed is None:
            self.counters.discards += 1
            return
        written, length = placed
        octets = bytes(view[header.payload :])
        if header.procedure != RDMA_NOMSG and not _is_reply(octets, header.xid):
            self.counters.discards += 1
            return
        reply_lease = exchange.keep_reply()
        exchange.withdraw(self._registrations)
        del self._pending[header.xid]
        if header.procedure == RDMA_NOMSG:
            assert reply_lease is not None
            octets = bytes(reply_lease.view[:length])
        if reply_lease is not None:
            reply_lease.release()
        self.counters.replies += 1
        self.settled = True
        # Zero would be a deadlock and stands for one. Never more than there are Receives for.
        self.window = min(max(header.credits, 1), self._options.credits)
        request = exchange.request
        if request is None:
            return
        if not _is_reply(octets, header.xid):
            # Its memory has been withdrawn, so that no better reply can follow.
            request.malformed("the Reply chunk holds no reply to the call")
        else:
            request.answered(octets, written)
        self._finished(request)


def _is_reply(octets: bytes, xid: int) -> bool:
    """Whether the RPC message starts with the header's XID (section 4.5.2) and is a reply."""
    return len(octets) >= 8 and int.from_bytes(octets[:4], "big") == xid and octets[4:8] == REPLY.to_bytes(4, "big")
