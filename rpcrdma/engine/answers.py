"""How a responder answers: errors, replies and backward calls become chains of Writes and Sends (RFC 8166).

Owns :class:`Answers`, the half of :class:`rpcrdma.engine.responder.Responder` that sends: what waits to be answered,
and the chains that come of it. Imports :mod:`rpcrdma.wire`, the rest of this package, the vocabulary of
:mod:`rpcrdma.verbs.interface`, and no I/O.

An answer needs a credit that can be granted with it, and is first come, first served; whatever it is, it is counted in
``credits.outstanding`` until it is posted, and from then on in ``credits.unsent``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rpcrdma.engine.backward import BackwardChannel
from rpcrdma.engine.calls import Chain, ForwardCall, OptionAnswer, Refusal, Suspects
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.engine.counters import Counters
from rpcrdma.engine.credits import Credits
from rpcrdma.engine.environment import Memory, Poisoned, Trace
from rpcrdma.engine.extensions import ask
from rpcrdma.engine.reduce import NoRoom, Reply, reduce
from rpcrdma.engine.spoiling import Spoilt
from rpcrdma.engine.state import ResponderState
from rpcrdma.engine.transmit import compose
from rpcrdma.engine.versions import VERSIONS, Versions
from rpcrdma.verbs.interface import Send
from rpcrdma.wire.header import CALL, RDMA_NOMSG, Fault, Header, OptionHeader, Shortage
from rpcrdma.wire.private_data import Properties
from rpcrdma.wire.version_two import VersionTwo


class Answers(ResponderState):
    """What one connection answers."""

    def __init__(
        self,
        options: ResponderOptions,
        negotiated: Properties,
        posted: int,
        memory: Memory,
        counters: Counters,
        poisoned: Poisoned | None,
        trace: Trace | None,
        on_settled: Callable[[int, Properties], None] | None,
    ) -> None:
        # Where memory was too short for all Receives, the connection begins with fewer credits.
        limit = min(options.credits, max(posted - options.backward_credits, 1))
        ledger = Credits(limit, min(options.backward_credits, posted - limit), posted, options.credits)
        versions = Versions(options, negotiated, on_settled)
        super().__init__(ledger, counters, versions, poisoned, trace is not None)
        self.backward = BackwardChannel(ledger.target - limit, ledger, counters)
        self.suspects = Suspects()
        self._options = options
        self._memory = memory
        self._trace = trace
        self._to_answer: deque[tuple[ForwardCall, Reply] | Refusal | OptionAnswer] = deque()

    def _refuse(self, xid: int, version: int, fault: Fault, reason: object, *, counted: bool = False) -> None:
        """Queue an error. It is an answer like any other: it needs a credit, and a Receive to back it."""
        if not counted:
            self.credits.outstanding += 1
        if self._trace is not None:
            self._trace("svcrdma_decode_error", xid, f"{fault.value}: {reason}")
        self.counters.refused(version, fault)
        codec = None if fault is Fault.VERSION else VERSIONS[version]
        self._to_answer.append(Refusal(xid, version, fault, codec))

    def _answer(self) -> None:
        """Post what is to be answered, as long as a credit can be granted with it (never zero, section 3.3.1)."""
        while self._to_answer:
            grant = self.credits.grant()
            if not grant:
                self.counters.starved_grants += 1
                return
            answer = self._to_answer.popleft()
            self.credits.outstanding -= 1
            self.credits.unsent += 1
            if isinstance(answer, tuple):
                call, reply = answer
                self._post_reply(call, reply, grant)
                if isinstance(reply, Spoilt):
                    writes, send, chain = self.chains[-1]
                    self.chains[-1] = (*reply.spoil(call, writes, send), chain)
            elif isinstance(answer, Refusal):
                self._post_message(answer.encode(grant, self.versions.supported))
            else:
                self._settle(VersionTwo.version)
                self._post_message(answer.encode(grant))

    def _post_reply(self, call: ForwardCall, reply: Reply, grant: int) -> None:
        header = call.header
        codec = call.codec
        header_size = call.reply_header
        properties = self.versions.properties
        if header.version != self.versions.settled:
            properties = self.versions.initial(header.version)
        try:
            reduction = reduce(header, reply, header_size, properties.send_threshold)
        except NoRoom as no_room:
            self.counters.refused(header.version, Fault.NO_ROOM)
            if self._trace is not None:
                self._trace("svcrdma_small_chunk", header.xid, no_room)
            shortage = Shortage(True, no_room.segment, no_room.needed)
            self._post_message(codec.encode_error(header.xid, grant, Fault.NO_ROOM, shortage))
            reply.release()
            return
        if self.versions.settled is None:
            self._settle(header.version)
        counters = self.counters
        lease, segments = compose(codec, header, grant, reduction, header_size, self._options.pull_up, self._memory)
        invalidate = codec.invalidates(header) if properties.remote_invalidation else None
        counters.replies += 1
        if invalidate is not None:
            counters.invalidations += 1
        if reduction.procedure == RDMA_NOMSG:
            counters.long_replies += 1
        else:
            counters.inline_replies += 1
        if reduction.writes:
            self.suspects.written.append(header)
            counters.writes += len(reduction.writes)
            counters.write_bytes += sum(len(write.source) for write in reduction.writes)
        if self._trace is not None:
            self._trace(
                "svcrdma_post_send", header.xid, (reduction.procedure, len(reduction.writes), invalidate, grant)
            )
        chain = Chain(header if reduction.writes else None, reply, lease)
        self.chains.append((reduction.writes, Send(segments, invalidate), chain))

    def _post_message(self, message: bytes) -> None:
        self.chains.append(((), Send((message,)), Chain()))

    def _settle(self, version: int) -> None:
        """The first reply that is no error settles the version and its thresholds."""
        if self.versions.settled is None:
            self.versions.settle(version)
            self.counters.settled(version)

    def _take_option(self, header: Header, view: memoryview) -> None:
        """Answer an RDMA2_OPTIONAL message as its extension says, if there is one."""
        assert isinstance(header, OptionHeader)
        self.counters.options += 1
        answer = ask(self._options.extensions, header, view)
        if header.optdir != CALL:
            return
        if isinstance(answer, Fault):
            self._refuse(header.xid, header.version, answer, f"option {header.opttype}")
        elif answer is not None:
            self.credits.outstanding += 1
            self._to_answer.append(OptionAnswer(header.xid, header.opttype, answer))

    def _send_backward(self) -> None:
        while (call := self.backward.next()) is not None:
            self.credits.unsent += 1
            self.counters.backward_calls += 1
            codec = VERSIONS[self.versions.version]
            self._post_message(call.encode(codec, self._options.backward_credits))
