"""Telling the holder of a directory's delegation what others change there, in place of a recall (CB_NOTIFY).

Owns :class:`Notifications`: which delegations have been promised it, and what each holder has yet to be told. RFC 8881
sections 10.9, 18.39 and 20.4. There a notification says where in the directory an entry stands: its cookie, and the
entry before it. A local file system tells neither without a listing. So only those are told who ask for notifications
without that (NOTIFY4_GFLAG_EXTEND and no NOTIFY4_CFLAG_ORDER, draft-ietf-nfsv4-rfc8881bis section 16.2.13), as by
Linux's server. Everybody else's delegation is recalled.

A change does not wait for the notification. But changes of one directory take turns, so that they are told in their
order. Each holder has a queue, whose octets are on its host's account. If it is full, or a notification is not taken,
the delegation is recalled. Imports the state engine and declarations.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from nfsd.protocol import nfs4 as p
from nfsd.state import StateEngine
from nfsd.state.records import Delegation
from nfsd.v4.callback_messages import CallbackError
from rpcrdma.firewall import spawn
from rpcrdma.xdr import pack

if TYPE_CHECKING:
    from nfsd.v4.recalls import Caller

log = logging.getLogger(__name__)

GFLAG_EXTEND: Final = 6
CFLAG_ORDER: Final = 12
"""Bits beside those of notify_type4: the client knows the draft; it wants to know the order of entries."""
ADD: Final = p.notify_type4.NOTIFY4_ADD_ENTRY
REMOVE: Final = p.notify_type4.NOTIFY4_REMOVE_ENTRY
RENAME: Final = p.notify_type4.NOTIFY4_RENAME_ENTRY
_GIVEN: Final = 1 << ADD | 1 << REMOVE | 1 << RENAME
WAITING: Final = 64
"""Notifications that may wait for one delegation."""
_AT_ONCE: Final = 2048
"""Octets of them in one callback, unless one is longer: backchannels usually take a page."""
_COST: Final = 300
"""Octets that one takes here beside its names."""


class Event(NamedTuple):
    """A change of a directory, as its holders are told of it."""

    kind: p.notify_type4
    told: p.notify4

    @property
    def octets(self) -> int:
        """What it takes to remember it."""
        return _COST + len(self.told.notify_vals)


def _entry(name: bytes) -> p.notify_entry4:
    return p.notify_entry4(name, p.fattr4([], b""))


def _removal(name: bytes) -> p.notify_remove4:
    return p.notify_remove4(_entry(name), 0)


def _addition(name: bytes, *, over: bool) -> p.notify_add4:
    return p.notify_add4([_removal(name)] if over else [], _entry(name), [], [], False)


def _event(kind: p.notify_type4, value: object) -> Event:
    return Event(kind, p.notify4([1 << kind], pack(type(value), value)))


def added(name: bytes, *, over: bool = False) -> Event:
    """A new name; ``over``: it was another file's."""
    return _event(ADD, _addition(name, over=over))


def removed(name: bytes) -> Event:
    """A name that has gone."""
    return _event(REMOVE, _removal(name))


def renamed(old: bytes, new: bytes, *, over: bool) -> Event:
    """A name that has become another one of the same directory; ``over``: that was another file's."""
    return _event(RENAME, p.notify_rename4(_removal(old), _addition(new, over=over)))


class _Queue:
    """What one holder is told of."""

    __slots__ = ("promised", "sending", "waiting")

    def __init__(self, promised: int) -> None:
        self.promised = promised
        self.waiting: deque[Event] = deque()
        self.sending = False


