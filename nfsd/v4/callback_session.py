"""Callbacks of NFSv4.1 and later: the requester's side of one session's backchannel.

Owns the slots of the backchannel and what is under way on them; imports messages and the state's records. One
:class:`BackchannelSender` belongs to one session.

Slots. A callback takes a free slot, in the order of asking, and keeps it until the client has answered: the sequence id
goes forward exactly when the client has accepted CB_SEQUENCE. A callback whose caller has given up stays in flight, and
frees its slot with its late answer.

Connections. Every connection bound to the backchannel will do. When one is lost with a callback in flight, or is silent
while there is another, the same request goes out again over another one, with the slot and sequence id it had
(RFC 8881 section 2.10.6.2). If nobody waits for it any more it is kept on its slot, and sent again before anything else
may use the slot.

RFC 8881 sections 2.10.6, 20.9.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from nfsd.protocol import nfs4 as p
from nfsd.state.sessions import Session
from nfsd.state.types import UINT32_MAX
from nfsd.v4.callback_messages import (
    CallbackError,
    CompoundReply,
    accepted,
    compound_arguments,
    compound_results,
    encoded,
    whole_call,
)
from nfsd.v4.callback_proof import Results
from rpcrdma.rpc.program import Transport
from rpcrdma.xdr import Decoder

PATIENCE = 5.0
"""Seconds until a callback is tried over another connection, if there is one."""
_MAX_WAITING = 1024
"""Callbacks that wait for a slot of one session."""
_BACKOFF = 0.05
_LONGEST_BACKOFF = 1.0


class _Slot:
    __slots__ = ("number", "seqid", "unanswered")

    def __init__(self, number: int) -> None:
        self.number = number
        self.seqid = 0
        """Of the last request that the client has accepted."""
        self.unanswered: _Request | None = None
        """A request sent with the next sequence id, of which nobody knows whether it was executed."""


class _Request:
    """Operations as octets, and what else is needed to send them again."""

    __slots__ = ("abandoned", "count", "octets", "referring", "sending", "settling")

    def __init__(self, count: int, octets: bytes, referring: Sequence[p.referring_call_list4]) -> None:
        self.count = count
        self.octets = octets
        self.referring = list(referring)
        self.abandoned = False
        """Nobody waits for its answer any more."""
        self.sending = False
        """It is on its way, and only an answer or the end of the connection ends that."""
        self.settling = False
        """It is sent again for its slot's sake only."""


class _Again(Exception):
    """The request is to be sent once more, after ``delay`` seconds."""

    def __init__(self, delay: bool = False) -> None:
        super().__init__()
        self.delay = delay


class _SlotGone(Exception):
    """The client has taken the slot back."""


