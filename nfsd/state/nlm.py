"""The clients of NFSv3's lock manager (NLM) among those of NFSv4: the same tables of opens, locks and waiters.

A client is a caller's name at an address. It has no lease: what it holds ends with UNLOCK, with the word that it has
been restarted (NSM), or with this server. Its records on stable storage say whom to tell of a restart, and who may
reclaim; a record goes when the client has held nothing for about a lease, so that a client that locks and unlocks
costs no disk.

Every file that a client locks is held open for it by one owner, as if it had opened it under NFSv4: delegations are
recalled for it, and not given against it. A DOS share reservation (SHARE) is an open of its own owner.

XNFS chapters on NLM and NSM; RFC 1813 section 6, appendix II. Imports the engine's tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import CLIENT
from nfsd.state.charges import HostAccount
from nfsd.state.clients import Client
from nfsd.state.errors import Nfs4Error
from nfsd.state.owners import OpenOwner
from nfsd.state.records import LockState, OpenState, StateEntry
from nfsd.state.room import Crowd
from nfsd.state.types import NLM, Gone

if TYPE_CHECKING:
    from nfsd.state.engine import StateEngine
    from nfsd.state.files import FileState

_LOCKS: Final = b"locks"
_SHARE: Final = b"share:"


class NlmClient(Client):
    """One client of the lock manager."""

    __slots__ = ("address", "local_address", "name", "since", "state", "under_way")

    def __init__(self, engine: StateEngine, clientid: int, name: bytes, address: str, local_address: str) -> None:
        stored = record_name(name, address)
        super().__init__(engine, NLM, clientid, stored, b"", f"{address} {local_address}", address)
        self.name = name
        """What it calls itself (caller_name)."""
        self.address = address
        self.local_address = local_address
        """This server's address, as the client knows it: it takes calls from there."""
        self.state: int | None = None
        """Its NSM state number, as of its latest LOCK."""
        self.under_way = 0
        """Calls of it that are being executed."""
        self.since = engine.now()
        """Since when it holds nothing, as far as has been seen."""
        self.confirmed = True

    @property
    def stored_principal(self) -> str:
        """Both addresses: SM_NOTIFY goes to the one and comes from the other."""
        return self.principal

    @property
    def reclaim_complete(self) -> bool:
        """It does not say so: nothing but reclaims is granted while the grace period lasts, and none afterwards."""
        return not self.engine.grace.active

    @reclaim_complete.setter
    def reclaim_complete(self, value: bool) -> None:
        pass

    @property
    def idle(self) -> bool:
        """Whether it holds, waits for and asks for nothing."""
        return not (self.states or self.under_way or self.engine.locks.waits.waits_for_any(self))

    def filled(self) -> None:
        """It gets its first state."""
        self.engine.nlm.stirred(self)

    def emptied(self) -> None:
        """It has no state any more, or waits for nothing."""
        self.engine.nlm.calmed(self)


def record_name(name: bytes, address: str) -> bytes:
    """What a client is called on stable storage, and in here."""
    return name + b"\0" + address.encode()


def lock_owner(svid: int, oh: bytes) -> bytes:
    """The lock owner that a client means by the two."""
    return svid.to_bytes(4, "big") + oh


def owner_parts(owner: bytes) -> tuple[int, bytes]:
    """svid and oh of a lock owner of this protocol."""
    return int.from_bytes(owner[:4], "big"), owner[4:]


