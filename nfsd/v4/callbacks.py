"""Callbacks: what the server asks of its clients (CB_RECALL, CB_NOTIFY_LOCK, CB_OFFLOAD…), for every minor version.

Owns :class:`CallbackService`: which path a callback takes, how long it may take, and what is counted. In 4.1 and later
it goes over a connection bound to one of the client's sessions (:mod:`nfsd.v4.callback_session`), in 4.0 over one that
the server makes (:mod:`nfsd.v4.callback_dial`). Each call is a task by itself: a slow or dead client holds up nobody.

RFC 7530 sections 10.2.1 and 15.3, RFC 8881 sections 2.10.3.1 and 20.
"""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error, StateEngine
from nfsd.state.clients import Client
from nfsd.state.records import backchannel_usable
from nfsd.state.sessions import Session
from nfsd.v4.callback_dial import PROBE_AGAIN, Dialer, Path40
from nfsd.v4.callback_messages import CallbackError, CompoundReply, Operation, encoded
from nfsd.v4.callback_proof import Turned
from nfsd.v4.callback_session import BackchannelSender
from rpcrdma.firewall import spawn
from rpcrdma.gss.contexts import Context
from rpcrdma.gss.initiator import Initiator
from rpcrdma.log_limits import limited_logger

__all__ = ["CALLBACK_TIME", "CallbackError", "CallbackService", "Operation"]

log = limited_logger(__name__)

CALLBACK_TIME = 15.0
"""Seconds a callback may take, unless its sender says otherwise."""
CROSSED = "crossed"
"""The result that is counted for a callback which its answer shows to have been needless: what it asks for was under
way already."""
_CROSSING = 0.25
"""Seconds that what a callback asks for may come behind an answer that says there is nothing to be done."""
_BACKOFF = 0.1
_LONGEST_BACKOFF = 2.0
_SWEEP = 10.0


async def set_within(event: asyncio.Event | None, seconds: float) -> bool:
    """Whether an event is set by then; None: one that never is."""
    if event is None:
        await asyncio.sleep(seconds)
        return False
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


