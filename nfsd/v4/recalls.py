"""What the delegations of the state engine need from the outside: recalls sent, returns waited for, attributes asked.

Owns the tasks that do so. An operation that a delegation stands in the way of waits a moment for its return before it
is answered DELAY: most clients answer a recall within milliseconds, and come back after DELAY only much later. Whoever
does not return a delegation in time loses it; the state engine sees to that.

RFC 8881 sections 10.2 to 10.4, 20.1, 20.2, 20.6; RFC 7530 sections 10.2 to 10.4, 16.37. Imports the state engine and
declarations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from nfsd.protocol import nfs4 as p
from nfsd.state import StateEngine
from nfsd.state.clients import Client
from nfsd.state.delegations import Hold
from nfsd.state.errors import DelegationConflict
from nfsd.state.files import FileState
from nfsd.state.records import Delegation
from nfsd.v4.attributes import words_of
from nfsd.v4.callback_messages import CallbackError
from nfsd.v4.callbacks import set_within
from nfsd.v4.delegated_times import Told, asked_of, told_in
from nfsd.v4.notifying import Event, Notifications, referring
from nfsd.vfs.leases import break_time
from nfsd.vfs.records import Node
from nfsd.vfs.store_mounts import is_shared
from rpcrdma.firewall import spawn

log = logging.getLogger(__name__)

PATIENCE: Final = 1.0
"""Seconds an operation waits for a delegation to come back. A Linux client asks again 0.1 s after the first DELAY, and
later each time; after JUKEBOX, 5 s later."""
_GETATTR_PATIENCE: Final = 0.1
_PROBE_PATIENCE: Final = 2.0
"""Seconds the reclaim of a delegation waits for the word on the client's callback path."""
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 2.0
_ANY_DELEGATION: Final = (
    1 << p.RCA4_TYPE_MASK_RDATA_DLG | 1 << p.RCA4_TYPE_MASK_WDATA_DLG | 1 << p.RCA4_TYPE_MASK_DIR_DLG
)


class Caller(Protocol):
    """What sends callbacks (:class:`nfsd.v4.callbacks.CallbackService`)."""

    async def probe(self, client: Client) -> bool:
        """Find out whether callbacks reach the client."""

    def client_can_be_called(self, client: Client) -> bool:
        """Whether callbacks are believed to reach the client."""

    def call(
        self,
        client: Client,
        operations: Sequence[tuple[int, Any]],
        *,
        timeout: float,
        referring: Sequence[p.referring_call_list4] = (),
        wait_for_path: bool = False,
        come: asyncio.Event | None = None,
    ) -> Coroutine[Any, Any, list[Any]]:
        """The results of the operations that ran. Raises CallbackError."""


