"""Client records and leases: SETCLIENTID, EXCHANGE_ID, RENEW, DESTROY_CLIENTID, RECLAIM_COMPLETE.

A record is found by clientid (boot epoch, then a counter, 32 bits each) and by name; a name has at most one confirmed
and one unconfirmed record, and v4.0's names are apart from v4.1's. Expiry and the release of state are in the engine.

RFC 7530 sections 9.1.1, 9.5, 16.29, 16.33, 16.34; RFC 8881 sections 2.4, 8.3, 18.35, 18.50, 18.51.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nfsd.protocol import nfs4 as codes
from nfsd.state.errors import ClientInUse, Nfs4Error
from nfsd.state.records import ClientRecord
from nfsd.state.types import UINT32_MAX, Callback40, CreateSessionResult, ExchangeIdResult

if TYPE_CHECKING:
    from nfsd.state.engine import StateEngine
    from nfsd.state.owners import LockOwner, OpenOwner
    from nfsd.state.records import StateEntry
    from nfsd.state.sessions import Session

EXCHANGE_ID_FLAGS = (
    codes.EXCHGID4_FLAG_SUPP_MOVED_REFER
    | codes.EXCHGID4_FLAG_SUPP_MOVED_MIGR
    | codes.EXCHGID4_FLAG_SUPP_FENCE_OPS
    | codes.EXCHGID4_FLAG_BIND_PRINC_STATEID
    | codes.EXCHGID4_FLAG_MASK_PNFS
    | codes.EXCHGID4_FLAG_UPD_CONFIRMED_REC_A
)
"""What a client may set in eia_flags (RFC 8881 section 18.35.3, RFC 7862 section 14.1.3)."""


class Client(ClientRecord):
    """One client record. Attributes are for reading outside the engine."""

    __slots__ = (
        "cached_octets",
        "callback",
        "callback_path",
        "clientid",
        "confirm",
        "confirmed",
        "create_result",
        "create_seqid",
        "delegations",
        "engine",
        "expired",
        "lock_owners",
        "lock_states",
        "locks",
        "may_reclaim",
        "minor",
        "open_owners",
        "owner",
        "principal",
        "reclaim_complete",
        "recorded",
        "sessions",
        "states",
        "verifier",
    )

    def __init__(
        self, engine: StateEngine, minor: int, clientid: int, owner: bytes, verifier: bytes, principal: str
    ) -> None:
        self.engine = engine
        self.minor = minor
        """0: made by SETCLIENTID; 1: by EXCHANGE_ID (serves 4.1 and 4.2); NLM: of NFSv3's lock manager."""
        self.clientid = clientid
        self.owner = owner
        self.verifier = verifier
        self.principal = principal
        self.confirmed = False
        self.expired = False
        """Gone: expired, destroyed or replaced. Nothing may be added to it."""
        self.courtesy = False
        self.lease_end = engine.now() + engine.limits.lease
        self.may_reclaim = False
        self.reclaim_complete = False
        self.unheard = False
        self.recorded = False
        """On stable storage as of this instance."""
        self.confirm = b""
        self.callback: Callback40 | None = None
        self.callback_path: Any = None
        """v4.0: the callback sender's own record of the way to ``callback``."""
        # The CREATE_SESSION reply cache (RFC 8881 section 18.36.4): the result, or the status, of create_seqid.
        self.create_seqid = 0
        self.create_result: CreateSessionResult | int = codes.NFS4ERR_SEQ_MISORDERED
        self.sessions: dict[bytes, Session] = {}
        self.states: dict[bytes, StateEntry] = {}
        self.open_owners: dict[bytes, OpenOwner] = {}
        self.lock_owners: dict[bytes, LockOwner] = {}
        self.lock_states = 0
        self.locks = 0
        """Locked ranges."""
        self.delegations = 0
        """Delegations it has, revoked ones not among them."""
        self.revoked = 0
        self.cached_octets = 0
        """Reply cache promised to its sessions."""

    def renew(self) -> None:
        """Its lease begins anew; what was kept out of courtesy is its own again."""
        engine = self.engine
        self.lease_end = engine.now() + engine.limits.lease
        if self.courtesy:
            self.courtesy = False
            engine.watch(self.lease_end)  # the timer was set for the end of the courtesy
        if self.unheard:
            engine.heard(self)

    @property
    def busy(self) -> bool:
        """Whether a request of one of its sessions is executing."""
        return any(slot.in_use for session in self.sessions.values() for slot in session.slots)


