"""How delegations are given and go (contract: ``delegating.pyi``).

Each OPEN of a client that can be called asks here for a delegation, and each DELEGRETURN gives one back. What conflicts with a
delegation, how it is recalled, and the policy are in :mod:`nfsd.state.delegations`, which derives from this.

RFC 8881 sections 10.4, 18.6, 18.16; RFC 7530 sections 10.4, 16.8, 16.16. Imports the records and their tables.
"""

from nfsd.state.charges cimport HostAccount
from nfsd.state.opens cimport OpenReservation
from nfsd.state.records cimport OpenState
from nfsd.wire.nfs4 cimport OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_READ

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import DELEGATION as _DELEGATION

cdef long long DELEGATION = _DELEGATION
Why = codes.why_no_delegation4
cdef object CONTENTION = Why.WND4_CONTENTION
cdef object RESOURCE = Why.WND4_RESOURCE


def nothing(_):
    pass


cdef inline bint against(int access, int deny, bint write) noexcept:
    """Whether another client's open conflicts with a delegation, ``write``: for writing."""
    return write or access & OPEN4_SHARE_ACCESS_WRITE != 0 or deny & OPEN4_SHARE_DENY_READ != 0


cdef class Delegating:
    def __init__(self, engine):
        self._engine = engine
        self.opens, self.stateids = <OpenTable?>engine.opens, <StateEntries?>engine.stateids
        self.grace, self.ledger = <GraceRules?>engine.grace, <Figures?>engine.ledger
        self.on_gone = nothing
        self._holds, self._paused, self._recalling, self._to_recall = {}, {}, {}, {}

    # -- giving --------------------------------------------------------------------------------------------------
    cpdef object offer(self, ClientRecord client, bytes file_key, bint write, bint reclaim=False):
        cdef FileState file
        cdef Delegation made
        refusal = self.refusal(client, file_key, write, reclaim)
        if refusal is not None:
            return refusal
        file = self.opens.make_file(file_key)
        made = Delegation(self.stateids.new_other(client), client, file, write)
        self.stateids.add(made)
        file.delegations[client] = made
        client.delegations += 1
        (<HostAccount>client.account).delegations += 1
        self.count += 1
        self.reclaimed += reclaim
        return made

    cpdef object refusal(self, ClientRecord client, bytes file_key, bint write, bint reclaim=False):
        cdef HostAccount account = client.account
        if client.expired or client.courtesy:
            return RESOURCE
        if file_key in self._holds or self.contended(client, file_key, write):
            return CONTENTION
        limits = self._engine.limits
        if reclaim:
            return None if limits.delegations else RESOURCE
        if self.grace.active or self.grace.elsewhere or self.in_pause(file_key):
            return CONTENTION
        if (
            client.delegations >= limits.client_delegations
            or account.delegations >= limits.share(limits.delegations)
            or not (self.ledger.is_easy(account, DELEGATION) or (<object>self.ledger).fits(account, DELEGATION))
        ):
            (<object>self).ask(client)
            return RESOURCE
        if self.count >= limits.delegations:
            if limits.delegations:
                (<object>self).ask_all()
            return RESOURCE
        return None

    cdef bint contended(self, ClientRecord client, bytes file_key, bint write) except -1:
        """Whether other clients use the file in a way that conflicts, or it is delegated to this one already."""
        cdef FileState file = self.opens.file(file_key)
        cdef OpenState state
        cdef OpenReservation reservation
        if file is None:
            return False
        if file.delegations and (write or client in file.delegations or self.writing(file) is not None):
            return True
        if not (write or file.access_write or file.deny_read):
            return False  # however many read it
        for state in file.opens:
            if state.client is not client and against(state.access, state.deny, write):
                return True
        for reservation in file.reservations:
            if reservation.owner.client is not client and against(reservation.access, reservation.deny, write):
                return True
        return False

    cdef bint in_pause(self, bytes file_key) except -1:
        until = self._paused.get(file_key)
        if until is None:
            return False
        if until > self._engine.now():
            return True
        del self._paused[file_key]
        return False

    cpdef bint settle(self, Delegation delegation, bint directory=False) except -1:
        if delegation.unwanted or not self.holds(delegation):
            self.release(delegation)
            return False
        delegation.offered = False
        self.granted += not directory
        self.granted_directories += directory
        return True

    cpdef bint holds(self, Delegation delegation) except -1:
        return (<FileState>delegation.file).delegations.get(delegation.client) is delegation

    cpdef Delegation held_by(self, ClientRecord client, bytes file_key):
        cdef FileState file = self.opens.file(file_key)
        cdef Delegation held
        if file is None:
            return None
        held = file.delegations.get(client)
        return None if held is None or held.offered else held

    cpdef Delegation writing(self, FileState file):
        cdef Delegation first
        for first in file.delegations.values():
            return first if first.write else None
        return None

    # -- going ---------------------------------------------------------------------------------------------------
    cpdef int give_back(self, Delegation delegation) except -1:
        self.returned += 1
        return self.release(delegation)

    cpdef int release(self, Delegation delegation) except -1:
        cdef FileState file = delegation.file
        cdef ClientRecord client = delegation.client
        if not self.holds(delegation):
            return 0
        del file.delegations[client]
        if self._recalling:
            self._recalling.pop(delegation, None)
            self._to_recall.pop(delegation, None)
        client.delegations -= 1
        (<HostAccount>client.account).delegations -= 1
        self.count -= 1
        self.stateids.remove(delegation)
        for held in (delegation.lease, delegation.opened):
            if held is not None:
                self._engine.on_release(held)
        delegation.lease = delegation.opened = None
        self.on_gone(delegation)
        return self.opens.drop_if_idle(file)