class Notifications:
    """All of them. ``recall``: asks for a delegation back."""

    def __init__(self, engine: StateEngine, caller: Caller, recall: Callable[[Delegation], None]) -> None:
        self._engine, self._caller, self._recall = engine, caller, recall
        self._queues: dict[Delegation, _Queue] = {}
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stop sending."""
        for task in list(self._tasks):
            task.cancel()

    def promise(self, delegation: Delegation, asked: int) -> int:
        """The notifications that the holder of a new delegation will get of those it ``asked`` for, as a mask."""
        promised = asked & _GIVEN
        if not promised or not asked >> GFLAG_EXTEND & 1 or asked >> CFLAG_ORDER & 1:
            return 0
        self._queues[delegation] = _Queue(promised)
        return promised | 1 << GFLAG_EXTEND

    async def turn(self, directory_key: bytes, hold: ExitStack) -> None:
        """Wait until no other change of a directory has yet to be told, and have the turn until ``hold`` is closed."""
        lock = self._turns.get(directory_key) or asyncio.Lock()
        self._turns[directory_key] = lock
        await lock.acquire()
        hold.callback(lock.release)

    def tells(self, delegation: Delegation, kind: p.notify_type4) -> bool:
        """Whether the holder will be told of such a change, so that it need not give the delegation back first."""
        queue = self._queues.get(delegation)
        client = delegation.client
        return (
            queue is not None
            and bool(queue.promised >> kind & 1)
            and delegation.recall_by is None
            and not client.courtesy
            and self._caller.client_can_be_called(client)
        )

    def tell(self, delegation: Delegation, event: Event) -> bool:
        """Tell the holder of a change that has been made. False: it cannot be told, and has to be recalled."""
        if not self.tells(delegation, event.kind):
            return False
        queue, account = self._queues[delegation], delegation.client.account
        if len(queue.waiting) >= WAITING or not self._engine.ledger.fits(account, event.octets):
            return False
        account.charge(event.octets)
        queue.waiting.append(event)
        if not queue.sending:
            queue.sending = True
            spawn(self._send(delegation, queue), self._tasks)
        return True

    def forget(self, delegation: Delegation) -> None:
        """The delegation has gone, or is recalled."""
        queue = self._queues.pop(delegation, None)
        if queue is not None:
            for event in queue.waiting:
                delegation.client.account.charge(-event.octets)
            queue.waiting.clear()

    async def _send(self, delegation: Delegation, queue: _Queue) -> None:
        """Send what waits, in its order. What is under way stays in the queue until it has been taken."""
        while queue.waiting:
            batch = self._next(queue)
            if not await self._taken(delegation, batch):
                if delegation in self._queues:
                    self.forget(delegation)
                    self._recall(delegation)
                return
            for event in batch:
                if queue.waiting:  # otherwise it was forgotten meanwhile
                    queue.waiting.popleft()
                    delegation.client.account.charge(-event.octets)
        queue.sending = False

    @staticmethod
    def _next(queue: _Queue) -> list[Event]:
        batch: list[Event] = []
        octets = 0
        for event in queue.waiting:
            octets += len(event.told.notify_vals)
            if batch and octets > _AT_ONCE:
                break
            batch.append(event)
        return batch

    async def _taken(self, delegation: Delegation, batch: list[Event]) -> bool:
        stateid = p.stateid4(delegation.seqid, delegation.other)
        arguments = p.CB_NOTIFY4args(stateid, delegation.handle, [event.told for event in batch])
        try:
            results = await self._caller.call(
                delegation.client,
                [(p.OP_CB_NOTIFY, arguments)],
                timeout=self._engine.limits.lease,
                referring=referring(delegation),
            )
        except CallbackError as error:
            log.debug("CB_NOTIFY to %r: %s", delegation.client.owner, error)
            return False
        return bool(results) and results[-1].cnr_status == p.NFS4_OK


def referring(delegation: Delegation) -> list[p.referring_call_list4]:
    """The call that gave the delegation: a client that has not seen its reply waits for it (RFC 8881 section
    2.10.6.3)."""
    if delegation.referring is None:
        return []
    sessionid, slotid, sequenceid = delegation.referring
    call = p.referring_call4(rc_sequenceid=sequenceid, rc_slotid=slotid)
    return [p.referring_call_list4(rcl_sessionid=sessionid, rcl_referring_calls=[call])]