class ClientTable:
    """All client records."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self._confirmed: dict[tuple[int, bytes], Client] = {}
        self._unconfirmed: dict[tuple[int, bytes], Client] = {}
        self._by_number: dict[int, Client] = {}
        self._waiting_confirm: dict[int, tuple[bytes, Callback40]] = {}
        """v4.0: callback updates of confirmed records, by clientid: (confirm verifier, callback)."""
        self._issued = 0

    # -- for the engine ------------------------------------------------------------------------------------------
    def by_number(self, number: int) -> Client | None:
        """The record with this counter (the low half of a clientid)."""
        return self._by_number.get(number)

    def new_clientid(self) -> int:
        """A clientid for a client that this table does not know."""
        self._issued += 1
        return self._engine.epoch << 32 | self._issued

    def was_issued(self, number: int) -> bool:
        """Whether this instance has ever given out this counter."""
        return 0 < number <= self._issued

    def all(self) -> list[Client]:
        """Every record."""
        return list(self._by_number.values())

    def lookup(self, clientid: int) -> Client | None:
        """The record of a clientid, confirmed or not."""
        client = self._by_number.get(clientid & UINT32_MAX)
        return client if client is not None and client.clientid == clientid else None

    def forget(self, client: Client) -> None:
        """Take a record out of the tables (the engine has released what it held)."""
        self._by_number.pop(client.clientid & UINT32_MAX, None)
        self._waiting_confirm.pop(client.clientid, None)
        for table in (self._confirmed, self._unconfirmed):
            if table.get((client.minor, client.owner)) is client:
                del table[client.minor, client.owner]

    def make_confirmed(self, client: Client) -> None:
        """Confirm a record; the confirmed one it replaces must have been expired before."""
        key = (client.minor, client.owner)
        self._unconfirmed.pop(key, None)
        self._confirmed[key] = client
        client.confirmed = True
        client.may_reclaim = self._engine.grace.may_reclaim(client.minor, client.owner, client.principal)
        client.renew()
        self._engine.watch(client.lease_end)

    def confirmed_of(self, client: Client) -> Client | None:
        """The confirmed record under the same name."""
        return self._confirmed.get((client.minor, client.owner))

    # -- v4.0 ----------------------------------------------------------------------------------------------------
    def setclientid(self, *, owner: bytes, verifier: bytes, principal: str, callback: Callback40) -> tuple[int, bytes]:
        """SETCLIENTID, the five cases of RFC 7530 section 16.33.5. Returns (clientid, 8-octet confirm verifier).
        Raises ClientInUse (with netid and address to return)."""
        self._check_owner(owner)
        confirmed = self._confirmed.get((0, owner))
        if confirmed is not None and confirmed.principal != principal:
            if confirmed.states and not confirmed.courtesy:
                held = confirmed.callback
                raise ClientInUse(held.netid if held else "", held.address if held else "")
            self._engine.expire_client(confirmed)
            confirmed = None
        unconfirmed = self._unconfirmed.get((0, owner))
        if unconfirmed is not None:
            self._engine.expire_client(unconfirmed)
        confirm = self._engine.random(8)
        if confirmed is not None and confirmed.verifier == verifier:
            # The same incarnation: it probably changes its callback; the clientid stays, and so does its state.
            self._waiting_confirm[confirmed.clientid] = (confirm, callback)
            return confirmed.clientid, confirm
        if confirmed is not None:
            self._waiting_confirm.pop(confirmed.clientid, None)
        client = self._new(0, owner, verifier, principal)
        client.callback = callback
        client.confirm = confirm
        return client.clientid, confirm

    def setclientid_confirm(self, *, clientid: int, confirm: bytes, principal: str) -> Client:
        """SETCLIENTID_CONFIRM (RFC 7530 section 16.34.5). Raises STALE_CLIENTID, CLID_INUSE."""
        client = self.lookup(clientid)
        if client is None or client.minor:
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID)
        update = self._waiting_confirm.get(clientid)
        if update is not None and update[0] == confirm:
            self._check_principal(client, principal)
            del self._waiting_confirm[clientid]
            client.confirm, client.callback = update
            return client
        if client.confirm != confirm:
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID)
        self._check_principal(client, principal)
        if client.confirmed:
            return client  # the reply to the first confirmation was lost
        older = self.confirmed_of(client)
        if older is not None:
            # Its principal was found to agree when the new record was made.
            self._engine.expire_client(older)
        self.make_confirmed(client)
        return client

    def renew(self, clientid: int, principal: str) -> Client:
        """RENEW: the client. Raises STALE_CLIENTID, EXPIRED."""
        # Any principal may renew: RFC 7530 section 16.29.5 allows EACCES only for flavors the client did not use.
        return self.client40(clientid)

    def client40(self, clientid: int) -> Client:
        """The confirmed v4.0 client of an OPEN, LOCK, RELEASE_LOCKOWNER…; its lease is renewed.
        Raises STALE_CLIENTID, EXPIRED."""
        client = self.lookup(clientid)
        if client is None:
            if clientid >> 32 == self._engine.epoch and self.was_issued(clientid & UINT32_MAX):
                raise Nfs4Error(codes.NFS4ERR_EXPIRED)
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID)
        if client.minor or not client.confirmed:
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID)
        client.renew()
        return client

    # -- v4.1 ----------------------------------------------------------------------------------------------------
    def exchange_id(
        self, *, owner: bytes, verifier: bytes, flags: int, principal: str, state_protect: int = 0
    ) -> ExchangeIdResult:
        """EXCHANGE_ID, the nine cases of RFC 8881 section 18.35.4. Raises CLID_INUSE, NOENT, NOT_SAME, PERM, INVAL
        (unknown flags, SP4_NONE aside an unknown protection), ENCR_ALG_UNSUPP (SP4_SSV)."""
        if flags & ~EXCHANGE_ID_FLAGS:
            raise Nfs4Error(codes.NFS4ERR_INVAL, f"EXCHANGE_ID flags {flags:#x}")
        if state_protect == codes.state_protect_how4.SP4_SSV:
            raise Nfs4Error(codes.NFS4ERR_ENCR_ALG_UNSUPP)  # as servers without SSV answer it
        if state_protect != codes.state_protect_how4.SP4_NONE:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "machine credentials need RPCSEC_GSS")
        self._check_owner(owner)
        confirmed = self._confirmed.get((1, owner))
        if flags & codes.EXCHGID4_FLAG_UPD_CONFIRMED_REC_A:
            return self._update(confirmed, verifier, principal)
        if confirmed is not None:
            if confirmed.principal != principal:
                # Case 3, collision: the record gives way only if nothing is lost with it.
                if confirmed.states and not confirmed.courtesy:
                    raise Nfs4Error(codes.NFS4ERR_CLID_INUSE)
                self._engine.expire_client(confirmed)
            elif confirmed.verifier == verifier:
                # Case 2: a retry, or the client finds out whether it can trunk.
                return self._exchanged(confirmed)
            # Case 5, client restart: the old record stays until CREATE_SESSION confirms the new one.
        unconfirmed = self._unconfirmed.get((1, owner))
        if unconfirmed is not None:
            self._engine.expire_client(unconfirmed)  # case 4
        return self._exchanged(self._new(1, owner, verifier, principal))  # case 1

    def _update(self, confirmed: Client | None, verifier: bytes, principal: str) -> ExchangeIdResult:
        """EXCHANGE_ID with UPD_CONFIRMED_REC_A: cases 6 to 9."""
        if confirmed is None:
            raise Nfs4Error(codes.NFS4ERR_NOENT)
        if confirmed.verifier != verifier:
            raise Nfs4Error(codes.NFS4ERR_NOT_SAME)
        if confirmed.principal != principal:
            raise Nfs4Error(codes.NFS4ERR_PERM)
        return self._exchanged(confirmed)

    def _exchanged(self, client: Client) -> ExchangeIdResult:
        flags = codes.EXCHGID4_FLAG_USE_NON_PNFS
        if client.confirmed:
            flags |= codes.EXCHGID4_FLAG_CONFIRMED_R
        return ExchangeIdResult(client.clientid, (client.create_seqid + 1) & UINT32_MAX, flags)

    def destroy_clientid(self, clientid: int) -> None:
        """DESTROY_CLIENTID. Raises STALE_CLIENTID, CLIENTID_BUSY (sessions or state left)."""
        client = self.lookup(clientid)
        if client is None or not client.minor:
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID)
        if not client.courtesy and (client.sessions or any(not entry.status for entry in client.states.values())):
            raise Nfs4Error(codes.NFS4ERR_CLIENTID_BUSY)
        self._engine.expire_client(client)

    def reclaim_complete(self, client: Client, *, one_fs: bool) -> None:
        """RECLAIM_COMPLETE. Raises COMPLETE_ALREADY. Needs stable storage before its reply."""
        if one_fs:
            return  # no file system of ours migrates: NFS4_OK and otherwise ignored (RFC 8881 section 18.51.3)
        if client.reclaim_complete:
            raise Nfs4Error(codes.NFS4ERR_COMPLETE_ALREADY)
        client.reclaim_complete = True
        self._engine.record_client(client)
        self._engine.reclaims_over(client)

    # -- inside --------------------------------------------------------------------------------------------------
    def _check_owner(self, owner: bytes) -> None:
        if len(owner) > self._engine.limits.owner_octets:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "client name too long")

    @staticmethod
    def _check_principal(client: Client, principal: str) -> None:
        if client.principal != principal:
            raise Nfs4Error(codes.NFS4ERR_CLID_INUSE)

    def _new(self, minor: int, owner: bytes, verifier: bytes, principal: str) -> Client:
        """An unconfirmed record; room is made for it at the expense of those nobody waits for."""
        engine = self._engine
        if len(self._unconfirmed) >= engine.limits.unconfirmed_clients:
            engine.expire_client(next(iter(self._unconfirmed.values())))
        if len(self._by_number) >= engine.limits.clients and not self._make_room():
            raise Nfs4Error(codes.NFS4ERR_DELAY if minor else codes.NFS4ERR_RESOURCE, "client records")
        client = Client(engine, minor, self.new_clientid(), owner, verifier, principal)
        self._by_number[self._issued] = client
        self._unconfirmed[minor, owner] = client
        engine.watch(client.lease_end)
        return client

    def _make_room(self) -> bool:
        """Drop one record: an unconfirmed one, or the courtesy client that has been away longest."""
        if self._unconfirmed:
            self._engine.expire_client(next(iter(self._unconfirmed.values())))
            return True
        away = [client for client in self._by_number.values() if client.courtesy]
        if not away:
            return False
        self._engine.expire_client(min(away, key=lambda client: client.lease_end))
        return True
