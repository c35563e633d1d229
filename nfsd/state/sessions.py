"""Sessions, slots, SEQUENCE: exactly-once semantics of v4.1.

A session's reply cache is its slots, allocated with it; what one client can make the server keep is bounded by
``limits.client_cached_octets``. Replies are cached as COMPOUND4res octets, so a retry may come on another connection or
transport. A connection is bound to the fore channel by the first SEQUENCE on it, unless the client is protected
(:mod:`nfsd.state.protection`): then by BIND_CONN_TO_SESSION.

RFC 8881 sections 2.10, 18.33, 18.34, 18.36, 18.37, 18.46.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nfsd.protocol import nfs4 as codes
from nfsd.protocol.nfs4 import channel_dir_from_client4, channel_dir_from_server4
from nfsd.state.accounts import SESSION
from nfsd.state.errors import Nfs4Error
from nfsd.state.protection import check
from nfsd.state.records import BackchannelRecord, SessionRecord, Slot
from nfsd.state.sequence import Sequencer
from nfsd.state.slots import SlotBudget
from nfsd.state.types import (
    UINT32_MAX,
    CallbackCredential,
    ChannelAttributes,
    Connection,
    CreateSessionResult,
    Gone,
)

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.engine import StateEngine

__all__ = ["NEW", "REPLAY", "UNCACHED", "Backchannel", "Session", "SessionTable", "Slot"]

NEW = 0
"""Verdict: execute the compound, then ``slot.finish``."""
REPLAY = 1
"""Verdict: send ``slot.reply``, execute nothing."""
UNCACHED = 2
"""Verdict: answer SEQUENCE with NFS4_OK and the operation after it (if any) with NFS4ERR_RETRY_UNCACHED_REP."""

CREATE_SESSION_FLAGS = (
    codes.CREATE_SESSION4_FLAG_PERSIST
    | codes.CREATE_SESSION4_FLAG_CONN_BACK_CHAN
    | codes.CREATE_SESSION4_FLAG_CONN_RDMA
)
MINIMUM_BACK_OPERATIONS = 2
"""CB_SEQUENCE and one more."""


class Backchannel(BackchannelRecord):
    """What callbacks need: program, credentials, attributes, and the connections bound for it."""

    __slots__ = ("attributes", "program", "sender")

    def __init__(
        self, program: int, credentials: tuple[CallbackCredential, ...], attributes: ChannelAttributes
    ) -> None:
        self.program = program
        self.credentials = credentials
        self.attributes = attributes
        self.sender: Any = None
        """The callback sender's own record: slots, and what is under way."""

    def suspect(self, connection: Connection) -> None:
        """A callback on the connection got no answer."""
        if connection in self.connections:
            self.silent.add(connection)

    def unbind(self, connection: Connection) -> None:
        """The connection carries no callbacks (any more)."""
        self.silent.discard(connection)
        if connection in self.connections:
            self.connections.remove(connection)


class Session(SessionRecord):
    """One session. Attributes are for reading outside the engine."""

    __slots__ = ("back", "flags", "minor", "octets")

    def __init__(
        self,
        sessionid: bytes,
        client: Client,
        flags: int,
        fore: ChannelAttributes,
        backchannel: Backchannel,
        minor: int = 1,
    ) -> None:
        super().__init__(sessionid, client, fore, backchannel)
        self.minor = minor
        """The minor version of its CREATE_SESSION, which is its callbacks' too."""
        self.flags = flags
        self.octets = 0
        """What it is counted as."""
        self.back = backchannel.attributes


def _keeps(direction: int, fore: bool, back: bool) -> bool:
    """Whether what BIND_CONN_TO_SESSION asks for leaves a connection the channels it has."""
    if direction == channel_dir_from_client4.CDFC4_FORE:
        return not back
    if direction == channel_dir_from_client4.CDFC4_BACK:
        return not fore
    return fore if direction == channel_dir_from_client4.CDFC4_FORE_OR_BOTH else back