class Recalls:
    """The outside of the delegation table."""

    def __init__(self, engine: StateEngine, caller: Caller) -> None:
        self.engine = engine
        self.table = engine.delegations
        self.table.on_gone = self._gone
        self.caller = caller
        self.notifications = Notifications(engine, caller, self.recall)
        self.patience = PATIENCE
        self._waiting: dict[bytes, list[asyncio.Future[None]]] = {}
        self._under_recall: dict[Delegation, asyncio.Event] = {}
        """Set when the delegation has gone."""
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stop sending."""
        for task in list(self._tasks):
            task.cancel()
        self.notifications.close()

    def can_delegate(self, client: Client) -> bool:
        """Whether a delegation of the client could be recalled."""
        return self.caller.client_can_be_called(client)

    async def learn_whether_to_delegate(self, client: Client) -> bool:
        """As ``can_delegate``, found out if it is not known: a 4.0 client reclaims right behind SETCLIENTID_CONFIRM,
        when the CB_NULL that this had sent is still under way."""
        if not self.can_delegate(client):
            probe = asyncio.ensure_future(self.caller.probe(client))
            await asyncio.ensure_future(asyncio.wait([probe], timeout=_PROBE_PATIENCE))
        return self.can_delegate(client)

    def statistics(self) -> dict[str, int]:
        """Delegations held now, and how many were given, recalled, returned and revoked."""
        table = self.table
        return {
            "held": table.count,
            "granted": table.granted,
            "granted_directories": table.granted_directories,
            "reclaimed": table.reclaimed,
            "recalled": table.recalled,
            "returned": table.returned,
            "revoked": table.revoked,
        }

    # -- conflicts -----------------------------------------------------------------------------------------------
    async def clear(self, file_key: bytes, client: Client | None, *, write: bool) -> None:
        """Have the delegations recalled that stand in the way of an operation of ``client`` (None: of a client that
        has none) which reads, or changes, a file. Raises DelegationConflict (NFS4ERR_DELAY) while there are any."""
        await self._clear(file_key, partial(self.table.clear, file_key, client, write=write))

    async def clear_name(self, directory_key: bytes, client: Client | None, kind: p.notify_type4) -> None:
        """As ``clear``, for a change of names in a directory: who is told of such changes keeps the delegation."""

        def spared(delegation: Delegation) -> bool:
            return self.notifications.tells(delegation, kind)

        await self._clear(directory_key, partial(self.table.clear, directory_key, client, write=True, spared=spared))

    async def _clear(self, file_key: bytes, cleared: Callable[[], bool]) -> None:
        if not cleared():
            deadline = self.deadline()
            while not cleared():
                if not await self.progress(file_key, deadline):
                    raise DelegationConflict

    def may_stand(self, directory: Node) -> bool:
        """Whether files of a directory are delegated, or may be before somebody is done with them there."""
        return self.table.count > 0 or (self.table.limit > 0 and not is_shared(directory))

    async def cleared(self, file_key: bytes, *, write: bool) -> bool:
        """As ``clear``, for NFSv3: whether nothing is in the way (any more)."""
        try:
            await self.clear(file_key, None, write=write)
        except DelegationConflict:
            return False
        return True

    def hold(self, file_key: bytes) -> Hold:
        """``with``: nobody is given a delegation of the file meanwhile."""
        return self.table.hold(file_key)

    def deadline(self) -> float:
        """Until when an operation beginning now waits for delegations."""
        return asyncio.get_running_loop().time() + self.patience

    async def progress(self, file_key: bytes, deadline: float) -> bool:
        """Send what is to be sent, and wait until a delegation of the file has gone: false if none did in time."""
        self.send()
        loop = asyncio.get_running_loop()
        left = deadline - loop.time()
        if left <= 0:
            return False
        future: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault(file_key, [])
        waiting.append(future)
        try:
            done, _ = await asyncio.wait((future,), timeout=left)
        finally:
            if future in waiting:
                waiting.remove(future)
                if not waiting:
                    self._waiting.pop(file_key, None)
        return bool(done)

    @staticmethod
    def mark(file: FileState) -> None:
        """Tell the file's record how it is delegated now, for native operations that do not ask here."""
        if file.node is not None:
            given, inode = file.delegations, file.node.inode
            first = next(iter(given.values()), None)
            inode.delegated = 0 if first is None else 2 if first.write else 1  # beside one for writing is no other
            inode.holder = first.client if first is not None and len(given) == 1 else None

    def _gone(self, delegation: Delegation) -> None:
        self.mark(delegation.file)
        self.notifications.forget(delegation)
        if (gone := self._under_recall.get(delegation)) is not None:
            gone.set()
        for future in self._waiting.pop(delegation.file.key, ()):
            if not future.done():
                future.set_result(None)

    # -- recalls -------------------------------------------------------------------------------------------------
    def send(self) -> None:
        """Begin to send the callbacks the table asks for."""
        for delegation in self.table.take_recalls():
            self._start(self._recall(delegation))
        for client, keep in self.table.take_recall_any():
            self._start(self._recall_any(client, keep))

    def broken(self, delegation: Delegation) -> None:
        """A local process wants the file: the kernel lets it go on after a while, whatever the client does."""
        self.table.recall(delegation, break_time())
        self.send()

    def recall(self, delegation: Delegation) -> None:
        """Ask for a delegation back: what it stands for is no longer so, and nobody waits for it."""
        self.table.recall(delegation)
        self.send()

    def changed(self, directory_key: bytes, client: Client | None, event: Event | None) -> None:
        """``client`` (None: one that has no delegation) has changed names in a directory. Others who have it delegated
        are told of that ``event``. A holder that cannot be told, or was given it meanwhile, is recalled; and everybody,
        if it is not known what has become of the change."""
        file = self.engine.opens.file(directory_key)
        others = [one for one in file.delegations.values() if one.client is not client] if file is not None else []
        told = {one for one in others if event is not None and self.notifications.tell(one, event)}
        if not self.table.clear(directory_key, client, write=True, spared=told.__contains__):
            self.send()

    def _start(self, work: Any) -> None:
        spawn(work, self._tasks)

    async def _recall(self, delegation: Delegation) -> None:
        """Send CB_RECALL until the client has taken it, or the delegation is gone. A client that has just sent
        DELEGRETURN knows nothing of the delegation any more (RFC 8881 section 10.4.5), and is not asked again."""
        gone = self._under_recall[delegation] = asyncio.Event()
        try:
            await self._ask_back(delegation, gone)
        finally:
            self._under_recall.pop(delegation, None)

    async def _ask_back(self, delegation: Delegation, gone: asyncio.Event) -> None:
        arguments = p.CB_RECALL4args(stateid=_stateid(delegation), truncate=False, fh=delegation.handle)
        pause = _FIRST_PAUSE
        while self.table.holds(delegation):
            try:
                results = await self.caller.call(
                    delegation.client,
                    [(p.OP_CB_RECALL, arguments)],
                    timeout=self._time_left(delegation),
                    referring=referring(delegation),
                    wait_for_path=True,
                    come=gone,
                )
            except CallbackError as error:
                log.debug("CB_RECALL to %r: %s", delegation.client.owner, error)
            else:
                status = results[-1].status if results else p.NFS4ERR_DELAY
                # The reply that gave the delegation may be under way (RFC 8881 section 2.10.6.3). Or the client is
                # about to return it: Linux says BAD_STATEID from then on, and first sends the opens and locks that it
                # has by the delegation, which must stand for as long as that takes. So nothing is taken from it yet.
                delegation.disclaimed = status in (p.NFS4ERR_BAD_STATEID, p.NFS4ERR_BADHANDLE)
                if status == p.NFS4_OK:
                    return  # it is the client's turn now, and the timer's
            if await set_within(gone, pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _time_left(self, delegation: Delegation) -> float:
        by = delegation.recall_by
        left = max(1.0, (by if by is not None else 0.0) - self.engine.now())
        # A 4.0 client learns from RENEW that its path is down, while there is time: find out soon.
        return left if delegation.client.minor else min(left, self.engine.limits.lease / 6)

    async def _recall_any(self, client: Client, keep: int) -> None:
        arguments = p.CB_RECALL_ANY4args(craa_objects_to_keep=keep, craa_type_mask=[_ANY_DELEGATION])
        try:
            await self.caller.call(client, [(p.OP_CB_RECALL_ANY, arguments)], timeout=self.engine.limits.lease)
        except CallbackError as error:
            log.debug("CB_RECALL_ANY to %r: %s", client.owner, error)

    # -- attributes ----------------------------------------------------------------------------------------------
    async def ask_attributes(self, delegation: Delegation) -> Told | None:
        """CB_GETATTR: what the holder of a write delegation says, or None if it does not."""
        wanted = words_of(asked_of(delegation))
        arguments = p.CB_GETATTR4args(fh=delegation.handle, attr_request=wanted)
        asking = self.caller.call(
            delegation.client,
            [(p.OP_CB_GETATTR, arguments)],
            timeout=_GETATTR_PATIENCE,
            referring=referring(delegation),
        )
        try:
            # A task, which the operation need not be, and which its deadline needs.
            results = await asyncio.get_running_loop().create_task(asking)
        except CallbackError as error:
            log.debug("CB_GETATTR to %r: %s", delegation.client.owner, error)
            return None
        if not results or results[-1].status != p.NFS4_OK:
            return None
        return told_in(results[-1].resok4.obj_attributes)


def _stateid(delegation: Delegation) -> p.stateid4:
    return p.stateid4(seqid=delegation.seqid, other=delegation.other)
