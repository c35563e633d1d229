"""Copies at work: pieces by turns, and for asynchronous ones CB_OFFLOAD (RFC 7862 sections 4.4, 4.8 and 16.1).

Owns one task for each asynchronous copy under way or not yet acknowledged; the engine owns their stateids and bounds.

Operation. A copy goes piece by piece. The copies into one export share half of its workers, and clients take turns at
them however many copies each has, so that copies hold up neither each other nor anything else. A task has descriptors
of its own: closing the files, or losing the stateids it began with, does not end it; OFFLOAD_CANCEL and the end of the
client do. When it is over, its result is kept, and told in CB_OFFLOAD until the client has answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from nfsd.pricing import host_of_any
from nfsd.protocol import nfs4 as p
from nfsd.state.clients import Client
from nfsd.state.copies import CopyState
from nfsd.v4.callbacks import CallbackError
from nfsd.v4.errors import status_of
from nfsd.vfs.copying import RangeCopy
from nfsd.vfs.open_accounts import held_by, let_by
from rpcrdma.firewall import spawn
from rpcrdma.log_limits import limited_logger

if TYPE_CHECKING:
    from nfsd.v4.server import Nfs4Server

log = limited_logger(__name__)

_PATIENCE = 30.0
"""Seconds for one attempt at CB_OFFLOAD: the client may have to connect again first."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
"""Seconds before CB_OFFLOAD is sent again, the first time and at most."""


class Turns:
    """So many at a time; whoever waits takes turns, however much each has waiting."""

    __slots__ = ("_count", "_free", "_last", "_limit", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}
        self._last: dict[object, int] = {}
        """The number of the latest turn each has had, until nobody wants one."""
        self._count = 0

    async def take(self, who: object) -> None:
        """Wait for a turn; to be given back with :meth:`give`."""
        if self._free:
            self._free -= 1
            self._had(who)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """The turn is over: it goes to the one who has not had one for longest."""
        while self._waiting:
            who = min(self._waiting, key=lambda one: self._last.get(one, 0))
            queue = self._waiting[who]
            turn = queue.popleft()
            if not queue:
                del self._waiting[who]
            if not turn.done():
                self._had(who)
                turn.set_result(None)
                return
        self._free += 1
        if self._free == self._limit:
            self._last.clear()

    def _had(self, who: object) -> None:
        self._count += 1
        self._last[who] = self._count


@dataclass(slots=True)
class Counters:
    """What has become of asynchronous copies."""

    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    """By the client, or with it."""
    octets: int = 0
    callbacks: int = 0
    """CB_OFFLOAD sent, repetitions included."""
    acknowledged: int = 0


class _Waiting:
    """A copy that waits for its client's pace."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    def go_on(self) -> None:
        """The client may do more again."""
        self.may_go_on.set()


@dataclass(eq=False, slots=True)
class Copy:
    """One copy at work."""

    state: CopyState
    work: RangeCopy
    asked_by: p.referring_call_list4
    handle: bytes
    """The target's, as the client gave it."""
    verifier: bytes
    """The write verifier when it began: if it changes before COMMIT, something may have been lost."""
    held: ExitStack
    """The open files, and that the target is delegated to nobody, until the copy is over."""
    replied: asyncio.Event = field(default_factory=asyncio.Event)
    """The reply to COPY is on its way."""