class SessionTable:
    """All sessions."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self.by_id: dict[bytes, Session] = {}
        """For reading elsewhere; always this very dict."""
        self._bound: dict[Connection, set[Session]] = {}
        self.budget = SlotBudget(engine.limits)
        self.sequencer = Sequencer(engine, self)
        self.sequence = self.sequencer.sequence
        self.on_backchannel: Callable[[Session], None] | None = None
        """Called when a connection has been bound to a session's backchannel; must not call back into the engine."""

    # -- CREATE_SESSION ------------------------------------------------------------------------------------------
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
        machine: str = "",
        connection: Connection,
        callbacks: bool = True,
        minor: int = 1,
        host: str = "",
    ) -> CreateSessionResult:
        """CREATE_SESSION: confirms the client, replays by its own sequence (RFC 8881 section 18.36.4). The connection
        is bound to the session: fore, and back too when asked and ``callbacks`` (the transport can carry them). Raises
        STALE_CLIENTID, SEQ_MISORDERED, CLID_INUSE, WRONG_CRED, TOOSMALL, INVAL, NOSPC at limits. Needs stable storage
        before its reply when it replaced an older incarnation."""
        if flags & ~CREATE_SESSION_FLAGS:
            raise Nfs4Error(codes.NFS4ERR_INVAL, f"CREATE_SESSION flags {flags:#x}")
        wants_back = bool(flags & codes.CREATE_SESSION4_FLAG_CONN_BACK_CHAN)
        self._check_channels(fore, back, wants_back)
        client = self._engine.clients.lookup(clientid)
        if client is None or not client.minor:
            raise Nfs4Error(codes.NFS4ERR_STALE_CLIENTID)
        if host not in client.hosts:
            # Clientids are no secret, and neither is the sequence: it is neither used nor told.
            raise Nfs4Error(codes.NFS4ERR_CLID_INUSE, "a client of another host")
        if client.principal != principal:
            raise Nfs4Error(codes.NFS4ERR_CLID_INUSE)  # likewise: it is told no session's id, and costs no sequence
        check(client, codes.OP_CREATE_SESSION, machine)
        if sequenceid == client.create_seqid:
            return self._replay_creation(client, connection)
        if sequenceid != (client.create_seqid + 1) & UINT32_MAX:
            raise Nfs4Error(codes.NFS4ERR_SEQ_MISORDERED)
        if len(client.sessions) >= self._engine.limits.sessions:
            self._failed_creation(client, sequenceid, codes.NFS4ERR_NOSPC)
        octets = self._octets(client, fore)
        if not self._engine.ledger.room(client.account, octets):
            if self._engine.ledger.over_share(client.account, octets):
                self._failed_creation(client, sequenceid, codes.NFS4ERR_NOSPC)
            raise Nfs4Error(codes.NFS4ERR_DELAY, "no room for sessions")  # not this sequence's result: it asks again
        asked, fore = fore, self._negotiate_fore(client, fore)
        back = replace(back, headerpadsize=0, rdma_ird=())  # what remains MUST NOT be changed, or need not be
        older = self._engine.clients.replaced_by(client) if not client.confirmed else None
        if older is not None:
            # Section 18.36.4, phase 3: the restarted client's former incarnation ends here.
            self._engine.expire_client(older, Gone.RESTARTED)
        if not client.confirmed:
            self._engine.clients.make_confirmed(client)
        client.introduce()
        backchannel = Backchannel(cb_program, cb_credentials, back)
        session = Session(self._new_id(), client, 0, fore, backchannel, minor)
        session.octets = octets
        client.account.charge(octets)
        self.by_id[session.sessionid] = session
        client.sessions[session.sessionid] = session
        self.budget.open(session)
        lacking = min(asked.maxrequests, self._engine.limits.slots) - fore.maxrequests
        if lacking > 0:
            others = [one for one in self.by_id.values() if one is not session]
            self.budget.relieve(lacking * fore.maxresponsesize_cached, others, session)
        self.bind_fore(connection, session)
        if wants_back and callbacks:
            self._bind_back(connection, session)
            session.flags = codes.CREATE_SESSION4_FLAG_CONN_BACK_CHAN
        result = CreateSessionResult(session.sessionid, sequenceid, session.flags, fore, back)
        client.create_seqid = sequenceid
        client.create_result = result
        return result

    def _octets(self, client: Client, fore: ChannelAttributes) -> int:
        """What a session costs beside its slots: the one reply too that it is granted when there is no room for
        replies."""
        cached = min(fore.maxresponsesize_cached, self._engine.limits.cached_reply_octets)
        return SESSION + (0 if self.budget.affordable(cached, client) else cached)

    def _check_channels(self, fore: ChannelAttributes, back: ChannelAttributes, wants_back: bool) -> None:
        """Refuse channels nothing could ever be sent on (RFC 8881 section 18.36.3, ca_maxresponsesize)."""
        least = self._engine.limits.minimum_channel_octets
        if fore.maxrequestsize < least or fore.maxresponsesize < least or fore.maxoperations == 0:
            raise Nfs4Error(codes.NFS4ERR_TOOSMALL, "fore channel")
        if fore.maxrequests == 0 or len(fore.rdma_ird) > 1 or len(back.rdma_ird) > 1:
            raise Nfs4Error(codes.NFS4ERR_INVAL)
        if not wants_back and not (back.maxrequestsize or back.maxresponsesize):
            return
        if (
            back.maxrequestsize < least
            or back.maxresponsesize < least
            or back.maxoperations < MINIMUM_BACK_OPERATIONS
            or back.maxrequests == 0
        ):
            raise Nfs4Error(codes.NFS4ERR_TOOSMALL, "backchannel")

    def _negotiate_fore(self, client: Client, asked: ChannelAttributes) -> ChannelAttributes:
        """What is granted: never more than asked, never more than the limits; slots within the client's cache
        budget."""
        limits = self._engine.limits
        response = min(asked.maxresponsesize, limits.response_octets)
        cached = min(asked.maxresponsesize_cached, limits.cached_reply_octets, response)
        slots = min(asked.maxrequests, limits.slots, max(1, self.budget.affordable(cached, client)))
        return ChannelAttributes(
            headerpadsize=0,
            maxrequestsize=min(asked.maxrequestsize, limits.request_octets),
            maxresponsesize=response,
            maxresponsesize_cached=cached,
            maxoperations=min(asked.maxoperations, limits.operations),
            maxrequests=slots,
        )

    def _replay_creation(self, client: Client, connection: Connection) -> CreateSessionResult:
        """The retry of the last CREATE_SESSION; it may come on a new connection, which it binds as the original did."""
        result = client.create_result
        if isinstance(result, int):
            raise Nfs4Error(result)
        session = self.by_id.get(result.sessionid)
        if session is not None:
            self.bind_fore(connection, session)
            if result.flags & codes.CREATE_SESSION4_FLAG_CONN_BACK_CHAN:
                self._bind_back(connection, session)
        return result

    @staticmethod
    def _failed_creation(client: Client, sequenceid: int, status: int) -> None:
        """A failure after the sequence was accepted is the cached result (section 18.36.4, phase 2)."""
        client.create_seqid = sequenceid
        client.create_result = status
        raise Nfs4Error(status)

    def _new_id(self) -> bytes:
        """Random: whoever knows it may use the session of a client without protection (RFC 8881 section 21)."""
        while True:
            made = self._engine.random(16)
            if made not in self.by_id:
                return made

    # -- connections and the backchannel -------------------------------------------------------------------------
    def bind_connection(
        self,
        connection: Connection,
        sessionid: bytes,
        direction: int,
        rdma_mode: bool,
        *,
        callbacks: bool = True,
        machine: str = "",
    ) -> tuple[int, bool]:
        """BIND_CONN_TO_SESSION. Returns (channel_dir_from_server4, use_conn_in_rdma_mode). ``callbacks``: the transport
        can carry them. Raises BADSESSION, WRONG_CRED, INVAL."""
        session = self.by_id.get(sessionid)
        if session is None:
            raise Nfs4Error(codes.NFS4ERR_BADSESSION)
        check(session.client, codes.OP_BIND_CONN_TO_SESSION, machine)
        if direction not in (
            channel_dir_from_client4.CDFC4_FORE,
            channel_dir_from_client4.CDFC4_BACK,
            channel_dir_from_client4.CDFC4_FORE_OR_BOTH,
            channel_dir_from_client4.CDFC4_BACK_OR_BOTH,
        ):
            raise Nfs4Error(codes.NFS4ERR_INVAL)
        if not self._room(connection, session):
            raise Nfs4Error(codes.NFS4ERR_INVAL, "too many connections")
        fore, back = connection in session.connections, connection in session.backchannel.connections
        if (fore or back) and not _keeps(direction, fore, back):
            # Section 18.34.3: an association may be made once more, and added to, but not changed.
            raise Nfs4Error(codes.NFS4ERR_INVAL, "the connection is used otherwise")
        granted = 0
        if direction != channel_dir_from_client4.CDFC4_BACK:
            self.bind_fore(connection, session)
            granted |= channel_dir_from_server4.CDFS4_FORE
        if direction != channel_dir_from_client4.CDFC4_FORE and callbacks:
            self._bind_back(connection, session)
            granted |= channel_dir_from_server4.CDFS4_BACK
        if not granted:
            raise Nfs4Error(codes.NFS4ERR_INVAL, "this connection carries no callbacks")
        session.client.renew()
        # Stepping an existing connection up to RDMA is not offered; the client asked only if it said so.
        return granted, False

    def backchannel_ctl(
        self, session: Session, cb_program: int, cb_credentials: tuple[CallbackCredential, ...], machine: str = ""
    ) -> None:
        """BACKCHANNEL_CTL; without credentials the former ones stay (RFC 8881 section 18.33.3: it adds). Raises
        WRONG_CRED."""
        check(session.client, codes.OP_BACKCHANNEL_CTL, machine)
        session.backchannel.program = cb_program
        if cb_credentials:
            session.backchannel.credentials, session.backchannel.lapsed = cb_credentials, False

    def connection_closed(self, connection: Connection) -> None:
        """The connection is bound to nothing any more."""
        for session in self._bound.pop(connection, ()):
            session.connections.discard(connection)
            session.backchannel.unbind(connection)

    def _room(self, connection: Connection, session: Session) -> bool:
        return connection in session.connections or len(session.connections) < self._engine.limits.connections

    def bind_fore(self, connection: Connection, session: Session) -> None:
        """Requests of the session may come on the connection."""
        session.connections.add(connection)
        self._bound.setdefault(connection, set()).add(session)

    def _bind_back(self, connection: Connection, session: Session) -> None:
        session.wants_backchannel = True
        connections = session.backchannel.connections
        if connection not in connections and len(connections) < self._engine.limits.connections:
            connections.append(connection)
        session.backchannel.silent.discard(connection)  # the client says anew that it listens there
        self._bound.setdefault(connection, set()).add(session)
        if self.on_backchannel is not None:
            self.on_backchannel(session)

    # -- the end -------------------------------------------------------------------------------------------------
    def destroy_session(
        self, sessionid: bytes, *, connection: Connection, own: Session | None, machine: str = ""
    ) -> None:
        """DESTROY_SESSION; ``own`` is the session of the compound's SEQUENCE, if it has one. Raises BADSESSION,
        WRONG_CRED, CONN_NOT_BOUND_TO_SESSION, DELAY (another slot is executing)."""
        session = self.by_id.get(sessionid)
        if session is None:
            raise Nfs4Error(codes.NFS4ERR_BADSESSION)
        check(session.client, codes.OP_DESTROY_SESSION, machine)
        bound = connection in session.connections or connection in session.backchannel.connections
        if not bound and (session.connections or session.backchannel.connections):
            # RFC 8881 section 18.37.3. A session that lost all its connections may be destroyed over a new one: clients
            # that reconnect only to unmount send no SEQUENCE first.
            raise Nfs4Error(codes.NFS4ERR_CONN_NOT_BOUND_TO_SESSION)
        if sum(slot.in_use for slot in session.slots) > (1 if own is session else 0):
            raise Nfs4Error(codes.NFS4ERR_DELAY)
        session.client.renew()
        self.drop(session)

    def drop(self, session: Session) -> None:
        """Take a session out of all tables."""
        if self.by_id.pop(session.sessionid, None) is not None:
            session.client.account.charge(-session.octets)
        session.client.sessions.pop(session.sessionid, None)
        self.budget.close(session)
        for connection in {*session.connections, *session.backchannel.connections}:
            bound = self._bound.get(connection)
            if bound is not None:
                bound.discard(session)
                if not bound:
                    del self._bound[connection]
        session.connections.clear()
        if session.backchannel.sender is not None:
            session.backchannel.sender.session_gone()
        session.backchannel.connections.clear()
        session.backchannel.silent.clear()
