"""Opens and share reservations (contract: ``opens.pyi``).

An open is made in two steps where the file system has to be asked in between: ``reserve`` makes the share reservation (from
then on it conflicts as if granted), ``commit`` turns it into an open. Where nothing is to be asked both are one
(:meth:`OpenTable.open_now`). An owner's own opens conflict like anybody else's; a holder whose lease has run out (courtesy)
loses everything instead of standing in the way.

RFC 8881 sections 9.7 to 9.11, 18.2, 18.16, 18.18; RFC 7530 sections 9.1.7, 9.9, 16.2, 16.16 to 16.19.
"""

from nfsd.state.charges cimport Figures, HostAccount
from nfsd.state.entries cimport StateEntries
from nfsd.state.files cimport FileState
from nfsd.state.owners cimport OpenOwner, SeqidOwner
from nfsd.state.records cimport ClientRecord, OpenState, stateid_of
from nfsd.wire.nfs4 cimport OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_READ

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import OPEN as _OPEN, OPEN_OWNER as _OPEN_OWNER
from nfsd.state.errors import DelegationConflict, Nfs4Error
from nfsd.state.types import Gone, Stateid

cdef long OPEN = _OPEN
cdef long OPEN_OWNER = _OPEN_OWNER
cdef object CLOSED = Stateid(0xFFFFFFFF, bytes(12))
# RFC 8881 section 18.2.4: a stateid that can do no harm when it is used again.


cdef inline bint writes(int access, int deny) noexcept:
    """Whether an OPEN conflicts with others' read delegations (RFC 8881 section 10.4)."""
    return access & OPEN4_SHARE_ACCESS_WRITE != 0 or deny & OPEN4_SHARE_DENY_READ != 0


cdef class OpenReservation:
    def __init__(self, OpenTable table not None, OpenOwner owner not None, FileState file not None, int access, int deny):
        self._table = table
        self._done = False
        self.owner = owner
        self.file = file
        self.access = access
        self.deny = deny

    def commit(self):
        return self._table.grant(self)

    def abort(self):
        self._table.withdraw(self)

    def take(self):
        done, self._done = self._done, True
        return not done

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.abort()