class BackchannelSender:
    """Sends callbacks on one session."""

    def __init__(self, session: Session, limit: int, next_xid: Callable[[], int]) -> None:
        """``limit``: slots used at most, whatever the client grants."""
        self.session = session
        self._channel = session.backchannel
        self._next_xid = next_xid
        self._granted = max(1, min(session.back.maxrequests, limit))
        self._target = self._granted
        """Slots the client would like us to use (csr_target_highest_slotid)."""
        self._slots: list[_Slot] = []
        self._free: list[_Slot] = []
        self._waiters: deque[asyncio.Future[_Slot]] = deque()
        self._bound = asyncio.Event()
        self._tasks: set[asyncio.Task[CompoundReply]] = set()

    @property
    def in_flight(self) -> int:
        """Slots in use."""
        return len(self._slots) - len(self._free)

    def close(self) -> None:
        """Give up everything under way."""
        for task in list(self._tasks):
            task.cancel()

    @property
    def orphaned(self) -> bool:
        """Whether the session is gone."""
        return self.session.sessionid not in self.session.client.sessions

    def session_gone(self) -> None:
        """The session has been destroyed: nobody waits any longer for what is under way (its effect may come)."""
        for task in list(self._tasks):
            task.cancel()

    def bound(self) -> None:
        """A connection has been bound to this backchannel, or another of the client's."""
        self._bound.set()

    async def call(
        self,
        operations: Sequence[tuple[int, Any]],
        referring: Sequence[p.referring_call_list4],
        seconds: float,
        wait_for_path: bool,
    ) -> CompoundReply:
        """Send the operations; the reply without CB_SEQUENCE's part. Raises CallbackError."""
        if len(operations) + 1 > self.session.back.maxoperations:
            raise CallbackError("too_big", "more operations than the backchannel takes")
        request = _Request(len(operations), encoded(operations), referring)
        if not wait_for_path and not self._channel.usable:
            raise CallbackError("path_down", "no connection is bound to the backchannel")
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._over)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
            if done and not task.cancelled():
                return task.result()
        finally:
            # If it is on its way it may be executed: it stays in flight, and its slot with it (section 2.10.6.2).
            request.abandoned = True
            if not request.sending:
                task.cancel()
        if task.cancelled() or not self._channel.usable:
            raise CallbackError("path_down", "no connection is bound to the backchannel")
        raise CallbackError("timeout", "the client has not answered in time")

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever has given up does not ask for it

    # -- slots ---------------------------------------------------------------------------------------------------
    async def _take(self) -> _Slot:
        """A slot, in the order of asking."""
        if not self._waiters:
            slot = self._next_free()
            if slot is not None:
                return slot
        if len(self._waiters) >= _MAX_WAITING:
            raise CallbackError("busy", "too many callbacks wait for this client")
        future: asyncio.Future[_Slot] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_back(future.result())
            else:
                self._waiters.remove(future)
            raise

    def _next_free(self) -> _Slot | None:
        """The free slot to use next: the lowest one (section 2.10.6.1), rather one without a history."""
        limit = min(self._target, self._granted)
        if self.in_flight >= limit:
            return None
        free = [slot for slot in self._free if slot.number < limit]
        clean = [slot for slot in free if slot.unanswered is None]
        if not clean and len(self._slots) < limit:
            made = _Slot(len(self._slots))
            self._slots.append(made)
            return made
        if not free:
            return None
        slot = min(clean or free, key=lambda one: one.number)
        self._free.remove(slot)
        return slot

    def _give_back(self, slot: _Slot) -> None:
        self._free.append(slot)
        while self._waiters:
            if self._waiters[0].done():
                self._waiters.popleft()
                continue
            following = self._next_free()
            if following is None:
                return
            self._waiters.popleft().set_result(following)

    @property
    def _highest(self) -> int:
        """csa_highest_slotid: the highest slot with a request outstanding."""
        free = set(self._free)
        return max((slot.number for slot in self._slots if slot not in free), default=0)

    # -- sending -------------------------------------------------------------------------------------------------
    async def _run(self, request: _Request) -> CompoundReply:
        while True:
            slot = await self._take()
            try:
                if slot.unanswered is not None:
                    await self._settle(slot)
                reply = await self._exchange(slot, request)
                return CompoundReply(reply.status, reply.results[1:], reply.numbers[1:])
            except _SlotGone:
                continue
            finally:
                self._give_back(slot)

    async def _settle(self, slot: _Slot) -> None:
        """Send again what was never answered: only then is it known where the client's sequence stands."""
        older = slot.unanswered
        assert older is not None
        older.abandoned, older.settling = False, True
        try:
            await self._exchange(slot, older)
        except CallbackError:
            if slot.unanswered is not None or not self._channel.usable:
                raise

    async def _exchange(self, slot: _Slot, request: _Request) -> CompoundReply:
        """One request on a slot, until it is answered. Raises CallbackError."""
        backoff = _BACKOFF
        while True:
            connection = await self._connection(request)
            message, read = self._message(slot, request)
            if len(message) > min(connection.max_backchannel_size, self.session.back.maxrequestsize):
                raise CallbackError("too_big", f"a callback of {len(message)} octets")
            slot.unanswered = request
            try:
                reply = await self._send(request, connection, message)
                return self._judge(slot, request, partial(read, reply), connection)
            except ConnectionError:
                # It carries nothing any more, though it may not be closed (an RDMA_ERROR for our call).
                self._channel.suspect(connection)
            except _Again as again:
                if request.settling and slot.unanswered is None:
                    raise CallbackError("timeout", "executed, and the answer is lost") from None
                if not again.delay:
                    continue
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
            if request.abandoned:
                raise CallbackError("timeout", "the client has not answered in time")

    async def _connection(self, request: _Request) -> Transport:
        """A connection that is believed to work, else any; waits for one to be bound."""
        while True:
            bound = [one for one in cast("list[Transport]", self._channel.connections) if not one.closed]
            if bound:
                silent = self._channel.silent
                return next((one for one in bound if one not in silent), bound[0])
            if request.abandoned or self.session.client.expired or self._elsewhere():
                # Another session can carry the operations anew. The request stays on its slot, to be sent again over
                # this session when there is a connection (SEQ4_STATUS_CB_PATH_DOWN_SESSION asks the client for one).
                raise CallbackError("path_down", "no connection is bound to the backchannel")
            self._bound.clear()
            await self._bound.wait()

    def _elsewhere(self) -> bool:
        """Whether another session of the client has a backchannel that works."""
        sessions = self.session.client.sessions.values()
        return any(one.backchannel.usable for one in sessions if one is not self.session)

    async def _send(self, request: _Request, connection: Transport, message: bytes) -> memoryview:
        """Send over one connection. Raises ConnectionError, also when another connection should be tried."""
        silent = self._channel.silent
        request.sending = True
        sending = asyncio.ensure_future(connection.call_back(message))
        try:
            while True:
                done, _ = await asyncio.wait({sending}, timeout=PATIENCE)
                if done:
                    reply = sending.result()
                    silent.discard(connection)
                    return reply
                self._channel.suspect(connection)
                if any(one not in silent for one in self._channel.connections):
                    raise ConnectionError("silent, and there is another connection")
        except ValueError as error:
            raise CallbackError("too_big", str(error)) from None
        finally:
            request.sending = False
            sending.cancel()

    def _message(self, slot: _Slot, request: _Request) -> tuple[bytes, Results]:
        """The whole call, and what reads the reply. Raises CallbackError."""
        channel = self._channel
        arguments = p.CB_SEQUENCE4args(
            csa_sessionid=self.session.sessionid,
            csa_sequenceid=(slot.seqid + 1) & UINT32_MAX,
            csa_slotid=slot.number,
            csa_highest_slotid=self._highest,
            # Linux keeps no callback replies, and says so with an error; every callback we send may be executed twice.
            csa_cachethis=False,
            csa_referring_call_lists=request.referring,
        )
        sequence = encoded([(p.OP_CB_SEQUENCE, arguments)])
        whole = compound_arguments(
            minor=self.session.minor, ident=0, count=request.count + 1, operations=(sequence, request.octets)
        )
        credential, xid = channel.credentials[0], self._next_xid()
        if credential.turned is None:
            return whole_call(xid, channel.program, p.CB_COMPOUND, credential, whole), accepted
        if credential.turned.lapsed:
            channel.lapsed = True
            raise CallbackError("path_down", "the security context of callbacks is gone")
        message, results = credential.turned.message(xid, channel.program, p.CB_COMPOUND, whole)
        return message, results

    # -- what the client says ------------------------------------------------------------------------------------
    def _judge(
        self, slot: _Slot, request: _Request, read: Callable[[], Decoder], connection: Transport
    ) -> CompoundReply:
        """Take a reply: the slot's state follows CB_SEQUENCE's result. Raises _Again, CallbackError."""
        try:
            answer = compound_results(read(), request.count + 1)
        except CallbackError as error:
            if error.reason == "garbage":
                self._channel.fault = True  # executed or not, nobody knows
            else:
                slot.unanswered = None  # the RPC was refused: no operation has seen it
                self._channel.suspect(connection)
            raise
        if not answer.numbers or answer.numbers[0] != p.OP_CB_SEQUENCE:
            slot.unanswered = None
            raise CallbackError("refused", f"CB_COMPOUND failed as a whole: {p.nfsstat4(answer.status).name}")
        sequence: p.CB_SEQUENCE4res = answer.results[0]
        if sequence.csr_resok4 is not None:
            self._accepted(slot, sequence.csr_resok4)
            if answer.status == p.NFS4ERR_RETRY_UNCACHED_REP:
                raise _Again  # executed, and the answer is lost: ask once more, as a new request
            return answer
        self._refused(slot, int(sequence.csr_status), connection)
        raise CallbackError("refused", f"CB_SEQUENCE failed: {sequence.csr_status.name}")

    def _accepted(self, slot: _Slot, resok: p.CB_SEQUENCE4resok) -> None:
        slot.seqid = (slot.seqid + 1) & UINT32_MAX
        slot.unanswered = None
        # At least one slot always stays, whatever the client says.
        self._target = max(1, min(resok.csr_target_highest_slotid, resok.csr_highest_slotid, UINT32_MAX - 1) + 1)

    def _refused(self, slot: _Slot, status: int, connection: Transport) -> None:
        """CB_SEQUENCE has failed, and the client's slot is as it was (section 20.9.3). Raises _Again to go on."""
        if status == p.NFS4ERR_DELAY:
            raise _Again(delay=True)
        if status in (p.NFS4ERR_RETRY_UNCACHED_REP, p.NFS4ERR_SEQ_FALSE_RETRY):
            # The client had this sequence id already.
            slot.seqid = (slot.seqid + 1) & UINT32_MAX
            slot.unanswered = None
            raise _Again
        slot.unanswered = None
        if status == p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION:
            self._channel.unbind(connection)
            raise _Again
        if status in (p.NFS4ERR_BADSLOT, p.NFS4ERR_BAD_HIGH_SLOT) and slot.number:
            # The client has taken back slots; those that are left do.
            self._granted = min(self._granted, slot.number)
            raise _SlotGone
        # Nothing that we can repair: the client must make another session, and is told so by SEQUENCE.
        self._channel.fault = True
