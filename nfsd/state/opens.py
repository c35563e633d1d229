"""Opens and share reservations.

An open is made in two steps, since the file system is asked in between: ``reserve`` makes the share reservation (from
then on it conflicts as if granted), ``commit`` turns it into an open. An owner's own opens conflict like
anybody else's; a holder whose lease has run out (courtesy) loses everything instead of standing in the way.

RFC 8881 sections 9.7 to 9.11, 18.2, 18.16, 18.18; RFC 7530 sections 9.1.7, 9.9, 16.2, 16.16 to 16.19.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import OPEN, OPEN_OWNER
from nfsd.state.errors import DelegationConflict, Nfs4Error
from nfsd.state.files import FileState
from nfsd.state.owners import OpenOwner, SeqidOwner
from nfsd.state.records import OpenState
from nfsd.state.types import Gone, Stateid, StateidLike

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.engine import StateEngine
    from nfsd.state.types import SeqidReplay

_BOTH = codes.OPEN4_SHARE_ACCESS_BOTH

__all__ = ["FileState", "OpenOwner", "OpenReservation", "OpenState", "OpenTable", "SeqidOwner"]


class OpenReservation:
    """A share reservation that holds while the file is being opened; commit or abort exactly once. As a context
    manager it aborts unless it was committed."""

    __slots__ = ("_done", "_table", "access", "deny", "existing", "file", "owner")

    def __init__(self, table: OpenTable, owner: OpenOwner, file: FileState, access: int, deny: int) -> None:
        self._table = table
        self._done = False
        self.owner = owner
        self.file = file
        self.access = access
        self.deny = deny
        self.existing: OpenState | None = owner.states.get(file.key)
        """The owner's open that this one upgrades, if there is one."""

    def commit(self) -> OpenState:
        """Grant it: the new or upgraded open, its seqid advanced. Raises EXPIRED if the client went away meanwhile."""
        return self._table.grant(self)

    def abort(self) -> None:
        """Take it back. Harmless after ``commit``."""
        self._table.withdraw(self)

    def take(self) -> bool:
        """Whether this is the first end of the reservation (for the table)."""
        done, self._done = self._done, True
        return not done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class OpenTable:
    """All opens of all files."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self._files: dict[bytes, FileState] = {}
        self._lingering: dict[FileState, None] = {}
        self._idle: dict[OpenOwner, float] = {}
        """Owners without opens, by how long they have been, longest first."""

    # -- files ---------------------------------------------------------------------------------------------------
    def file(self, key: bytes) -> FileState | None:
        """What is known of a file, if anything is."""
        return self._files.get(key)

    def make_file(self, key: bytes) -> FileState:
        """What is known of a file; something is from now on, until ``drop_if_idle`` finds it idle."""
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = FileState(key)
        return file

    def drop_if_idle(self, file: FileState) -> None:
        """Forget a file nothing is known of any more. One whose gate is held stays for now: the next to open it must
        meet the same gate, behind which local locks may still be on their way out."""
        if not file.idle or self._files.get(file.key) is not file:
            return
        if file.gate is not None and file.gate.locked():
            self._lingering[file] = None
            self._engine.watch(self._engine.now() + 1.0)
        else:
            del self._files[file.key]
            # Revoked states refer to it for as long as their clients like; that must not keep the file open.
            file.node = None

    def sweep_files(self) -> None:
        """Forget files that lingered for their gate."""
        lingering, self._lingering = self._lingering, {}
        for file in lingering:
            self.drop_if_idle(file)

    # -- owners --------------------------------------------------------------------------------------------------
    def check_claim(self, client: Client, *, reclaim: bool) -> None:
        """Whether an OPEN may go ahead under grace rules; to be asked before anything is created. Raises GRACE,
        NO_GRACE."""
        self._engine.grace.check(client, reclaim=reclaim)

    def owner(self, client: Client, owner: bytes) -> OpenOwner:
        """v4.1: the owner, made if need be. Raises NOSPC at limits."""
        found = client.open_owners.get(owner)
        return found if found is not None else self._new_owner(client, owner)

    def begin40(self, client: Client, owner: bytes, seqid: int) -> tuple[OpenOwner, SeqidReplay | None]:
        """v4.0 OPEN: the owner, made if need be, with its seqid begun. An unconfirmed owner that opens again
        starts over. Raises BAD_SEQID, DELAY, RESOURCE."""
        found = client.open_owners.get(owner)
        if found is None:
            found = self._new_owner(client, owner)
        elif not found.confirmed and not found.busy and not (found.seqid == seqid and found.replay is not None):
            # RFC 7530 section 16.18.5: what an unconfirmed owner opened goes when it opens anew.
            for state in list(found.states.values()):
                self.release(state)
            self.forget_owner(found)
            found = self._new_owner(client, owner)
        return found, self._begin(found, seqid)

    def begin_seqid(self, stateid: StateidLike, seqid: int) -> tuple[SeqidOwner, SeqidReplay | None]:
        """v4.0 CLOSE, OPEN_DOWNGRADE, OPEN_CONFIRM, LOCK, LOCKU: the owner behind the stateid (a just-closed one too),
        with its seqid begun. Raises as StateidTable.find without OLD_STATEID, and as ``begin``."""
        owner = self._engine.stateids.owner_of(stateid.other)
        return owner, self._begin(owner, seqid)

    def _begin(self, owner: SeqidOwner, seqid: int) -> SeqidReplay | None:
        replay = owner.begin(seqid)
        if replay is None:
            self._engine.stateids.forget_closed(owner)  # what it closed before can no longer be replayed
        return replay

    def _new_owner(self, client: Client, owner: bytes) -> OpenOwner:
        limits = self._engine.limits
        if len(owner) > limits.owner_octets:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "owner name too long")
        octets = OPEN_OWNER + len(owner)
        if len(client.open_owners) >= limits.open_owners or not self._engine.ledger.room(client.account, octets):
            raise self._too_many(client, octets)
        client.account.charge(octets)
        made = client.open_owners[owner] = OpenOwner(client, owner, confirmed=client.minor > 0)
        self._idle[made] = self._engine.now()
        return made

    def _full(self, client: Client) -> bool:
        """Whether the client has as many opens as it may."""
        others = client.lock_states + client.delegations + self._engine.copies.of(client)
        return len(client.states) - others >= self._engine.limits.opens

    def refusal(self, client: Client, owner: bytes) -> Nfs4Error | None:
        """Why an OPEN of a file that no open of the client's is of would be refused at limits: to be asked before one
        is made for it."""
        new_owner = owner not in client.open_owners
        octets = OPEN + (OPEN_OWNER + len(owner) if new_owner else 0)
        if (
            self._full(client)
            or (new_owner and len(client.open_owners) >= self._engine.limits.open_owners)
            or not self._engine.ledger.room(client.account, octets)
        ):
            return self._too_many(client, octets)
        return None

    def _too_many(self, client: Client, octets: int) -> Nfs4Error:
        return self._engine.shortage(client, octets, codes.NFS4ERR_NOSPC)

    def forget_owner(self, owner: OpenOwner) -> None:
        """Take an owner without opens out of the tables."""
        self._idle.pop(owner, None)
        self._engine.stateids.forget_closed(owner)
        if owner.client.open_owners.get(owner.owner) is owner:
            del owner.client.open_owners[owner.owner]
            owner.client.account.charge(-OPEN_OWNER - len(owner.owner))

    def _owner_idle(self, owner: OpenOwner) -> None:
        """An owner's last open is gone: v4.1 forgets it, v4.0 keeps its seqid for about a lease."""
        if owner.states or owner.pending:
            return
        if owner.client.minor:
            self.forget_owner(owner)
        else:
            self._idle.pop(owner, None)
            self._idle[owner] = self._engine.now()

    def sweep_owners(self, before: float) -> None:
        """Forget owners without opens that have been idle since ``before`` (RFC 7530 section 9.1.10)."""
        while self._idle:
            owner, since = next(iter(self._idle.items()))
            if since > before:
                break
            if owner.busy:
                del self._idle[owner]
                self._idle[owner] = self._engine.now()
            else:
                self.forget_owner(owner)

    # -- opening -------------------------------------------------------------------------------------------------
    def reserve(
        self, owner: OpenOwner, file_key: bytes, access: int, deny: int, *, reclaim: bool, changes: bool = False
    ) -> OpenReservation:
        """Reserve access (OPEN4_SHARE_ACCESS_*, want bits stripped) and deny on a file. ``changes``: the OPEN changes
        the file whatever the access. Raises SHARE_DENIED, INVAL, DelegationConflict (another client's delegation, now
        being recalled), RECLAIM_CONFLICT, NOSPC or RESOURCE at limits, and as ``check_claim``."""
        if not 1 <= access <= _BOTH or not 0 <= deny <= _BOTH:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "share bits")
        client = owner.client
        if client.expired:
            raise Nfs4Error(codes.NFS4ERR_EXPIRED)
        self._engine.grace.check(client, reclaim=reclaim)
        if file_key not in owner.states and (self._full(client) or not self._engine.ledger.room(client.account, OPEN)):
            raise self._too_many(client, OPEN)
        while (holder := self._conflict(file_key, access, deny)) is not None:
            if not holder.courtesy:
                raise Nfs4Error(codes.NFS4ERR_RECLAIM_CONFLICT if reclaim else codes.NFS4ERR_SHARE_DENIED)
            self._engine.expire_client(holder, Gone.WANTED)
        # A read delegation keeps others from writing and from denying to read, a write delegation from opening at all
        # (RFC 8881 section 10.4).
        writes = changes or bool(access & codes.OPEN4_SHARE_ACCESS_WRITE or deny & codes.OPEN4_SHARE_DENY_READ)
        if not self._engine.delegations.clear(file_key, client, write=writes):
            raise DelegationConflict
        file = self.make_file(file_key)
        reservation = OpenReservation(self, owner, file, access, deny)
        file.add_reservation(reservation)
        file.add_share(access, deny)
        owner.pending += 1
        self._idle.pop(owner, None)
        if reclaim:
            self._engine.grace.reclaimed(self._engine.now())
        return reservation

    def _conflict(self, file_key: bytes, access: int, deny: int) -> Client | None:
        """A client whose open or reservation conflicts (RFC 8881 section 9.7). An owner's own opens count like anybody
        else's (section 18.16.3)."""
        file = self._files.get(file_key)
        if file is None or not (
            (access & 1 and file.deny_read)
            or (access & 2 and file.deny_write)
            or (deny & 1 and file.access_read)
            or (deny & 2 and file.access_write)
        ):
            return None
        staying: Client | None = None
        holders: list[OpenState | OpenReservation] = [*file.opens, *file.reservations]
        for holder in holders:
            client = holder.owner.client
            if client.expired or not (access & holder.deny or deny & holder.access):
                continue
            if not client.courtesy:
                return client
            staying = client
        return staying

    def grant(self, reservation: OpenReservation) -> OpenState:
        """See OpenReservation.commit."""
        owner, file = reservation.owner, reservation.file
        if not reservation.take() or owner.client.expired:
            self._forget_reservation(reservation)
            raise Nfs4Error(codes.NFS4ERR_EXPIRED)
        # Its first open put the v4.0 client on record (see recovery); a v4.1 client is since its RECLAIM_COMPLETE.
        if not owner.client.minor:
            self._engine.record_client(owner.client)
        access, deny = reservation.access, reservation.deny
        state = owner.states.get(file.key)
        if state is None:
            client = owner.client
            state = OpenState(self._engine.stateids.new_other(client), client, file, owner)
            self._engine.stateids.add(state)
            owner.states[file.key] = state
            file.opens.add(state)
            # What was counted for the reservation counts for the open.
            state.access, state.deny = access, deny
            file.drop_reservation(reservation)
            owner.pending -= 1
        else:
            state.bump()
            self._set_share(state, state.access | access, state.deny | deny)
            self._forget_reservation(reservation)
        state.combos |= 1 << (access * 4 + deny)
        return state

    def withdraw(self, reservation: OpenReservation) -> None:
        """See OpenReservation.abort."""
        if reservation.take():
            self._forget_reservation(reservation)
            self._owner_idle(reservation.owner)

    def _forget_reservation(self, reservation: OpenReservation) -> None:
        file = reservation.file
        if reservation in file.reservations:
            file.drop_reservation(reservation)
            file.drop_share(reservation.access, reservation.deny)
            reservation.owner.pending -= 1
            self.drop_if_idle(file)

    @staticmethod
    def _set_share(state: OpenState, access: int, deny: int) -> None:
        state.file.drop_share(state.access, state.deny)
        state.access, state.deny = access, deny
        state.file.add_share(access, deny)

    # -- v4.0 confirmation, downgrade, close ---------------------------------------------------------------------
    def confirm(self, state: OpenState) -> Stateid:
        """v4.0 OPEN_CONFIRM. Raises BAD_STATEID when already confirmed."""
        if state.owner.confirmed:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "already confirmed")
        state.owner.confirmed = True
        state.bump()
        return state.stateid

    def downgrade(self, state: OpenState, access: int, deny: int) -> Stateid:
        """OPEN_DOWNGRADE. Raises INVAL unless the union of some of its OPENs is exactly this."""
        self._check_confirmed(state)
        kept = union_access = union_deny = 0
        for combo in range(4, 16):
            if not state.combos >> combo & 1:
                continue
            one_access, one_deny = combo >> 2, combo & 3
            if one_access & ~access or one_deny & ~deny:
                continue
            kept |= 1 << combo
            union_access |= one_access
            union_deny |= one_deny
        if not kept or (union_access, union_deny) != (access, deny):
            raise Nfs4Error(codes.NFS4ERR_INVAL, "no set of its opens amounts to this")  # RFC 8881 section 18.18.3
        state.combos = kept
        self._set_share(state, access, deny)
        state.bump()
        return state.stateid

    def close(self, state: OpenState) -> Stateid:
        """CLOSE: the open and the locks under it go. Returns the stateid to answer with. Afterwards
        ``LockTable.local_clears(state.file)`` says what to give up locally. Raises BAD_STATEID when another CLOSE came
        first."""
        self._check_confirmed(state)
        owner = state.owner
        if state not in state.file.opens:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "closed meanwhile")
        self.release(state)
        if owner.client.minor:
            # RFC 8881 section 18.2.4: a stateid that can do no harm when it is used again.
            return Stateid(0xFFFFFFFF, bytes(12))
        state.bump()
        self._engine.stateids.remember_closed(state.other, owner)
        return state.stateid

    @staticmethod
    def _check_confirmed(state: OpenState) -> None:
        if not state.owner.confirmed:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "an open not yet confirmed")

    def release(self, state: OpenState) -> None:
        """Take an open and everything under it out of the tables (CLOSE, expiry…)."""
        for lock_state in list(state.lock_states.values()):
            self._engine.locks.release(lock_state)
        file, owner = state.file, state.owner
        if state not in file.opens:
            return
        file.opens.discard(state)
        file.drop_share(state.access, state.deny)
        owner.states.pop(file.key, None)
        self._engine.stateids.remove(state)
        opened, state.opened = state.opened, None
        if opened is not None:
            self._engine.on_release(opened)
        self._owner_idle(owner)
        self.drop_if_idle(file)

    # -- I/O without an open -------------------------------------------------------------------------------------
    def check_anonymous(self, file_key: bytes, *, write: bool) -> None:
        """I/O under a special stateid: against share denies, and not in the grace period, since an open that denies it
        may yet be reclaimed (RFC 8881 section 8.4.2). Raises LOCKED, GRACE."""
        if self._engine.grace.active:
            raise Nfs4Error(codes.NFS4ERR_GRACE)
        while (holder := self._conflict(file_key, codes.OPEN4_SHARE_ACCESS_WRITE if write else 1, 0)) is not None:
            if not holder.courtesy:
                raise Nfs4Error(codes.NFS4ERR_LOCKED)
            self._engine.expire_client(holder, Gone.WANTED)
