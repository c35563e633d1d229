"""Byte-range locks.

Offsets are 64-bit, a length of 2**64-1 reaches to the end of the file. What must be held towards local processes is the
union of all owners' ranges; the layer above sets and clears it, under the file's gate, as told here. A new lock is
made in two steps, because a local process may be in the way: a plan reserves the file's lock table, ``commit`` grants.
Clearing cannot fail: what became free is noted as dirty and told by ``local_clears`` as far as it is still free then.

RFC 8881 sections 9.1 to 9.6, 18.10 to 18.12; RFC 7530 sections 9.3, 9.4, 16.10 to 16.12, 16.37.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import LOCK, LOCK_OWNER, LOCK_STATE
from nfsd.state.errors import LockDenied, Nfs4Error
from nfsd.state.owners import SEQID_KEEPING, LockOwner
from nfsd.state.ranges import END, FileLocks
from nfsd.state.records import LockState, OpenState
from nfsd.state.types import UINT32_MAX, UINT64_MAX, Gone, LocalRange, Stateid
from nfsd.state.waiters import Waiter, WaitTable

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.engine import StateEngine
    from nfsd.state.files import FileState

LOCAL_END = 1 << 63
"""Local offsets are signed: nothing can be held from here on, and what reaches here reaches to the end."""

__all__ = ["LockDenied", "LockOwner", "LockPlan", "LockState", "LockTable", "WaitTable", "Waiter"]


class LockPlan:
    """A lock that conflicts with no NFS client's and is reserved; commit or abort exactly once. As a context manager it
    aborts unless it was committed."""

    __slots__ = (
        "_done", "_table", "end", "exclusive", "handle", "local", "lock_seqid", "open_state", "owner", "start", "state",
        "wait",
    )  # fmt: skip

    def __init__(
        self,
        table: LockTable,
        open_state: OpenState,
        owner: LockOwner,
        state: LockState | None,
        span: tuple[int, int, bool],
    ) -> None:
        self._table = table
        self._done = False
        self.open_state = open_state
        self.owner = owner
        self.state = state
        self.start, self.end, self.exclusive = span
        self.lock_seqid: int | None = None
        """v4.0, open_to_lock_owner4: the lock owner's seqid, used up when the plan ends, however it does."""
        self.local: LocalRange | None = None
        """What to set locally before ``commit``; None when the union holds it already."""
        self.wait = False
        """Whether the client wants to wait for it."""
        self.handle = b""

    def commit(self) -> Stateid:
        """Grant it; returns the lock stateid. Raises EXPIRED, BAD_STATEID when client or open went away meanwhile (its
        local range is then among ``local_clears``)."""
        return self._table.grant(self)

    def abort(self) -> None:
        """It could not be had: nothing has happened. Harmless after ``commit``."""
        self._table.withdraw(self)

    def blocked_locally(self) -> None:
        """A local process is in the way: ``abort``, and a place in the queue for those who want to wait."""
        self._table.withdraw(self)
        self._table.queue_locally(self)

    def take(self) -> bool:
        """Whether this is the first end of the plan (for the table)."""
        done, self._done = self._done, True
        self._table.plans -= not done
        return not done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class LockTable:
    """All byte-range locks."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self.waits = WaitTable(engine)
        self.plans = 0
        """Locks that have been admitted, and are neither granted nor refused yet."""

    # -- LOCK ----------------------------------------------------------------------------------------------------
    def lock_new(
        self,
        open_state: OpenState,
        owner: bytes,
        exclusive: bool,
        offset: int,
        length: int,
        *,
        reclaim: bool,
        wait: bool,
        handle: bytes = b"",
        lock_seqid: int = 0,
    ) -> LockPlan:
        """LOCK with open_to_lock_owner4. ``wait``: READW_LT or WRITEW_LT (a denied one joins the file's queue; to be
        called back under ``handle``). Raises LockDenied, DEADLOCK, INVAL, OPENMODE, GRACE, NO_GRACE,
        RECLAIM_CONFLICT, BAD_SEQID, DELAY, and SERVERFAULT or RESOURCE at limits."""
        client = open_state.client
        if len(owner) > self._engine.limits.owner_octets:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "owner name too long")
        known = client.lock_owners.get(owner)
        last = known.seqid if known is not None and client.minor == 0 else None
        if last is not None and lock_seqid != (last + 1) & UINT32_MAX:
            # RFC 7530 section 16.10.5: a lock owner that exists already stays in its own order.
            raise Nfs4Error(codes.NFS4ERR_BAD_SEQID)
        holder = known if known is not None else LockOwner(client, owner)
        state = open_state.lock_states.get(holder)
        if state is not None and client.minor == 0 and self._holds(state):
            # Section 16.10.5 again: "new" is for those without locking state here. (One that has unlocked everything
            # may begin anew: pynfs and some clients do.)
            raise Nfs4Error(codes.NFS4ERR_BAD_SEQID)
        try:
            plan = self._plan(
                open_state, holder, state, exclusive, offset, length, reclaim=reclaim, wait=wait, handle=handle
            )
        except Nfs4Error as error:
            if known is not None and error.status not in SEQID_KEEPING:
                known.seqid = lock_seqid
            raise
        if client.minor == 0:
            plan.lock_seqid = lock_seqid
        return plan

    def lock(
        self,
        state: LockState,
        exclusive: bool,
        offset: int,
        length: int,
        *,
        reclaim: bool,
        wait: bool,
        handle: bytes = b"",
    ) -> LockPlan:
        """LOCK with exist_lock_owner4. Raises as ``lock_new``."""
        return self._plan(
            state.open_state, state.owner, state, exclusive, offset, length, reclaim=reclaim, wait=wait, handle=handle
        )

    def _plan(
        self,
        open_state: OpenState,
        owner: LockOwner,
        state: LockState | None,
        exclusive: bool,
        offset: int,
        length: int,
        *,
        reclaim: bool,
        wait: bool,
        handle: bytes,
    ) -> LockPlan:
        file, client = open_state.file, open_state.client
        start, end = _span(offset, length)
        self._check_alive(open_state, state)
        if not open_state.owner.confirmed:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "an open not yet confirmed")
        needed = codes.OPEN4_SHARE_ACCESS_WRITE if exclusive else codes.OPEN4_SHARE_ACCESS_READ
        if not open_state.access & needed:
            raise Nfs4Error(codes.NFS4ERR_OPENMODE)
        grace = self._engine.grace
        held = grace.holds_back and self._engine.delegations.covers(client, file.key, write=exclusive)
        grace.check(client, reclaim, held)
        if file.pending_lock is not None:
            raise Nfs4Error(codes.NFS4ERR_DELAY, "another lock on this file is being made")
        self._check_limits(client, owner, state, file, (start, end, exclusive))
        try:
            self._refuse_conflict(file, owner, start, end, exclusive)
        except LockDenied as denied:
            if reclaim:
                raise Nfs4Error(codes.NFS4ERR_RECLAIM_CONFLICT) from denied
            self._denied(file, client, owner.owner, (start, end, exclusive), handle if wait else None)
            raise
        turn = self.waits.reserved(file, client, owner.owner, (start, end, exclusive)) if file.waiters else None
        if turn is not None and not reclaim:
            self._denied(file, client, owner.owner, (start, end, exclusive), handle if wait else None)
            length = UINT64_MAX if turn.end == END else turn.end - turn.start
            raise LockDenied(turn.start, length, turn.exclusive, turn.client.clientid, turn.owner)
        plan = LockPlan(self, open_state, owner, state, (start, end, exclusive))
        plan.wait, plan.handle = wait, handle
        if start < LOCAL_END and not (file.locks and file.locks.covered(start, end, exclusive)):
            plan.local = _local(start, end, exclusive)
        file.pending_lock = plan
        self.plans += 1
        if reclaim:
            self._engine.grace.reclaimed(self._engine.now())
        return plan

    def _denied(
        self, file: FileState, client: Client, owner: bytes, span: tuple[int, int, bool], handle: bytes | None
    ) -> None:
        """Queue a denied request, unless it does not wait (``handle`` None). Raises DEADLOCK when it waits for
        itself."""
        if handle is None:
            self.waits.leave(file, client, owner, span)
            return
        waiter = self.waits.join(file, client, owner, span, handle)
        if waiter is not None and self.waits.deadlocked(waiter):
            self.waits.leave(file, client, owner, span)
            raise Nfs4Error(codes.NFS4ERR_DEADLOCK)

    def queue_locally(self, plan: LockPlan) -> None:
        """See LockPlan.blocked_locally."""
        open_state = plan.open_state
        if plan.wait and open_state in open_state.file.opens and not open_state.client.expired:
            span = plan.start, plan.end, plan.exclusive
            waiter = self.waits.join(open_state.file, open_state.client, plan.owner.owner, span, plan.handle)
            if waiter is not None:
                self.waits.blocked_locally(waiter)

    def _check_limits(
        self, client: Client, owner: LockOwner, state: LockState | None, file: FileState, span: tuple[int, int, bool]
    ) -> None:
        limits = self._engine.limits
        growth = 0
        if client.locks + 2 > limits.locks:  # nothing makes more than two of none
            ranges = file.locks.owners.get(owner) if file.locks else None
            growth = ranges.growth(*span) if ranges is not None else 1
        octets = 2 * LOCK
        if state is None:
            octets += LOCK_STATE + (0 if owner.states else LOCK_OWNER + len(owner.owner))
        if (
            (growth > 0 and client.locks + growth > limits.locks)
            or (state is None and client.lock_states >= limits.lock_states)
            or (not owner.states and len(client.lock_owners) >= limits.lock_owners)
            or not self._engine.ledger.room(client.account, octets)
        ):
            raise self._too_many(client, octets)

    def _too_many(self, client: Client, octets: int) -> Nfs4Error:
        return self._engine.shortage(client, octets, codes.NFS4ERR_SERVERFAULT)

    def _refuse_conflict(
        self, file: FileState | None, owner: LockOwner | None, start: int, end: int, exclusive: bool
    ) -> None:
        """Raise LockDenied for a lock in the way; one of a courtesy client goes instead."""
        while file is not None and file.locks is not None:
            found = file.locks.conflict(owner, start, end, exclusive)
            if found is None:
                return
            holder, left, right, kind = found
            if not holder.client.courtesy:
                length = UINT64_MAX if right == END else right - left
                raise LockDenied(left, length, kind, holder.client.clientid, holder.owner)
            self._engine.expire_client(holder.client, Gone.WANTED)

    def grant(self, plan: LockPlan) -> Stateid:
        """See LockPlan.commit."""
        open_state, owner, file = plan.open_state, plan.owner, plan.open_state.file
        client = open_state.client
        if not plan.take():
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "the plan is over")
        file.pending_lock = None
        try:
            self._check_alive(open_state, plan.state)
        except Nfs4Error:
            self._dirty(file, [(plan.start, plan.end)])
            raise
        state = plan.state
        if state is None:
            if owner.owner not in client.lock_owners:
                client.account.charge(LOCK_OWNER + len(owner.owner))
            client.lock_owners[owner.owner] = owner
            state = LockState(self._engine.stateids.new_other(client), client, file, owner, open_state)
            self._engine.stateids.add(state)
            open_state.lock_states[owner] = state
            owner.states.add(state)
            owner.files[file] = owner.files.get(file, 0) + 1
            client.lock_states += 1
        else:
            state.bump()
        if plan.lock_seqid is not None:
            owner.seqid = plan.lock_seqid
        if file.locks is None:
            file.locks = FileLocks()
        if owner not in file.locks.owners:
            file.lock_owner_came(client.account.address)
        grown = file.locks.grant(owner, plan.start, plan.end, plan.exclusive)
        client.locks += grown
        client.account.charge(grown * LOCK)
        if file.waiters:
            self.waits.leave(file, client, owner.owner, (plan.start, plan.end, plan.exclusive))
            self.waits.freed(file)  # a range that was exclusive may be shared now
        self.waits.busy(client, owner.owner)
        return state.stateid

    @staticmethod
    def _check_alive(open_state: OpenState, state: LockState | None) -> None:
        """The layer above found these before it waited for the file's gate: they may have gone since."""
        if open_state.client.expired:
            raise Nfs4Error(codes.NFS4ERR_EXPIRED)
        if open_state not in open_state.file.opens or (state is not None and state not in state.owner.states):
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "closed meanwhile")

    def withdraw(self, plan: LockPlan) -> None:
        """See LockPlan.abort."""
        if plan.take():
            if plan.lock_seqid is not None and plan.owner.states:
                plan.owner.seqid = plan.lock_seqid
            plan.open_state.file.pending_lock = None
            self._engine.opens.drop_if_idle(plan.open_state.file)

    # -- LOCKT, LOCKU --------------------------------------------------------------------------------------------
    def test(self, client: Client, owner: bytes, file_key: bytes, exclusive: bool, offset: int, length: int) -> None:
        """LOCKT against NFS clients' locks (ask test_local_lock after). Raises LockDenied, INVAL, GRACE."""
        self.test_as(client.lock_owners.get(owner), file_key, exclusive, offset, length)

    def test_as(self, owner: LockOwner | None, file_key: bytes, exclusive: bool, offset: int, length: int) -> None:
        """As ``test``, for a lock owner, or one that holds nothing."""
        start, end = _span(offset, length)
        if self._engine.grace.holds_back:
            raise Nfs4Error(codes.NFS4ERR_GRACE)
        self._refuse_conflict(self._engine.opens.file(file_key), owner, start, end, exclusive)

    def unlock(self, state: LockState, offset: int, length: int) -> Stateid:
        """LOCKU; then clear ``local_clears(state.file)``. Raises INVAL; SERVERFAULT or RESOURCE when a split would
        exceed the client's limit; EXPIRED, BAD_STATEID when it went away while the gate was waited for."""
        start, end = _span(offset, length)
        self._check_alive(state.open_state, state)
        locks, client = state.file.locks, state.client
        ranges = locks.owners.get(state.owner) if locks is not None else None
        full = client.locks >= self._engine.limits.locks or not self._engine.ledger.fits(client.account, LOCK)
        if full and ranges is not None and ranges.splits(start, end):
            raise self._too_many(client, LOCK)
        self._revoke(state.file, state.owner, start, end)
        self.waits.busy(client, state.owner.owner)
        state.bump()
        return state.stateid

    def _revoke(self, file: FileState, owner: LockOwner, start: int, end: int) -> None:
        if file.locks is None or owner not in file.locks.owners:
            return
        grown, free = file.locks.revoke(owner, start, end)
        if owner not in file.locks.owners:
            file.lock_owner_left(owner.client.account.address)
            self._engine.note_dirty(file)
        owner.client.locks += grown
        owner.client.account.charge(grown * LOCK)
        if not file.locks.owners:
            file.locks = None
        self.waits.freed(file)
        self._dirty(file, free)

    # -- towards local processes ---------------------------------------------------------------------------------
    def _dirty(self, file: FileState, ranges: list[tuple[int, int]]) -> None:
        """These may be held locally without need."""
        ranges = [span for span in ranges if span[0] < LOCAL_END]
        if ranges:
            file.dirty.extend(ranges)
            self._engine.note_dirty(file)

    @staticmethod
    def departed(file: FileState) -> list[str]:
        """Hosts that had locks of the file, and have none any more; each is told once. To be asked under the file's
        gate, before ``local_clears``."""
        departed, file.departed = file.departed, ()
        return [host for host in departed if host not in file.lock_hosts]

    def local_clears(self, file: FileState) -> list[LocalRange]:
        """What is held locally without need; to be cleared now, under the file's gate, which keeps the file's record
        (and so the gate) in place until it is released. Each range is told once."""
        dirty, file.dirty = file.dirty, []
        clears: list[LocalRange] = []
        for start, end in dirty:
            free = file.locks.gaps(start, end) if file.locks is not None else [(start, end)]
            clears.extend(_local(left, right, False) for left, right in free if left < LOCAL_END)
        self._engine.opens.drop_if_idle(file)
        return clears

    # -- the end of lock states ----------------------------------------------------------------------------------
    def release_lockowner(self, client: Client, owner: bytes) -> None:
        """v4.0 RELEASE_LOCKOWNER. Raises LOCKS_HELD."""
        holder = client.lock_owners.get(owner)
        if holder is None:
            self.waits.gone(client, owner)
            return
        if any(self._holds(state) for state in holder.states):
            raise Nfs4Error(codes.NFS4ERR_LOCKS_HELD)
        for state in list(holder.states):
            self.release(state)
        self._forget_owner(client, owner)

    def free(self, state: LockState) -> None:
        """FREE_STATEID of a lock stateid. Raises LOCKS_HELD."""
        if self._holds(state):
            raise Nfs4Error(codes.NFS4ERR_LOCKS_HELD)
        self.release(state)

    @staticmethod
    def _holds(state: LockState) -> bool:
        return state.file.locks is not None and state.owner in state.file.locks.owners

    def release(self, state: LockState) -> None:
        """Take a lock state out of the tables; the owner's ranges on the file go with its last one there."""
        owner, file = state.owner, state.file
        if state not in owner.states:
            return
        owner.states.discard(state)
        state.open_state.lock_states.pop(owner, None)
        state.client.lock_states -= 1
        self._engine.stateids.remove(state)
        owner.files[file] -= 1
        if not owner.files[file]:
            del owner.files[file]
            self.waits.gone(state.client, owner.owner, file)
            self._revoke(file, owner, 0, END)
        if not owner.states and state.client.lock_owners.get(owner.owner) is owner:
            # In v4.0 its seqid could be of use until RELEASE_LOCKOWNER; a client may as well begin anew, since an
            # unknown lock owner may start with any seqid (RFC 7530 section 9.1.10).
            self._forget_owner(state.client, owner.owner)

    @staticmethod
    def _forget_owner(client: Client, owner: bytes) -> None:
        if client.lock_owners.pop(owner, None) is not None:
            client.account.charge(-LOCK_OWNER - len(owner))


def _span(offset: int, length: int) -> tuple[int, int]:
    """[start, end) of an offset and length from the wire. Raises INVAL (RFC 8881 section 18.10.3)."""
    if length == 0:
        raise Nfs4Error(codes.NFS4ERR_INVAL, "empty range")
    if length == UINT64_MAX:
        return offset, END
    if offset + length > END:
        raise Nfs4Error(codes.NFS4ERR_INVAL, "range beyond 2**64")
    return offset, offset + length


def _local(start: int, end: int, exclusive: bool) -> LocalRange:
    return LocalRange(start, 0 if end >= LOCAL_END else end - start, exclusive)