class NlmTable:
    """All clients of the lock manager."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self._clients: dict[bytes, NlmClient] = {}
        self._ids: dict[int, NlmClient] = {}
        self._idle = Crowd(engine.limits.clients)
        """Those that hold, wait for and ask for nothing, by network and host: they give way to newcomers."""

    def all(self) -> list[NlmClient]:
        """Every client."""
        return list(self._clients.values())

    def by_id(self, clientid: int) -> NlmClient | None:
        """The client that a denied lock's holder is; None: it is one of NFSv4."""
        return self._ids.get(clientid)

    def find(self, name: bytes, address: str) -> NlmClient | None:
        """A client that is known."""
        return self._clients.get(record_name(name, address))

    def client(self, name: bytes, address: str, local_address: str) -> NlmClient:
        """A client, known from now on. Raises RESOURCE when there are too many."""
        engine = self._engine
        found = self._clients.get(record_name(name, address))
        if found is not None:
            found.local_address = local_address
            return found
        ledger = engine.ledger
        account = ledger.account(address)
        if ledger.has_clients(account):
            self._make_room(account)
        if ledger.has_records(account, len(self._clients)):
            self._make_room(None)
        if not ledger.room(account, CLIENT + 3 * (len(name) + len(address) + 1)):
            raise Nfs4Error(codes.NFS4ERR_RESOURCE, "no room")
        made = NlmClient(engine, engine.clients.new_clientid(), name, address, local_address)
        engine.clients.give_tag(made)
        made.may_reclaim = engine.grace.may_reclaim(NLM, made.owner, made.principal)
        self._clients[made.owner] = made
        self._ids[made.clientid] = made
        self._idle.enter(made)
        engine.watch(engine.now() + engine.limits.lease)
        return made

    def _make_room(self, account: HostAccount | None) -> None:
        """Forget a client that holds nothing: one of a host's, or of the network, and in that the host, with most of
        them; that which has held nothing for longest. Raises RESOURCE. In the same time however many there are."""
        crowd = self._idle.everybody.crowd() if account is None else self._idle.host(account)
        idle = next(iter(crowd.silent), None)
        if idle is None:
            self._engine.ledger.refusals += 1
            raise Nfs4Error(codes.NFS4ERR_RESOURCE, "clients of the lock manager")
        self.drop(self._ids[idle.clientid])

    def begin(self, client: NlmClient) -> None:
        """A call of the client's is worked on, to be ended by ``end``: it is not forgotten meanwhile."""
        client.under_way += 1
        self.stirred(client)

    def end(self, client: NlmClient) -> None:
        """Such a call is over."""
        client.under_way -= 1
        self.calmed(client)

    def stirred(self, client: NlmClient) -> None:
        """It holds something, or asks for it."""
        self._idle.leave(client)

    def calmed(self, client: NlmClient) -> None:
        """It may hold, wait for and ask for nothing now."""
        if client.idle and client not in self._idle.all and self._ids.get(client.clientid) is client:
            self._idle.enter(client)

    def drop(self, client: NlmClient, why: Gone = Gone.SILENT) -> None:
        """Give up everything a client has: it was restarted, or has held nothing for long."""
        self._clients.pop(client.owner, None)
        self._ids.pop(client.clientid, None)
        self._idle.leave(client)
        self._engine.expire_client(client, why)

    def restarted(self, name: bytes, address: str, state: int) -> list[NlmClient]:
        """The host at an address was restarted. Gives up what it had before; returns which clients that was."""
        gone = self.meant(name, address, state)
        for client in gone:
            self.drop(client, Gone.RESTARTED)
        return gone

    def meant(self, name: bytes, address: str, state: int) -> list[NlmClient]:
        """Whom the host at an address means that says it was restarted, under a name that may be longer or shorter than
        what it calls itself as a caller; ``state`` is its number now."""
        there = [client for client in self._clients.values() if client.address == address]
        # Several hosts may share an address (NAT); one alone may call itself what it likes.
        meant = there if len(there) == 1 else [client for client in there if _same_host(client.name, name)]
        return [client for client in meant if client.state != state]

    def free_all(self, name: bytes, address: str) -> NlmClient | None:
        """FREE_ALL: give up what a caller has; the client, if it is known."""
        client = self.find(name, address)
        if client is not None:
            self.drop(client)
        return client

    def sweep(self, now: float) -> None:
        """Forget clients that have held nothing for about a lease."""
        patience = self._engine.limits.lease
        for client in self.all():
            if not client.idle:
                client.since = now
            elif now >= client.since + patience:
                self.drop(client)
        if self._clients:
            self._engine.watch(now + patience)

    # -- opens ---------------------------------------------------------------------------------------------------
    def open(self, client: NlmClient, file_key: bytes, *, exclusive: bool, reclaim: bool) -> OpenState:
        """The open under which a client locks a file, made if need be. Raises as ``OpenTable.reserve``."""
        access = codes.OPEN4_SHARE_ACCESS_BOTH if exclusive else codes.OPEN4_SHARE_ACCESS_READ
        owner = self._engine.opens.owner(client, _LOCKS)
        found = owner.states.get(file_key)
        if found is not None and found.access & access == access:
            return found
        return self._reserved(owner, file_key, access, 0, reclaim=reclaim)

    def open_of(self, client: NlmClient, file_key: bytes) -> OpenState | None:
        """The open under which a client locks a file, if it does."""
        owner = client.open_owners.get(_LOCKS)
        return owner.states.get(file_key) if owner is not None else None

    def lock_of(self, client: NlmClient, file_key: bytes, owner: bytes) -> LockState | None:
        """The locks of one owner on a file, if it has any."""
        opened, holder = self.open_of(client, file_key), client.lock_owners.get(owner)
        return opened.lock_states.get(holder) if opened is not None and holder is not None else None

    def settle(self, client: NlmClient, file: FileState) -> None:
        """After an operation: close the file for the client unless it has a lock there or waits for one."""
        engine = self._engine
        opened = self.open_of(client, file.key)
        if opened is not None:
            held = file.locks.owners if file.locks is not None else {}
            for state in list(opened.lock_states.values()):
                if state.owner not in held and not engine.locks.waits.waits_on(client, file, state.owner.owner):
                    engine.locks.release(state)
            if not opened.lock_states and not engine.locks.waits.waits_on(client, file):
                engine.opens.release(opened)
        engine.opens.drop_if_idle(file)

    def take_away(self, opened: StateEntry) -> None:
        """Close a file for its client, whatever it holds of it: it is exported no more."""
        engine = self._engine
        for waiter in [waiter for waiter in opened.file.waiters if waiter.client is opened.client]:
            engine.locks.waits.gone(waiter.client, waiter.owner, opened.file)
        if isinstance(opened, OpenState):
            engine.opens.release(opened)

    # -- SHARE, UNSHARE ------------------------------------------------------------------------------------------
    def share(
        self, client: NlmClient, oh: bytes, file_key: bytes, access: int, deny: int, *, reclaim: bool
    ) -> OpenState:
        """SHARE: reserve access and deny (as OPEN4_SHARE_*) instead of what the owner had on the file. Raises as
        ``OpenTable.reserve``; what it had stays, then."""
        opens = self._engine.opens
        opens.check_claim(client, reclaim=reclaim)
        owner = opens.owner(client, _SHARE + oh)
        before = owner.states.get(file_key)
        if before is None:
            return self._reserved(owner, file_key, access, deny, reclaim=reclaim)
        had, through = (before.access, before.deny), before.opened
        opens.release(before)
        try:
            return self._reserved(opens.owner(client, _SHARE + oh), file_key, access, deny, reclaim=reclaim)
        except Nfs4Error:
            again = self._reserved(opens.owner(client, _SHARE + oh), file_key, *had, reclaim=reclaim)
            again.opened = through
            raise

    def unshare(self, client: NlmClient, oh: bytes, file_key: bytes) -> None:
        """UNSHARE: what was never reserved is no error."""
        owner = client.open_owners.get(_SHARE + oh)
        found = owner.states.get(file_key) if owner is not None else None
        if found is not None:
            self._engine.opens.release(found)

    def _reserved(self, owner: OpenOwner, file_key: bytes, access: int, deny: int, *, reclaim: bool) -> OpenState:
        opens = self._engine.opens
        try:
            with opens.reserve(owner, file_key, access, deny, reclaim=reclaim) as reservation:
                return reservation.commit()
        except Nfs4Error:
            if not owner.states and not owner.pending:
                opens.forget_owner(owner)
            raise


def _same_host(one: bytes, other: bytes) -> bool:
    """Whether two names may be one host's: equal, or one without its domain."""
    one, other = one.lower(), other.lower()
    if b"." in one and b"." in other:
        return one == other
    return one.partition(b".")[0] == other.partition(b".")[0]