class CallbackService:
    """All callbacks of the server."""

    def __init__(self, engine: StateEngine, *, anywhere: bool = False) -> None:
        """``anywhere``: v4.0 clients may have callbacks sent to other addresses than their own."""
        self._engine = engine
        self._xid = random.getrandbits(32)
        self._dialer = Dialer(self._next_xid, anywhere=anywhere)
        self._find: Callable[[bytes], Context | None] = lambda handle: None
        self._turned: WeakValueDictionary[tuple[bytes, bytes], Turned] = WeakValueDictionary()
        self._senders: set[BackchannelSender] = set()
        self._probes: set[asyncio.Task[bool]] = set()
        self._recalling: set[asyncio.Task[None]] = set()
        self._waiting: dict[Client, asyncio.Event] = {}
        """Clients for whose next path somebody waits."""
        self._swept = 0.0
        self.on_call: Callable[[Client], None] = lambda client: None
        """Told of each client that is called."""
        self._closed = False
        self.counters: collections.Counter[tuple[str, str]] = collections.Counter()
        """Callbacks that are over, by operation and result: ``ok``, the nfsstat4's name, CROSSED, or CallbackError's
        reason."""
        engine.sessions.on_backchannel = self._bound

    def prove(self, initiator: Initiator, find: Callable[[bytes], Context | None]) -> None:
        """Call clients by Kerberos from now on that want it: v4.0's with contexts that are begun with them, the others
        with theirs, which ``find`` finds by their handles."""
        self._dialer.initiator, self._find = initiator, find

    def turned(self, principal: str, handles: p.gss_cb_handles4) -> Turned | None:
        """A context of a principal's for callbacks to it; None: there is no such context. The same pair of handles is
        one sequence of calls, in however many sessions. Raises INVAL if it is to protect them in two ways."""
        context = self._find(handles.gcbp_handle_from_server)
        if context is None or context.principal != principal:
            return None
        pair = context.handle, handles.gcbp_handle_from_client
        turned = self._turned.get(pair)
        if turned is None:
            turned = self._turned[pair] = Turned(context, handles.gcbp_handle_from_client, handles.gcbp_service)
        if turned.service != handles.gcbp_service:
            raise Nfs4Error(p.NFS4ERR_INVAL, "another service for the same RPCSEC_GSS handles")
        return turned

    # -- what the operations use ---------------------------------------------------------------------------------
    def client_can_be_called(self, client: Client) -> bool:
        """Whether callbacks are believed to reach the client now. Cheap. For a v4.0 client whose path is not known, or
        has been down for a while, this starts a probe; the answer will be better next time."""
        if client.minor:
            return backchannel_usable(client)  # who is not confirmed, or gone, has no session
        if client.expired or not client.confirmed:
            return False
        path = self._path(client)
        if path is None:
            return False
        if path.up:
            return True
        if path.up is None or monotonic() - path.checked >= PROBE_AGAIN:
            self._start_probe(path)
        return False

    def callback_path_down(self, client: Client) -> bool:
        """Whether a v4.0 client's path is known to be down. Starts a probe as ``client_can_be_called`` does."""
        if self.client_can_be_called(client):
            return False
        path = self._path(client)
        return path is None or path.up is False

    async def probe(self, client: Client) -> bool:
        """Find out whether callbacks reach a v4.0 client (CB_NULL), unless that is known; of a session it is believed
        until the opposite is shown."""
        if client.minor or not client.confirmed or client.expired:
            return self.client_can_be_called(client)
        path = self._path(client)
        if path is None:
            return False
        if path.up:
            return True
        return await asyncio.shield(self._start_probe(path))

    async def call(
        self,
        client: Client,
        operations: Sequence[Operation],
        *,
        timeout: float = CALLBACK_TIME,  # noqa: ASYNC109 - the time is shared among attempts, not one await's
        referring: Sequence[p.referring_call_list4] = (),
        wait_for_path: bool = False,
        come: asyncio.Event | None = None,
    ) -> list[Any]:
        """Call the client: ``operations`` are pairs of OP_CB_… and its arguments, without CB_SEQUENCE.

        Returns the results (CB_…4res) of those that ran: the last one's status may be an error, and then those behind
        it are missing. NFS4ERR_DELAY is tried again as long as there is time, then returned like any other status.
        The client may have executed the operations more than once.

        ``timeout``: seconds in all. ``referring``: the requests whose replies may still be on their way to the client,
        and which the operations refer to (RFC 8881 section 2.10.6.3; ignored in v4.0). ``wait_for_path``: when no path
        is up now, wait for the client to make one. ``come``: set once what is asked for has come, and need not be
        asked for again; an error in answer has then crossed it on its way.

        Raises CallbackError: no path, no answer in time, or an answer to the call as a whole that is a refusal. The
        client may have executed the operations even so, or may be about to.
        """
        names = [p.CALLBACK_OPERATIONS[number].name for number, _ in operations]
        self.on_call(client)
        try:
            reply = await self._until_done(client, operations, timeout, referring, wait_for_path, come)
        except CallbackError as error:
            for name in names:
                self.counters[name, error.reason] += 1
            log.info("%s to client %016x: %s", "+".join(names), client.clientid, error)
            raise
        failed = ""
        if reply.status:
            crossed = come is not None and await set_within(come, _CROSSING)
            failed = CROSSED if crossed else p.nfsstat4(reply.status).name
        for name, position in zip(names, range(len(reply.results)), strict=False):
            last = position == len(reply.results) - 1
            self.counters[name, failed if last and failed else "ok"] += 1
        return reply.results

    def recall_slots(self, session: Session) -> None:
        """Tell a client that a session is to have fewer slots, if it can be told (CB_RECALL_SLOT, RFC 8881 section
        20.8); its next SEQUENCE tells it anyway."""
        if session.backchannel.usable and not self._closed:
            spawn(self._recall_slots(session), self._recalling)

    async def _recall_slots(self, session: Session) -> None:
        arguments = p.CB_RECALL_SLOT4args(session.target_highest_slotid)
        result = "ok"
        try:
            reply = await self._sender(session).call([(p.OP_CB_RECALL_SLOT, arguments)], (), CALLBACK_TIME, False)
            if reply.status:
                result = p.nfsstat4(reply.status).name
        except CallbackError as error:
            result = error.reason
        self.counters["CB_RECALL_SLOT", result] += 1

    async def _until_done(
        self,
        client: Client,
        operations: Sequence[Operation],
        seconds: float,
        referring: Sequence[p.referring_call_list4],
        wait_for_path: bool,
        come: asyncio.Event | None,
    ) -> CompoundReply:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        backoff = _BACKOFF
        while True:
            left = max(end - loop.time(), 0.0)
            if client.minor:
                reply = await self._in_session(client, operations, left, referring, wait_for_path, come)
            else:
                reply = await self._over_dialed(client, operations, left)
            if reply.status and not reply.results:
                raise CallbackError("refused", f"CB_COMPOUND failed as a whole: {p.nfsstat4(reply.status).name}")
            if reply.status != p.NFS4ERR_DELAY or loop.time() + backoff >= end:
                return reply
            if await set_within(come, backoff):
                return reply
            backoff = min(2 * backoff, _LONGEST_BACKOFF)

    # -- in a session --------------------------------------------------------------------------------------------
    async def _in_session(
        self,
        client: Client,
        operations: Sequence[Operation],
        seconds: float,
        referring: Sequence[p.referring_call_list4],
        wait_for_path: bool,
        come: asyncio.Event | None,
    ) -> CompoundReply:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        tried: set[Session] = set()
        while True:
            session = self._best_session(client, tried)
            if session is None:
                if not wait_for_path or client.expired:
                    raise CallbackError("path_down", "no session has a backchannel that works")
                await self._wait_for_path(client, end - loop.time())
                if come is not None and come.is_set():
                    raise CallbackError(CROSSED, "what was to be asked for has come")
                tried.clear()
                continue
            tried.add(session)
            try:
                return await self._sender(session).call(operations, referring, end - loop.time(), wait_for_path)
            except CallbackError as error:
                if error.reason not in ("path_down", "refused") or self._best_session(client, tried) is None:
                    raise

    @staticmethod
    def _best_session(client: Client, tried: set[Session]) -> Session | None:
        for session in client.sessions.values():
            if session not in tried and session.backchannel.usable:
                return session
        return None

    async def _wait_for_path(self, client: Client, seconds: float) -> None:
        event = self._waiting.setdefault(client, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            raise CallbackError("path_down", "no session has a backchannel that works") from None

    def _bound(self, session: Session) -> None:
        """A connection has been bound to the session's backchannel."""
        for one in session.client.sessions.values():
            if one.backchannel.sender is not None:
                one.backchannel.sender.bound()
        event = self._waiting.pop(session.client, None)
        if event is not None:
            event.set()

    def _sender(self, session: Session) -> BackchannelSender:
        if self._closed:
            raise CallbackError("path_down", "the server is stopping")
        sender: BackchannelSender | None = session.backchannel.sender
        if sender is None:
            sender = BackchannelSender(session, self._engine.limits.backchannel_slots, self._next_xid)
            session.backchannel.sender = sender
            self._senders.add(sender)
        return sender

    # -- v4.0 ----------------------------------------------------------------------------------------------------
    def _path(self, client: Client) -> Path40 | None:
        """The path to a client's present callback address."""
        path: Path40 | None = client.callback_path
        if client.callback is None or self._closed:
            return None
        if path is not None and path.callback is client.callback:
            return path
        if path is None or path.callback != client.callback:
            if path is not None:
                path.gone = True
            path = client.callback_path = Path40(self._dialer, client.callback)
        else:
            path.callback = client.callback
            if not path.up:
                path.up = None  # the client has confirmed the address anew: it may listen there now
        return path

    def _start_probe(self, path: Path40) -> asyncio.Task[bool]:
        if path.probing is None or path.probing.done():
            path.probing = spawn(self._probe(path), self._probes)
        return path.probing

    async def _probe(self, path: Path40) -> bool:
        reason = "ok"
        try:
            async with asyncio.timeout(CALLBACK_TIME):
                await path.null()
        except TimeoutError:
            reason = "timeout"
        except CallbackError as error:
            reason = error.reason
        self.counters["CB_NULL", reason] += 1
        self._found(path, reason == "ok")
        return reason == "ok"

    @staticmethod
    def _found(path: Path40, up: bool) -> None:
        if path.up is not up:
            log.info("callbacks to %s: the path is %s", path.callback.address, "up" if up else "down")
        path.up = up
        path.checked = monotonic()

    async def _over_dialed(self, client: Client, operations: Sequence[Operation], seconds: float) -> CompoundReply:
        path = self._path(client) if client.confirmed and not client.expired else None
        if path is None:
            raise CallbackError("path_down", "the client has no callback address")
        octets = encoded(operations)
        try:
            async with asyncio.timeout(seconds):
                reply = await path.compound(len(operations), octets)
        except TimeoutError:
            self._found(path, False)
            raise CallbackError("timeout", "the client has not answered in time") from None
        except CallbackError:
            self._found(path, False)
            raise
        self._found(path, True)
        return reply

    # -- housekeeping --------------------------------------------------------------------------------------------
    def _next_xid(self) -> int:
        self._xid = (self._xid + 1) & 0xFFFFFFFF
        return self._xid

    def sweep(self, now: float) -> None:
        """Give up what is not needed any more; to be called about once a second."""
        if now - self._swept < _SWEEP:
            return
        self._swept = now
        self._dialer.sweep(now)
        for sender in [one for one in self._senders if one.session.client.expired or one.orphaned]:
            self._senders.discard(sender)
            sender.close()
        for client in [one for one in self._waiting if one.expired]:
            self._waiting.pop(client).set()

    @property
    def connections(self) -> int:
        """Connections made to v4.0 clients."""
        return self._dialer.open

    async def close(self) -> None:
        """Give up every callback under way."""
        self._closed = True
        self._engine.sessions.on_backchannel = None
        for sender in self._senders:
            sender.close()
        tasks: list[asyncio.Task[Any]] = [*self._probes, *self._recalling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._dialer.close()
