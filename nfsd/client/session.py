"""One client's session with an NFSv4.1 server: requests on slots, in order, executed once, whatever becomes of
connections.

Owns :class:`Session`, which is given the operations of a COMPOUND and returns their results; imports the slots, the
calls and the protocol. Establishing and recovering a session is :mod:`nfsd.client.recovery`.

Operation. ``run`` takes a slot, puts SEQUENCE in front and sends. Its caller passes a function that builds the
operations, because stateids change in a recovery, and the operations must then be built again.

Errors. The connection below sends unanswered calls again after it was lost. The slot's replay cache makes that safe.
If the server has forgotten the session, the client makes another, reclaims its opens, and starts the work again. It
waits if the server asks it to (DELAY, GRACE). All other statuses go to the caller, as OSError.

Cancellation. If the caller stops waiting, the request stays on its slot until it is answered, because only then is the
slot's sequence id known.

RFC 8881 sections 2.10.6, 8.4, 18.46.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from nfsd.client import compound
from nfsd.client.compound import Compound, Op
from nfsd.client.errors import os_error
from nfsd.client.opens import Opens
from nfsd.client.rpc import Caller, Patience, VersionRefused
from nfsd.client.slots import Slot, SlotTable
from nfsd.protocol import nfs4 as p
from rpcrdma.xdr import Encoder, XdrError

_log = logging.getLogger(__name__)

OVERHEAD: Final = 2048
"""Octets of a COMPOUND's reply besides data, names and long texts: more than any result here."""
_STATE_ERRORS: Final = frozenset(
    (p.NFS4ERR_BAD_STATEID, p.NFS4ERR_STALE_STATEID, p.NFS4ERR_EXPIRED, p.NFS4ERR_ADMIN_REVOKED,
     p.NFS4ERR_DELEG_REVOKED, p.NFS4ERR_STALE_CLIENTID)
)  # fmt: skip
"""The server has forgotten what we opened."""
_MOST_RECOVERIES: Final = 4
"""In the course of one operation; a server that loses the session over and over is not worth more."""
_RECLAIM_NEEDED: Final = p.SEQ4_STATUS_RESTART_RECLAIM_NEEDED | p.SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED
_PATH_DOWN: Final = p.SEQ4_STATUS_CB_PATH_DOWN | p.SEQ4_STATUS_CB_PATH_DOWN_SESSION

_MOST_REPLAYED: Final = 1024

Build = Callable[[], Sequence[Op]]


class SessionLost(Exception):
    """The server does not know the session, or its slots do not fit ours: another one is needed."""