cdef class OpenTable:
    def __init__(self, engine):
        self._engine = engine
        self.grace = <GraceRules?>engine.grace
        self.stateids = <StateEntries?>engine.stateids
        self._files = {}
        self._lingering = {}
        self._idle = {}  # owners without opens, by how long they have been, longest first

    # -- files ---------------------------------------------------------------------------------------------------
    cpdef FileState file(self, bytes key):
        return self._files.get(key)

    cpdef FileState make_file(self, bytes key):
        cdef FileState file = self._files.get(key)
        if file is None:
            file = self._files[key] = FileState(key)
        return file

    cpdef int drop_if_idle(self, FileState file) except -1:
        if not file.is_idle() or self._files.get(file.key) is not file:
            return 0
        if file.is_gated():
            # The next to open it must meet the same gate, behind which local locks may still be on their way out.
            self._lingering[file] = None
            self._engine.watch(self._engine.now() + 1.0)
        else:
            del self._files[file.key]
            # Revoked states refer to it for as long as their clients like; that must not keep the file open.
            file.node = None
        return 0

    def sweep_files(self):
        lingering, self._lingering = self._lingering, {}
        for file in lingering:
            self.drop_if_idle(file)

    # -- owners --------------------------------------------------------------------------------------------------
    cpdef int check_claim(self, ClientRecord client, bint reclaim, bint held=False) except -1:
        return self.grace.check(client, reclaim, held)

    cpdef OpenOwner owner(self, ClientRecord client, bytes owner):
        cdef OpenOwner found = client.open_owners.get(owner)
        return found if found is not None else self._new_owner(client, owner)

    cpdef tuple begin40(self, ClientRecord client, bytes owner, unsigned int seqid):
        cdef OpenOwner found = client.open_owners.get(owner)
        if found is None:
            found = self._new_owner(client, owner)
        elif not found.confirmed and not found.busy and not (found.seqid == seqid and found.result is not None):
            # RFC 7530 section 16.18.5: what an unconfirmed owner opened goes when it opens anew.
            for state in list(found.states.values()):
                self.release(state)
            self.forget_owner(found)
            found = self._new_owner(client, owner)
        return found, self.begin(found, seqid)

    cpdef tuple begin_seqid(self, bytes other, unsigned int seqid):
        cdef SeqidOwner owner = self.stateids.owner_of(other)
        return owner, self.begin(owner, seqid)

    cpdef object begin(self, SeqidOwner owner, unsigned int seqid):
        replay = owner.begin(seqid)
        if replay is None:
            self.stateids.forget_closed(owner)  # what it closed before can no longer be replayed
        return replay

    cpdef OpenOwner _new_owner(self, ClientRecord client, bytes owner):
        cdef OpenOwner made
        limits = self._engine.limits
        if len(owner) > limits.owner_octets:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "owner name too long")
        octets = OPEN_OWNER + len(owner)
        if len(client.open_owners) >= limits.open_owners or not self.is_room(client, octets):
            raise self.too_many(client, octets)
        (<HostAccount>client.account).charge(octets)
        made = client.open_owners[owner] = OpenOwner(client, owner, confirmed=client.minor > 0)
        self._idle[made] = self._engine.now()
        return made

    cdef bint is_room(self, ClientRecord client, long long octets) except -1:
        """Whether so much more may be remembered for a client's host (:meth:`Ledger.room`)."""
        cdef HostAccount account = client.account
        return account.ledger.is_easy(account, octets) or (<object>account.ledger).room(account, octets)

    cdef bint is_full(self, ClientRecord client) except -1:
        """Whether the client has as many opens as it may."""
        cdef long most = self._engine.limits.opens
        cdef long states = len(client.states)
        return states >= most and states - client.lock_states - client.delegations - self._engine.copies.of(client) >= most

    def refusal(self, ClientRecord client not None, bytes owner not None):
        cdef bint new_owner = owner not in client.open_owners
        cdef long octets = OPEN + (OPEN_OWNER + len(owner) if new_owner else 0)
        if (
            self.is_full(client)
            or (new_owner and len(client.open_owners) >= self._engine.limits.open_owners)
            or not self.is_room(client, octets)
        ):
            return self.too_many(client, octets)
        return None

    def too_many(self, client, octets):
        return self._engine.shortage(client, octets, codes.NFS4ERR_NOSPC)

    cpdef int forget_owner(self, OpenOwner owner) except -1:
        cdef ClientRecord client = owner.client
        self._idle.pop(owner, None)
        self.stateids.forget_closed(owner)
        if client.open_owners.get(owner.owner) is owner:
            del client.open_owners[owner.owner]
            (<HostAccount>client.account).charge(-OPEN_OWNER - len(owner.owner))
        return 0

    cdef int owner_idle(self, OpenOwner owner) except -1:
        """An owner's last open is gone: v4.1 forgets it, v4.0 keeps its seqid for about a lease."""
        if owner.states or owner.pending:
            return 0
        if owner.client.minor:
            return self.forget_owner(owner)
        self._idle.pop(owner, None)
        self._idle[owner] = self._engine.now()
        return 0

    def sweep_owners(self, double before):
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
        self, OpenOwner owner not None, bytes file_key not None, int access, int deny, *, bint reclaim, bint changes=False
    ):
        cdef FileState file = self.admitted(owner, file_key, access, deny, reclaim, changes)
        reservation = OpenReservation(self, owner, file, access, deny)
        file.add_reservation(reservation)
        file.add_share(access, deny)
        owner.pending += 1
        self._idle.pop(owner, None)
        if reclaim:
            self._engine.grace.reclaimed(self._engine.now())
        return reservation

    cdef bint is_clear(self, bytes file_key, ClientRecord client, int access, int deny) except -1:
        """Whether neither a share reservation nor another client's delegation stands against an OPEN. Changes nothing."""
        cdef FileState file = self._files.get(file_key)
        return file is None or not (
            file.stands_against(access, deny) or (
                file.delegations
                and self._engine.delegations.in_the_way(file_key, client, write=writes(access, deny)) is not None
            )
        )

    cdef FileState admitted(self, OpenOwner owner, bytes file_key, int access, int deny, bint reclaim, bint changes):
        """The file, on which this access may be had. Raises what :meth:`reserve` does."""
        cdef ClientRecord client = owner.client
        cdef GraceRules grace = self.grace
        cdef bint write = changes or writes(access, deny)
        delegations = self._engine.delegations
        if not 1 <= access <= OPEN4_SHARE_ACCESS_BOTH or not 0 <= deny <= OPEN4_SHARE_ACCESS_BOTH:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "share bits")
        if client.expired:
            raise Nfs4Error(codes.NFS4ERR_EXPIRED)
        grace.check(
            client, reclaim, (grace.active or grace.elsewhere) and delegations.covers(client, file_key, write=write)
        )
        if file_key not in owner.states and (self.is_full(client) or not self.is_room(client, OPEN)):
            raise self.too_many(client, OPEN)
        while (holder := self.conflict(file_key, access, deny)) is not None:
            if not holder.courtesy:
                raise Nfs4Error(codes.NFS4ERR_RECLAIM_CONFLICT if reclaim else codes.NFS4ERR_SHARE_DENIED)
            self._engine.expire_client(holder, Gone.WANTED)
        # A read delegation keeps others from writing and from denying to read, a write delegation from opening at all
        # (RFC 8881 section 10.4).
        if delegations.count and not delegations.clear(file_key, client, write=write):
            raise DelegationConflict
        return self.make_file(file_key)

    cdef object conflict(self, bytes file_key, int access, int deny):
        """A client whose open or reservation conflicts (RFC 8881 section 9.7). An owner's own opens count like anybody
        else's (section 18.16.3)."""
        cdef FileState file = self._files.get(file_key)
        if file is None or not file.stands_against(access, deny):
            return None
        staying = None
        for holder in [*file.opens, *file.reservations]:
            client = holder.owner.client
            if client.expired or not (access & <int>holder.deny or deny & <int>holder.access):
                continue
            if not client.courtesy:
                return client
            staying = client
        return staying

    def grant(self, OpenReservation reservation not None):
        cdef OpenOwner owner = reservation.owner
        cdef FileState file = reservation.file
        cdef OpenState state
        cdef bint upgrades
        if not reservation.take() or owner.client.expired:
            self.forget_reservation(reservation)
            raise Nfs4Error(codes.NFS4ERR_EXPIRED)
        upgrades = file.key in owner.states
        state = self.given(owner, file, reservation.access, reservation.deny)
        if upgrades:
            self.forget_reservation(reservation)
        else:
            # What was counted for the reservation counts for the open.
            file.drop_reservation(reservation)
            owner.pending -= 1
        return state

    cdef OpenState given(self, OpenOwner owner, FileState file, int access, int deny):
        """The new open, whose share is counted already, or the upgraded one, its seqid advanced."""
        cdef ClientRecord client = owner.client
        cdef OpenState state = owner.states.get(file.key)
        # Its first open puts the v4.0 client on record (see recovery); a v4.1 client is since its RECLAIM_COMPLETE.
        if not client.minor and not client.recorded:
            self._engine.record_client(client)
        if state is None:
            state = OpenState(self.stateids.new_other(client), client, file, owner)
            self.stateids.add(state)
            owner.states[file.key] = state
            file.opens.add(state)
            state.access, state.deny = access, deny
        else:
            state.bump()
            self.set_share(state, state.access | access, state.deny | deny)
        state.combos |= 1 << (access * 4 + deny)
        return state

    cdef OpenState open_now(self, OpenOwner owner, bytes file_key, int access, int deny):
        """Reserve and grant. Raises what :meth:`reserve` does; the owner is then as after :meth:`withdraw`."""
        cdef FileState file
        try:
            file = self.admitted(owner, file_key, access, deny, False, False)
        except BaseException:
            self.owner_idle(owner)
            raise
        self._idle.pop(owner, None)
        if file_key not in owner.states:
            file.add_share(access, deny)
        return self.given(owner, file, access, deny)

    def withdraw(self, OpenReservation reservation not None):
        if reservation.take():
            self.forget_reservation(reservation)
            self.owner_idle(reservation.owner)

    cdef int forget_reservation(self, OpenReservation reservation) except -1:
        cdef FileState file = reservation.file
        if reservation in file.reservations:
            file.drop_reservation(reservation)
            file.drop_share(reservation.access, reservation.deny)
            reservation.owner.pending -= 1
            self.drop_if_idle(file)
        return 0

    cdef int set_share(self, OpenState state, int access, int deny) except -1:
        cdef FileState file = state.file
        file.drop_share(state.access, state.deny)
        state.access, state.deny = access, deny
        file.add_share(access, deny)
        return 0

    # -- v4.0 confirmation, downgrade, close ---------------------------------------------------------------------
    def confirm(self, OpenState state not None):
        if state.owner.confirmed:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "already confirmed")
        state.owner.confirmed = True
        state.bump()
        return state.stateid

    def downgrade(self, OpenState state not None, int access, int deny):
        cdef int kept = 0, union_access = 0, union_deny = 0, combo, one_access, one_deny
        self.check_confirmed(state)
        for combo in range(4, 16):
            if not state.combos >> combo & 1:
                continue
            one_access, one_deny = combo >> 2, combo & 3
            if one_access & ~access or one_deny & ~deny:
                continue
            kept |= 1 << combo
            union_access |= one_access
            union_deny |= one_deny
        if not kept or union_access != access or union_deny != deny:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "no set of its opens amounts to this")  # RFC 8881 section 18.18.3
        state.combos = kept
        self.set_share(state, access, deny)
        state.bump()
        return state.stateid

    cpdef object close(self, OpenState state):
        cdef OpenOwner owner = state.owner
        self.check_confirmed(state)
        if state not in (<FileState>state.file).opens:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "closed meanwhile")
        self.release(state)
        if owner.client.minor:
            return CLOSED
        state.bump()
        self.stateids.remember_closed(state.other, owner)
        return stateid_of(state.seqid, state.other)

    cdef int check_confirmed(self, OpenState state) except -1:
        """Raises BAD_STATEID for the open of a v4.0 owner that has yet to confirm."""
        if not (<OpenOwner>state.owner).confirmed:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "an open not yet confirmed")
        return 0

    cpdef int release(self, OpenState state) except -1:
        cdef FileState file = state.file
        cdef OpenOwner owner = state.owner
        if state.lock_states:
            for lock_state in list(state.lock_states.values()):
                self._engine.locks.release(lock_state)
        if state not in file.opens:
            return 0
        file.opens.discard(state)
        file.drop_share(state.access, state.deny)
        owner.states.pop(file.key, None)
        self.stateids.remove(state)
        opened, state.opened = state.opened, None
        if opened is not None:
            self._engine.on_release(opened)
        self.owner_idle(owner)
        return self.drop_if_idle(file)

    # -- I/O without an open -------------------------------------------------------------------------------------
    def check_anonymous(self, bytes file_key not None, *, bint write):
        if self._engine.grace.active:
            raise Nfs4Error(codes.NFS4ERR_GRACE)
        while (holder := self.conflict(file_key, 2 if write else 1, 0)) is not None:
            if not holder.courtesy:
                raise Nfs4Error(codes.NFS4ERR_LOCKED)
            self._engine.expire_client(holder, Gone.WANTED)