class Copies:
    """All asynchronous copies of a server."""

    def __init__(self, server: Nfs4Server) -> None:
        self._server = server
        self._turns: dict[int, Turns] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counters = Counters()

    def begin(
        self,
        client: Client,
        principal: str,
        asked_by: p.referring_call_list4,
        handle: bytes,
        work: RangeCopy,
        verifier: bytes,
    ) -> Copy | None:
        """Start a copy, with counts of its own of the open files; None when there are as many as there may be, or the
        client cannot be told the end of it. The caller sets ``replied``. ``asked_by``: the request that COPY is in."""
        if not self._server.callbacks.client_can_be_called(client):
            return None
        state = self._server.engine.copies.begin(client, work.target.node.key, principal)
        if state is None:
            return None
        held = ExitStack()
        host = client.account.address
        for opened in (work.source, work.target):
            held.callback(let_by, held_by(opened, host), host)
        # The client may close the target while the copy writes to it; then others could be told that nobody does.
        held.enter_context(self._server.recalls.hold(work.target.node.key))
        copy = Copy(state, work, asked_by, handle, verifier, held)
        task = state.job = spawn(self._run(copy), self._tasks)
        task.add_done_callback(lambda _: self._over(copy))
        self.counters.started += 1
        return copy

    async def at_once(self, client: Client, work: RangeCopy) -> None:
        """Copy for about a second, in turns as all copies. Raises OSError when nothing could be copied."""
        await self._server.service.copy_for_a_while(work, lambda: self._step(client, work))

    async def cancel(self, state: CopyState) -> None:
        """Stop a copy and forget it; nothing is written any more when this returns."""
        task = state.job
        self._server.engine.copies.release(state)
        if isinstance(task, asyncio.Task) and not task.done():
            await asyncio.wait([task])

    def in_flight(self) -> list[str]:
        """A line about each asynchronous copy."""
        return [
            f"copy {state.other.hex()} of client {state.client.clientid:016x}: {state.copied} octets"
            + ("" if state.result is None else ", over; the client has not answered yet")
            for state in self._server.engine.copies.all()
        ]

    def statistics(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self.counters)

    async def close(self) -> None:
        """Stop all of them; their clients will find their stateids unknown."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # -- the task ------------------------------------------------------------------------------------------------
    async def _run(self, copy: Copy) -> None:
        await self._copy(copy)
        await copy.replied.wait()
        await self._report(copy)
        state = copy.state
        state.job = None
        self._server.engine.copies.release(state)

    def _over(self, copy: Copy) -> None:
        """The task has ended, one way or another; even one that was cancelled before it began."""
        if copy.state.result is None:
            self.counters.cancelled += 1
        copy.held.close()

    async def _copy(self, copy: Copy) -> None:
        """Copy everything, and put the result in the state."""
        state, work = copy.state, copy.work
        try:
            more = True
            while more:
                await self._allowed(state.client)
                try:
                    more = await self._step(state.client, work)
                finally:
                    self._charge(state.client, work, work.done - state.copied)
                    self.counters.octets += work.done - state.copied
                    state.copied = work.done
            status: int = p.NFS4_OK
        except OSError as error:
            # As after any write that got so far: the client learns how far, and meets the error when it goes on.
            status = p.NFS4_OK if work.done else status_of(error)
        except Exception:
            log.exception("a copy of client %x failed", state.client.clientid)
            status = p.NFS4ERR_SERVERFAULT
        state.result = status
        copy.held.close()
        if status == p.NFS4_OK:
            self.counters.completed += 1
        else:
            self.counters.failed += 1

    async def _allowed(self, client: Client) -> None:
        """Wait while the client's host goes faster than it may, in a row with its connections."""
        paces = self._server.exports.prices.paces
        pace = paces.known(host_of_any(client.host.removesuffix("!")))
        if pace is not None and pace.limited and pace.is_over():
            waiting = _Waiting()
            pace.wait(waiting)
            try:
                await waiting.may_go_on.wait()
            finally:
                pace.leave(waiting)

    def _charge(self, client: Client, work: RangeCopy, octets: int) -> None:
        """Charge a piece to the client's rates and to those of the exports."""
        exports, address = self._server.exports, client.host.removesuffix("!")
        exports.moved(work.source.node.export, address, read=octets)
        exports.moved(work.target.node.export, address, written=octets)

    async def _step(self, client: Client, work: RangeCopy) -> bool:
        node = work.target.node
        turns = self._turns.get(node.mount.lane)
        if turns is None:
            turns = self._turns[node.mount.lane] = Turns(max(1, node.export.workers // 2))
        await turns.take(client)
        try:
            return await work.step()
        finally:
            turns.give()

    async def _report(self, copy: Copy) -> None:
        """Send CB_OFFLOAD until it is answered."""
        state = copy.state
        assert state.result is not None
        if state.result == p.NFS4_OK:
            # RFC 7862 section 16.1.3: wr_callback_id MUST NOT be set.
            done = p.write_response4(
                wr_callback_id=[],
                wr_count=state.copied,
                wr_committed=p.stable_how4.UNSTABLE4,
                wr_writeverf=copy.verifier,
            )
            info = p.offload_info4(p.nfsstat4.NFS4_OK, coa_resok4=done)
        else:
            info = p.offload_info4(p.nfsstat4(state.result), coa_bytes_copied=state.copied)
        stateid = p.stateid4(*state.stateid)
        args = p.CB_OFFLOAD4args(coa_fh=copy.handle, coa_stateid=stateid, coa_offload_info=info)
        pause = _FIRST_PAUSE
        while not await self._tell(state.client, copy, args):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _tell(self, client: Client, copy: Copy, args: p.CB_OFFLOAD4args) -> bool:
        """Send CB_OFFLOAD once. Returns whether the client has answered for good: any error but DELAY ends it too (RFC
        7862 section 4.8: "the client replies")."""
        self.counters.callbacks += 1
        try:
            [result] = await self._server.callbacks.call(
                client, [(p.OP_CB_OFFLOAD, args)], timeout=_PATIENCE, referring=[copy.asked_by], wait_for_path=True
            )
        except CallbackError:
            return False
        if result.cor_status == p.NFS4ERR_DELAY:
            return False
        self.counters.acknowledged += 1
        return True
