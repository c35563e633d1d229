"""Client records and leases: SETCLIENTID, EXCHANGE_ID, RENEW, DESTROY_CLIENTID, RECLAIM_COMPLETE.

A record is found by clientid, and by name and host. A client's name is its own claim, and with AUTH_SYS so is its
principal, so a name means something on one host only: the same name from another address is another client, who takes
nothing from the first and does not keep it from coming either. What shows that somebody on another address is the same
instance (a host with several addresses, one whose address has changed) is the verifier, or the id of a session: nobody
else knows those. A name on a host has at most one confirmed and one unconfirmed record, and v4.0's names are apart from
v4.1's. Expiry and the release of state are in the engine.

Clientids, session ids and stateids are random: who has not been given one cannot name it.

RFC 7530 sections 9.1.1, 9.5, 16.29, 16.33, 16.34; RFC 8881 sections 2.4, 8.3, 18.35, 18.50, 18.51.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import CLIENT
from nfsd.state.charges import HostAccount
from nfsd.state.errors import ClientInUse, Nfs4Error
from nfsd.state.protection import Protection, check, is_itself
from nfsd.state.records import ClientRecord
from nfsd.state.room import Room
from nfsd.state.types import UINT32_MAX, Callback40, CreateSessionResult, ExchangeIdResult, Gone

if TYPE_CHECKING:
    from nfsd.state.engine import StateEngine
    from nfsd.state.owners import LockOwner, OpenOwner
    from nfsd.state.records import StateEntry
    from nfsd.state.sessions import Session

_REMEMBERED: Final = 65536
"""Clientids and tags of clients that are gone: later ones are told EXPIRED, those before that STALE."""
_HOSTS: Final = 16
"""Addresses of one client."""

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
        "cached_octets", "callback", "callback_path", "claim", "confirm", "confirmed", "create_result",
        "create_seqid", "engine", "introduced", "introduced_until", "lock_owners", "locks", "owner",
        "principal", "protection", "sessions", "trusted", "trusted_until",
        "verifier",
    )  # fmt: skip

    def __init__(
        self,
        engine: StateEngine,
        minor: int,
        clientid: int,
        owner: bytes,
        verifier: bytes,
        principal: str,
        host: str = "",
    ) -> None:
        self.engine = engine
        self.clock, self.lease = engine.now, engine.limits.lease
        self.longest_result = engine.limits.seqid_reply_octets
        self.minor = minor
        """0: made by SETCLIENTID; 1: by EXCHANGE_ID (serves 4.1 and 4.2); NLM: of NFSv3's lock manager."""
        self.clientid = clientid
        self.owner = owner
        self.verifier = verifier
        self.principal = principal
        self.protection: Protection | None = None
        self.hosts = {host: None}
        self.account: HostAccount = engine.ledger.join(self, host)
        """What it has is on this account."""
        self.tag = b""
        """What its stateids begin with, behind the epoch."""
        self.confirmed = False
        self.expired = False
        """Gone: expired, destroyed or replaced. Nothing may be added to it."""
        self.courtesy = False
        self.introduced = engine.now()
        self.lease_end = self.introduced_until = self.introduced + engine.limits.lease
        """When its lease ends, now and as of its introduction, sessions included: if it was not heard of since."""
        self.trusted, self.trusted_until = 0, 0.0
        """Leases that it has had on trust, one behind the other, and the end of the last one."""
        self.may_reclaim = False
        self.claim = ""
        """The principal of its record on stable storage that says so."""
        self.reclaim_complete = False
        self.unheard = False
        self.recorded = False
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

    def introduce(self) -> None:
        """It is confirmed, or has a new session: so far it has done nothing with that."""
        heard = self.lease_end != self.introduced_until
        self.renew()
        if not heard:
            self.introduced_until = self.lease_end

    def filled(self) -> None:
        """It gets its first state."""
        self.engine.clients.room.filled(self)

    def emptied(self) -> None:
        """It has no state any more."""
        self.engine.clients.room.emptied(self)

    @property
    def host(self) -> str:
        """The address it was introduced from."""
        return next(iter(self.hosts))

    @property
    def stored_principal(self) -> str:
        """Its principal on stable storage, with what tells its instance from others of its name."""
        return f"{self.principal} {self.host} {self.verifier.hex()}"

    @property
    def held(self) -> bool:
        """Whether something would be lost with it: it has state or sessions, and a lease."""
        return bool(self.states or self.sessions) and not self.courtesy

    @property
    def busy(self) -> bool:
        """Whether a request of one of its sessions is executing."""
        return any(slot.in_use for session in self.sessions.values() for slot in session.slots)