class Session:
    """A session, whatever number of sessions the server knew it by."""

    def __init__(self, caller: Caller, patience: Patience) -> None:
        self.caller = caller
        self.patience = patience
        self.opens = Opens()
        self.sessionid = b""
        self.slots = SlotTable(1)
        self.epoch = 0
        """Recoveries so far, the first session being one."""
        self.recover: Callable[..., Any] = self._no_recovery
        """Replaces the session of an epoch, or only what is open in it; set by :mod:`nfsd.client.recovery`."""
        self.on_path_down: Callable[[], None] = lambda: None
        """Called when the server cannot reach the client with callbacks."""
        self.stale = False
        """The server has said that it has lost state of ours."""
        self.last_used = 0.0
        self.requests = 0
        """Requests that the server has accepted, in all sessions."""
        self._exchanges: set[asyncio.Task[Compound]] = set()

    async def _no_recovery(self, epoch: int, *, session: bool = True) -> None:
        raise SessionLost

    # -- work --------------------------------------------------------------------------------------------------------
    async def run(
        self, build: Build, *, cache: bool = False, into: memoryview | None = None, reply_max: int = OVERHEAD,
        allow: frozenset[int] = frozenset(), recovering: bool = False,
    ) -> Compound:  # fmt: skip
        """Have a COMPOUND executed; the results without SEQUENCE's. ``cache``: the server keeps the reply, which
        whatever cannot be done twice needs. ``into``: where READ's data go. ``reply_max``: octets that the reply may
        have besides those. ``allow``: statuses that are the caller's business. Raises OSError; ConnectionError among
        them."""
        patience = self.patience.start()
        recoveries = 0
        while True:
            epoch = self.epoch
            try:
                if self.stale and not recovering:
                    raise SessionLost
                done = await self._once(build, cache, into, reply_max)
            except SessionLost:
                if recovering:
                    raise
                recoveries += 1
                if recoveries > _MOST_RECOVERIES:
                    raise OSError(errno.EREMOTEIO, "the server forgets the session again and again") from None
                await self.recover(epoch)
                continue
            if done.status == p.NFS4_OK or done.status in allow:
                return done
            if done.status in (p.NFS4ERR_DELAY, p.NFS4ERR_GRACE):
                why = "in its grace period after a restart" if done.status == p.NFS4ERR_GRACE else "busy (DELAY)"
                if await patience.wait(f"the server is {why}"):
                    continue
            elif done.status in _STATE_ERRORS and not recovering and recoveries < _MOST_RECOVERIES:
                recoveries += 1
                await self.recover(epoch, session=False)
                continue
            raise os_error(done.status, 4)

    async def _once(self, build: Build, cache: bool, into: memoryview | None, reply_max: int) -> Compound:
        while True:
            slots = self.slots
            slot = await slots.acquire()
            if slots is self.slots:
                break
            slots.release(slot)
        try:
            operations = build()
        except BaseException:
            slots.release(slot)
            raise
        if into is not None:
            return await self._into(slots, slot, operations, into, reply_max)
        return await asyncio.shield(self._task(slots, slot, operations, cache, reply_max))

    def _task(
        self, slots: SlotTable, slot: Slot, operations: Sequence[Op], cache: bool, reply_max: int
    ) -> asyncio.Task[Compound]:
        """An exchange that goes on whoever stops waiting for it."""

        async def exchange() -> Compound:
            try:
                return await self._exchange(slots, slot, sessionid, operations, cache, None, reply_max)
            finally:
                slots.release(slot)

        sessionid = self.sessionid
        task = asyncio.create_task(exchange())
        self._exchanges.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Compound]) -> None:
        self._exchanges.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, should nobody wait for it any more

    async def _into(
        self, slots: SlotTable, slot: Slot, operations: Sequence[Op], into: memoryview, reply_max: int
    ) -> Compound:
        """As ``_exchange``, for a call that is given memory: it ends with its caller, whose memory it is again.
        Whether the server has seen the request is then asked by a SEQUENCE in its place (RFC 8881 section
        2.10.6.1.3): it is executed, or taken for a retry, and either way the slot's next sequence id is known."""
        try:
            done = await self._exchange(slots, slot, self.sessionid, operations, False, into, reply_max)
        except asyncio.CancelledError:
            self._task(slots, slot, (), False, OVERHEAD + _MOST_REPLAYED)
            raise
        except BaseException:
            slots.release(slot)
            raise
        slots.release(slot)
        return done

    async def _exchange(
        self, slots: SlotTable, slot: Slot, sessionid: bytes, operations: Sequence[Op], cache: bool,
        into: memoryview | None, reply_max: int,
    ) -> Compound:  # fmt: skip
        patience = self.patience.start()
        try:
            while True:
                sequence = p.SEQUENCE4args(sessionid, slot.seqid + 1 & 0xFFFFFFFF, slot.number, slots.highest, cache)
                whole = await self.send([(p.OP_SEQUENCE, sequence), *operations], into, reply_max)
                if not whole.results:
                    raise os_error(whole.status, 4)
                made: p.SEQUENCE4res = whole.results[0]
                if made.sr_resok4 is not None:
                    slot.seqid = slot.seqid + 1 & 0xFFFFFFFF
                    if whole.status == p.NFS4ERR_RETRY_UNCACHED_REP and not cache and operations:
                        # It was executed, its reply is gone, and it may be executed again: with the next sequence id.
                        continue
                    self.requests += 1
                    slots.adjust(made.sr_resok4.sr_highest_slotid, made.sr_resok4.sr_target_highest_slotid)
                    self._note(made.sr_resok4.sr_status_flags)
                    return Compound(whole.status, whole.results[1:], whole.numbers[1:])
                # A SEQUENCE that fails leaves the slot as it was (RFC 8881 section 2.10.6.1.2).
                status = made.sr_status
                if status == p.NFS4ERR_DELAY and await patience.wait("the server is busy (DELAY)"):
                    continue
                if status == p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION:
                    await self.bind()
                    continue
                if status in (p.NFS4ERR_SEQ_FALSE_RETRY, p.NFS4ERR_RETRY_UNCACHED_REP) and not operations:
                    slot.seqid = slot.seqid + 1 & 0xFFFFFFFF
                    return Compound(p.NFS4_OK, [], [])
                if status in (p.NFS4ERR_REP_TOO_BIG, p.NFS4ERR_REQ_TOO_BIG, p.NFS4ERR_REP_TOO_BIG_TO_CACHE,
                              p.NFS4ERR_TOO_MANY_OPS, p.NFS4ERR_DELAY):  # fmt: skip
                    raise os_error(status, 4)
                _log.info("%s: another session is needed", p.nfsstat4(status).name)
                raise SessionLost
        except ConnectionError:
            # What became of the request is not known: nothing else may be sent on this slot.
            if slots is self.slots:
                self.stale = True
            raise

    async def send(
        self, operations: Sequence[Op], into: memoryview | None = None, reply_max: int = OVERHEAD
    ) -> Compound:
        """One COMPOUND as it is, without a slot (for the operations that make sessions) or with its SEQUENCE."""
        encoder = Encoder(self.caller.limit)
        compound.encode(encoder, operations)
        decoder = await self.caller.exchange(
            p.NFS4_PROGRAM, p.NFS_V4, p.NFSPROC4_COMPOUND, encoder, into=into, reply_max=reply_max
        )
        self.last_used = asyncio.get_running_loop().time()
        try:
            whole = compound.decode(decoder, operations)
        except XdrError as error:
            raise OSError(errno.EREMOTEIO, f"the server's results do not decode: {error}") from error
        if whole.status == p.NFS4ERR_MINOR_VERS_MISMATCH:
            raise VersionRefused((4, 4))
        return whole

    def _note(self, flags: int) -> None:
        """What SEQUENCE says by the way (RFC 8881 section 18.46.3)."""
        if flags & _RECLAIM_NEEDED and self.opens:
            self.stale = True
        if flags & _PATH_DOWN:
            self.on_path_down()

    async def bind(self) -> None:
        """Bind the connection to the session, for callbacks too (RFC 8881 section 18.34)."""
        arguments = p.BIND_CONN_TO_SESSION4args(self.sessionid, p.channel_dir_from_client4.CDFC4_FORE_OR_BOTH, False)
        done = await self.send([(p.OP_BIND_CONN_TO_SESSION, arguments)])
        if done.status in (p.NFS4ERR_BADSESSION, p.NFS4ERR_DEADSESSION):
            raise SessionLost
        if done.status:
            raise os_error(done.status, 4)

    async def settled(self) -> None:
        """Wait for requests that nobody waits for any more."""
        while self._exchanges:
            await asyncio.wait(self._exchanges)
