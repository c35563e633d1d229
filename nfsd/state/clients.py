"""Client records and leases: SETCLIENTID, EXCHANGE_ID, RENEW, DESTROY_CLIENTID, RECLAIM_COMPLETE, expiry.

RFC 7530 sections 9.1.1, 9.5, 16.29, 16.33, 16.34; RFC 8881 sections 2.4, 8.3, 18.35, 18.50, 18.51.
"""

from __future__ import annotations

from nfsd.state.types import Callback40, ExchangeIdResult


class Client:
    """One client record. Attributes are for reading."""

    clientid: int
    minor: int
    """0: made by SETCLIENTID; 1: by EXCHANGE_ID (serves 4.1 and 4.2)."""
    owner: bytes
    verifier: bytes
    principal: str
    confirmed: bool
    expired: bool
    """Gone: expired, destroyed or replaced. Nothing may be added to it."""
    courtesy: bool
    """Its lease ran out, its state is kept until somebody else wants it."""
    reclaim_complete: bool
    callback: Callback40 | None


class ClientTable:
    """All client records."""

    # -- v4.0 ----------------------------------------------------------------------------------------------------
    def setclientid(self, *, owner: bytes, verifier: bytes, principal: str, callback: Callback40) -> tuple[int, bytes]:
        """SETCLIENTID, the five cases of RFC 7530 section 16.33.5. Returns (clientid, 8-octet confirm verifier).
        Raises ClientInUse (with netid and address to return)."""
        raise NotImplementedError

    def setclientid_confirm(self, *, clientid: int, confirm: bytes, principal: str) -> Client:
        """SETCLIENTID_CONFIRM. Raises STALE_CLIENTID, CLID_INUSE."""
        raise NotImplementedError

    def renew(self, clientid: int, principal: str) -> None:
        """RENEW. Raises STALE_CLIENTID, EXPIRED."""
        raise NotImplementedError

    def client40(self, clientid: int) -> Client:
        """The confirmed v4.0 client of an OPEN, LOCK, RELEASE_LOCKOWNER…; its lease is renewed.
        Raises STALE_CLIENTID, EXPIRED."""
        raise NotImplementedError

    # -- v4.1 ----------------------------------------------------------------------------------------------------
    def exchange_id(
        self, *, owner: bytes, verifier: bytes, flags: int, principal: str, state_protect: int = 0
    ) -> ExchangeIdResult:
        """EXCHANGE_ID, the nine cases of RFC 8881 section 18.35.4. Raises CLID_INUSE, NOENT, NOT_SAME, PERM, INVAL
        (unknown flags), NOTSUPP (state protection other than SP4_NONE)."""
        raise NotImplementedError

    def destroy_clientid(self, clientid: int) -> None:
        """DESTROY_CLIENTID. Raises STALE_CLIENTID, CLIENTID_BUSY (sessions or state left)."""
        raise NotImplementedError

    def reclaim_complete(self, client: Client, *, one_fs: bool) -> None:
        """RECLAIM_COMPLETE. Raises COMPLETE_ALREADY. Needs stable storage before its reply."""
        raise NotImplementedError
