"""Sessions, slots, SEQUENCE: exactly-once semantics of v4.1 (RFC 8881 sections 2.10, 18.34, 18.36, 18.37, 18.46)."""

from __future__ import annotations

from nfsd.state.clients import Client
from nfsd.state.types import CallbackCredential, ChannelAttributes, Connection, CreateSessionResult

NEW = 0
"""Verdict: execute the compound, then ``slot.finish``."""
REPLAY = 1
"""Verdict: send ``slot.reply``, execute nothing."""
UNCACHED = 2
"""Verdict: answer SEQUENCE with NFS4_OK and the operation after it (if any) with NFS4ERR_RETRY_UNCACHED_REP."""


class Slot:
    """One slot of the fore channel (a Cython class)."""

    seqid: int
    in_use: bool
    cachethis: bool
    reply: bytes | None
    """The encoded COMPOUND4res (after the RPC accepted-reply header) of the last request, if it was kept."""

    def finish(self, reply: bytes | None) -> None:
        """The compound is over; keep ``reply`` for replays (give None when sa_cachethis was false or it is longer
        than ``session.fore.maxresponsesize_cached``; a reply of SEQUENCE alone should always be given)."""
        raise NotImplementedError


class Backchannel:
    """What callbacks need: program, credentials, attributes, slots, and the connections bound for it."""

    program: int
    credentials: tuple[CallbackCredential, ...]
    attributes: ChannelAttributes
    connections: list[Connection]


class Session:
    """One session. Attributes are for reading."""

    sessionid: bytes
    client: Client
    fore: ChannelAttributes
    back: ChannelAttributes
    flags: int
    backchannel: Backchannel
    highest_slotid: int
    """sr_highest_slotid."""
    target_highest_slotid: int
    """sr_target_highest_slotid."""

    def status_flags(self) -> int:
        """sr_status_flags now."""
        raise NotImplementedError


class SessionTable:
    """All sessions."""

    def create_session(
        self,
        *,
        clientid: int,
        sequenceid: int,
        flags: int,
        fore: ChannelAttributes,
        back: ChannelAttributes,
        cb_program: int,
        cb_credentials: tuple[CallbackCredential, ...],
        principal: str,
        connection: Connection,
    ) -> CreateSessionResult:
        """CREATE_SESSION: confirms the client, replays by its own sequence (RFC 8881 section 18.36.4). The connection
        is bound to the session (fore; back too when asked). Raises STALE_CLIENTID, SEQ_MISORDERED, CLID_INUSE,
        TOOSMALL, INVAL, NOSPC/DELAY at limits. A failure with its sequenceid consumed is replayed as the same failure.
        Needs stable storage before its reply when it replaced an older incarnation."""
        raise NotImplementedError

    def sequence(
        self,
        connection: Connection,
        sessionid: bytes,
        sequenceid: int,
        slotid: int,
        highest_slotid: int,
        cachethis: bool,
        fingerprint: int = 0,
    ) -> tuple[Session, Slot, int]:
        """SEQUENCE. Returns (session, slot, verdict NEW | REPLAY | UNCACHED); renews the lease; binds the connection's
        fore channel implicitly (RFC 8881 section 2.10.3.1, SP4_NONE). ``fingerprint`` (any 32-bit digest of principal
        and request) tells a false retry. Raises BADSESSION, BADSLOT, BAD_HIGH_SLOT, SEQ_MISORDERED, SEQ_FALSE_RETRY,
        DELAY (the original is still executing)."""
        raise NotImplementedError

    def bind_connection(
        self, connection: Connection, sessionid: bytes, direction: int, rdma_mode: bool
    ) -> tuple[int, bool]:
        """BIND_CONN_TO_SESSION. Returns (channel_dir_from_server4, use_conn_in_rdma_mode). Raises BADSESSION, INVAL."""
        raise NotImplementedError

    def backchannel_ctl(
        self, session: Session, cb_program: int, cb_credentials: tuple[CallbackCredential, ...]
    ) -> None:
        """BACKCHANNEL_CTL."""
        raise NotImplementedError

    def destroy_session(self, sessionid: bytes, *, connection: Connection, own: Session | None) -> None:
        """DESTROY_SESSION; ``own`` is the session of the compound's SEQUENCE, if it has one. Raises BADSESSION,
        CONN_NOT_BOUND_TO_SESSION, DELAY (another slot is executing)."""
        raise NotImplementedError