class ClientTable:
    """All client records."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self._confirmed: dict[tuple[int, bytes, str], Client] = {}
        """By minor version, name, and each of its hosts."""
        self._unconfirmed: dict[tuple[int, bytes, str], Client] = {}
        self._instances: dict[tuple[int, bytes, bytes], Client] = {}
        """The confirmed ones by minor version, name, and verifier."""
        self._by_id: dict[int, Client] = {}
        self._tags: dict[bytes, Client] = {}
        self.room = Room(engine.limits.clients, engine.now, self._claims)
        """Who gives way to newcomers."""
        self._gone: dict[int | bytes, None] = {}
        """Clientids and tags of clients that are no more, the latest ones."""
        self._waiting_confirm: dict[int, tuple[bytes, Callback40]] = {}
        """v4.0: callback updates of confirmed records, by clientid: (confirm verifier, callback)."""

    # -- for the engine ------------------------------------------------------------------------------------------
    def tagged(self, tag: bytes) -> Client | None:
        """The client whose stateids begin with this."""
        return self._tags.get(tag)

    def give_tag(self, client: Client) -> None:
        """Choose what the client's stateids begin with."""
        while client.tag in self._tags or not client.tag:
            client.tag = self._engine.random(4)
        self._tags[client.tag] = client

    def new_clientid(self) -> int:
        """A clientid that was never given out, by an earlier instance either."""
        while True:
            made = int.from_bytes(self._engine.random(8), "big")
            if made and made not in self._by_id and made not in self._gone:
                return made

    def was_issued(self, name: int | bytes) -> bool:
        """Whether this instance has given out this clientid or tag, as far as it remembers."""
        return name in self._gone

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Client]:
        """Every record."""
        return list(self._by_id.values())

    def lookup(self, clientid: int) -> Client | None:
        """The record of a clientid, confirmed or not."""
        return self._by_id.get(clientid)

    def forget(self, client: Client, why: Gone) -> None:
        """Take a record out of the tables (the engine has released what it held). A client that has lost nothing is
        to begin again as after a restart."""
        remembered = client.confirmed and why is not Gone.IDLE
        self._waiting_confirm.pop(client.clientid, None)
        if self._by_id.pop(client.clientid, None) is not None:
            self.room.leave(client)
            if remembered:
                self._gone[client.clientid] = None
        self._engine.ledger.leave(client)
        if self._tags.pop(client.tag, None) is not None and remembered:
            self._gone[client.tag] = None
        while len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        for host in client.hosts:
            for table in (self._confirmed, self._unconfirmed):
                if table.get((client.minor, client.owner, host)) is client:
                    del table[client.minor, client.owner, host]
        if self._instances.get((client.minor, client.owner, client.verifier)) is client:
            del self._instances[client.minor, client.owner, client.verifier]

    def make_confirmed(self, client: Client) -> None:
        """Confirm a record; the confirmed one it replaces must have been expired before."""
        key = (client.minor, client.owner, client.host)
        self._unconfirmed.pop(key, None)
        self._confirmed[key] = client
        self._instances[client.minor, client.owner, client.verifier] = client
        client.confirmed = True
        client.claim = self._engine.grace.claim(
            client.minor, client.owner, client.principal, client.host, client.verifier
        )
        client.may_reclaim = bool(client.claim)
        self.room.confirmed(client)
        client.introduce()
        self._engine.watch(client.lease_end)

    def replaced_by(self, client: Client) -> Client | None:
        """The confirmed record under the same name, on the same host, which ends when this client is confirmed. Raises
        CLID_INUSE for another principal's with state: it may have come to the address since this one was introduced."""
        older = self._confirmed.get((client.minor, client.owner, client.host))
        if older is not None and older.principal != client.principal and older.held:
            raise Nfs4Error(codes.NFS4ERR_CLID_INUSE, "another principal's client is at this address now")
        return older

    def meet(self, client: Client, host: str) -> None:
        """A confirmed client has shown itself at an address: by its verifier, or by the id of a session."""
        if host in client.hosts:
            return
        if len(client.hosts) >= _HOSTS:
            latest = next(reversed(client.hosts))
            del client.hosts[latest]
            if self._confirmed.get((client.minor, client.owner, latest)) is client:
                del self._confirmed[client.minor, client.owner, latest]
        client.hosts[host] = None
        self._confirmed.setdefault((client.minor, client.owner, host), client)
        self._engine.on_moved(client, host)

    def _known(
        self, minor: int, owner: bytes, verifier: bytes, principal: str, host: str, machine: str = ""
    ) -> Client | None:
        """The confirmed record that somebody who introduces itself is to be held against."""
        instance = self._instances.get((minor, owner, verifier))
        if instance is not None and is_itself(instance, principal, machine):
            self.meet(instance, host)
            return instance
        return self._confirmed.get((minor, owner, host))

    # -- v4.0 ----------------------------------------------------------------------------------------------------
    def setclientid(
        self, *, owner: bytes, verifier: bytes, principal: str, callback: Callback40, host: str = ""
    ) -> tuple[int, bytes]:
        """SETCLIENTID, the five cases of RFC 7530 section 16.33.5. Returns (clientid, 8-octet confirm verifier).
        Raises ClientInUse (with netid and address to return)."""
        self._check_owner(owner)
        confirmed = self._known(0, owner, verifier, principal, host)
        if confirmed is not None and confirmed.principal != principal:
            if confirmed.held:
                held = confirmed.callback
                raise ClientInUse(held.netid if held else "", held.address if held else "")
            self._engine.expire_client(confirmed, Gone.RESTARTED)
            confirmed = None
        unconfirmed = self._unconfirmed.get((0, owner, host))
        if unconfirmed is not None:
            self._engine.expire_client(unconfirmed)
        confirm = self._engine.random(8)
        if confirmed is not None and confirmed.verifier == verifier:
            # The same incarnation: it probably changes its callback; the clientid stays, and so does its state.
            self._waiting_confirm[confirmed.clientid] = (confirm, callback)
            return confirmed.clientid, confirm
        if confirmed is not None:
            self._waiting_confirm.pop(confirmed.clientid, None)
        client = self._new(0, owner, verifier, principal, host)
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
        older = self.replaced_by(client)
        if older is not None:
            self._engine.expire_client(older, Gone.RESTARTED)
        self.make_confirmed(client)
        return client

    def renew(self, clientid: int, host: str = "") -> Client:
        """RENEW: the client. Any principal of its hosts may renew, as RFC 7530 section 16.29.5 allows EACCES only for
        flavors that the client did not use. Raises STALE_CLIENTID, EXPIRED."""
        return self.client40(clientid, host)

    def client40(self, clientid: int, host: str | None = None) -> Client:
        """The confirmed v4.0 client of an OPEN, LOCK, RELEASE_LOCKOWNER…; its lease is renewed. ``host``: where that
        comes from; whoever is denied a lock is told its holder's clientid (RFC 7530 section 16.10.4), so that alone
        shows nothing. Raises STALE_CLIENTID, EXPIRED."""
        client = self._by_id.get(clientid)
        if client is None:
            raise Nfs4Error(codes.NFS4ERR_EXPIRED if self.was_issued(clientid) else codes.NFS4ERR_STALE_CLIENTID)
        if client.minor or not client.confirmed:
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID)
        if host is not None and host not in client.hosts:
            # One whose address has changed introduces itself again, with the same verifier.
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID, "a client of another host")
        client.renew()
        return client

    # -- v4.1 ----------------------------------------------------------------------------------------------------
    def exchange_id(
        self,
        *,
        owner: bytes,
        verifier: bytes,
        flags: int,
        principal: str,
        machine: str = "",
        protection: Protection | None = None,
        host: str = "",
    ) -> ExchangeIdResult:
        """EXCHANGE_ID, the nine cases of RFC 8881 section 18.35.4; ``protection`` is what a new record gets. Raises
        CLID_INUSE, NOENT, NOT_SAME, PERM, WRONG_CRED, INVAL (unknown flags)."""
        if flags & ~EXCHANGE_ID_FLAGS:
            raise Nfs4Error(codes.NFS4ERR_INVAL, f"EXCHANGE_ID flags {flags:#x}")
        self._check_owner(owner)
        confirmed = self._known(1, owner, verifier, principal, host, machine)
        if flags & codes.EXCHGID4_FLAG_UPD_CONFIRMED_REC_A:
            return self._update(confirmed, verifier, principal, machine)
        if confirmed is not None:
            if not is_itself(confirmed, principal, machine):
                # Case 3, collision: the record gives way only if nothing is lost with it.
                if confirmed.held:
                    raise Nfs4Error(codes.NFS4ERR_CLID_INUSE)
                self._engine.expire_client(confirmed, Gone.RESTARTED)
            elif confirmed.verifier == verifier:
                # Case 2: a retry, or the client finds out whether it can trunk.
                return self._exchanged(confirmed)
            # Case 5, client restart: the old record stays until CREATE_SESSION confirms the new one.
        unconfirmed = self._unconfirmed.get((1, owner, host))
        if unconfirmed is not None:
            self._engine.expire_client(unconfirmed)  # case 4
        client = self._new(1, owner, verifier, principal, host)  # case 1
        if protection is not None:
            client.protection, client.binds = protection, protection.binds
        return self._exchanged(client)

    def _update(self, confirmed: Client | None, verifier: bytes, principal: str, machine: str) -> ExchangeIdResult:
        """EXCHANGE_ID with UPD_CONFIRMED_REC_A: cases 6 to 9."""
        if confirmed is None:
            raise Nfs4Error(codes.NFS4ERR_NOENT)
        if confirmed.verifier != verifier:
            raise Nfs4Error(codes.NFS4ERR_NOT_SAME)
        if confirmed.principal != principal:
            raise Nfs4Error(codes.NFS4ERR_PERM)
        check(confirmed, codes.OP_EXCHANGE_ID, machine)
        return self._exchanged(confirmed)

    def _exchanged(self, client: Client) -> ExchangeIdResult:
        # There may be referrals after any reload, and who may give one MUST say so (RFC 8881 section 18.35.3).
        flags = codes.EXCHGID4_FLAG_USE_NON_PNFS | codes.EXCHGID4_FLAG_SUPP_MOVED_REFER
        if client.confirmed:
            flags |= codes.EXCHGID4_FLAG_CONFIRMED_R
        sequenceid = (client.create_seqid + 1) & UINT32_MAX
        return ExchangeIdResult(client.clientid, sequenceid, flags, client.protection)

    def destroy_clientid(self, clientid: int, host: str = "", machine: str = "") -> None:
        """DESTROY_CLIENTID. Raises STALE_CLIENTID (another host's, too), WRONG_CRED, CLIENTID_BUSY (sessions or state
        left)."""
        client = self.lookup(clientid)
        if client is None or not client.minor or host not in client.hosts:
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID)
        check(client, codes.OP_DESTROY_CLIENTID, machine)
        if not client.courtesy and (client.sessions or any(not entry.status for entry in client.states.values())):
            raise Nfs4Error(codes.NFS4ERR_CLIENTID_BUSY)
        self._engine.expire_client(client, Gone.LEFT)

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

    def _new(self, minor: int, owner: bytes, verifier: bytes, principal: str, host: str) -> Client:
        """An unconfirmed record; room is made for it at the expense of those nobody waits for."""
        engine, ledger, room = self._engine, self._engine.ledger, self.room
        if room.unconfirmed >= engine.limits.unconfirmed_clients:
            engine.expire_client(room.first_unconfirmed())
        account = ledger.account(host)
        full = (ledger.has_clients(account) and not self._replace(room.of_own(account))) or (
            ledger.has_records(account, len(self._by_id)) and not self._replace(room.of_all(account))
        )
        ledger.refusals += full
        if full or not ledger.room(account, CLIENT + 3 * len(owner)):
            raise Nfs4Error(codes.NFS4ERR_DELAY if minor else codes.NFS4ERR_RESOURCE, "client records")
        client = Client(engine, minor, self.new_clientid(), owner, verifier, principal, host)
        self.give_tag(client)
        self._by_id[client.clientid] = client
        self._unconfirmed[minor, owner, host] = client
        room.enter(client)
        engine.watch(client.lease_end)
        return client

    def _replace(self, client: Client | None) -> bool:
        """Drop a client, if there is one, to make room for another."""
        if client is None:
            return False
        if client.courtesy:
            self._engine.expire_client(client, Gone.ROOM)
        else:
            self._engine.expire_client(client, Gone.IDLE)
        return True

    def _claims(self, client: Client) -> bool:
        """Whether the client may have something to reclaim."""
        return client.may_reclaim and self._engine.grace.active
