"""What all NFSv4 operations work with, put together once: file service, exports, state engine, stable storage.

Owns :class:`Nfs4Server` and the turning of the engine's timer; imports no operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol, cast

from nfsd.exports import Export, ExportTable
from nfsd.idnames import IdNames
from nfsd.pricing import host_of_any
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error, StateEngine
from nfsd.state.clients import Client
from nfsd.state.files import FileState
from nfsd.state.records import Delegation, OpenState
from nfsd.state.types import NLM, LocalRange, Unread
from nfsd.v4.attributes import ServerFacts
from nfsd.v4.blocked import BlockedLocks
from nfsd.v4.callbacks import CallbackService
from nfsd.v4.copies import Copies
from nfsd.v4.counts import OperationCounts
from nfsd.v4.pseudofs import PseudoFileSystem
from nfsd.v4.recalls import Recalls
from nfsd.versions import V4
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Time
from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.program import Transport

log = limited_logger(__name__)


class Store(Protocol):
    """Stable storage of client records."""

    async def flush(self, engine: StateEngine) -> None:
        """Return when every change the engine has made so far is on stable storage."""


class Nfs4Server:
    """The NFSv4 part of the server."""

    def __init__(
        self,
        service: FileService,
        exports: ExportTable,
        engine: StateEngine,
        store: Store,
        *,
        started: Time,
        identity: bytes,
        member: bytes = b"",
        max_transfer: int = 1 << 20,
        names: IdNames | None = None,
        leases: bool = True,
        callbacks_anywhere: bool = False,
        versions: int = V4,
        callbacks: Callable[..., CallbackService] = CallbackService,
    ) -> None:
        """``identity``: the server's over restarts, which is its scope; with ``member``, which tells it from others of
        that scope, it is the server's owner (RFC 8881 sections 2.10.4 and 2.10.5). ``max_transfer``: octets of one
        READ or WRITE. ``names``: how users and groups are called; numbers without it. ``leases``: delegate only what
        the kernel protects against local processes. ``callbacks_anywhere``: see :class:`CallbackService`.
        ``versions``: those that are spoken (:mod:`nfsd.versions`). ``callbacks``: makes the service of callbacks."""
        self.service = service
        self.exports = exports
        self.engine = engine
        self.store = store
        self.scope, self.owner = identity, identity + member
        self.callbacks = callbacks(engine, anywhere=callbacks_anywhere)
        self.callbacks.on_call = self._hurry
        engine.unread = self._unread
        self.blocked = BlockedLocks(engine, service, self.callbacks)
        self.recalls = Recalls(engine, self.callbacks)
        self.leases = leases
        self.versions = versions
        self.counts = OperationCounts()
        self.pseudo = PseudoFileSystem(exports, started)
        self.max_transfer = max_transfer
        self.max_reply = max_transfer + 64 * 1024
        self.names = names or IdNames()
        self.facts = ServerFacts(int(engine.limits.lease), max_transfer, max_transfer, self.names)
        self._facts: dict[tuple[int, int], ServerFacts] = {}
        self.copies = Copies(self)
        self._connections: set[Transport] = set()
        self.speakers: dict[Transport, Client | None] = {}
        """The v4.0 client heard of on a connection, if it is one only."""
        self._timer: asyncio.TimerHandle | None = None
        self._sweep: asyncio.Task[None] | None = None

    def facts_on(self, export: Export) -> ServerFacts:
        """What is the same for every file of an export."""
        sizes = min(self.max_transfer, export.max_read), min(self.max_transfer, export.max_write)
        if sizes == (self.max_transfer, self.max_transfer):
            return self.facts
        if sizes not in self._facts:
            self._facts[sizes] = replace(self.facts, max_read=sizes[0], max_write=sizes[1])
        return self._facts[sizes]

    def _unread(self, client: Client) -> Unread:
        """Whether something of the client's may lie unread, because its host goes faster than it may."""
        prices = self.exports.prices
        if not prices.any or not any(prices.paces.holds(host_of_any(host.removesuffix("!"))) for host in client.hosts):
            return Unread.NOTHING
        slowed = (one.slowing is not None and one.slowing.lately for one in self._connections_of(client))
        return Unread.OF_ITS_OWN if any(slowed) else Unread.OF_ITS_HOST

    def _connections_of(self, client: Client) -> set[Transport]:
        """Those that are known to be a client's."""
        if client.minor == 0:
            return {transport for transport, one in self.speakers.items() if one is client}
        sessions = client.sessions.values()
        return {cast("Transport", one) for s in sessions for one in (*s.connections, *s.backchannel.connections)}

    def _hurry(self, client: Client) -> None:
        """The client is being called: its answer, or what it has to do first, is not to wait behind other calls."""
        prices = self.exports.prices
        if prices.any:
            for host in client.hosts:
                prices.paces.hurry(host_of_any(host.removesuffix("!")))

    def exports_changed(self, gone: Collection[int], now: Time) -> int:
        """The exports are others since ``now``; those with the ids ``gone`` are no more. What clients hold of their
        files is taken from them (RFC 8881 section 8.5), so that nothing keeps a file system from being unmounted.
        Returns the number of states that were taken."""
        self.pseudo = PseudoFileSystem(self.exports, now)
        self._facts.clear()
        lost = [
            entry
            for client in [*self.engine.clients.all(), *self.engine.nlm.all()]
            for entry in client.states.values()
            if isinstance(entry, OpenState | Delegation) and entry.opened is not None and entry.opened.export_id in gone
        ]
        for entry in lost:
            if entry.client.minor == NLM:
                self.engine.nlm.take_away(entry)  # there is no way to tell
            else:
                self.engine.revoke(entry)
        return len(lost)

    def start(self) -> None:
        """Begin to turn the state engine's timer."""
        self._schedule()

    async def close(self) -> None:
        """Stop the timer and copies under way, and put on stable storage what is not there yet."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sweep is not None:
            await self._sweep
        await self.copies.close()
        await self.blocked.close()
        self.recalls.close()
        await self.callbacks.close()
        await self.names.close()
        await self.store.flush(self.engine)

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        wanted = self.engine.get_timer()
        # At least once a second, so that state made since does not need to wake us.
        at = loop.time() + 1.0 if wanted is None else max(loop.time() + 0.05, min(wanted, loop.time() + 1.0))
        self._timer = loop.call_at(at, contain, self._schedule, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        if self._sweep is None or self._sweep.done():
            self.engine.handle_timer(loop.time())
            self.recalls.send()
            self._sweep = loop.create_task(self._after_timer())
            self.callbacks.sweep(loop.time())
            for session in self.engine.sessions.budget.take_recalls():
                self.callbacks.recall_slots(session)
        self._schedule()

    async def _after_timer(self) -> None:
        try:
            await self.clear_all()
            await self.blocked.watch_local()
        except Exception:
            log.exception("giving up state that has expired")
        try:
            await self.store.flush(self.engine)
        except OSError as error:
            log.error("clients' records cannot be written, and replies wait for that: %s", error)
        except Exception:
            log.exception("writing clients' records")

    async def clear_all(self) -> None:
        """Give up locally what clients that are gone have held."""
        for file in self.engine.files_to_clear():
            async with gate(file):
                await self.clear_local(file)

    def connection(self, transport: Transport) -> Transport:
        """The transport as the engine knows connections; the engine hears of its end."""
        if transport not in self._connections:
            self._connections.add(transport)
            transport.on_close(lambda: self._connection_closed(transport))
        return transport

    def met(self, transport: Transport, client: Client) -> None:
        """A session's request has come on a connection: the client is where that comes from, and nobody else knows the
        session's id."""
        host = self.exports.speaker(self.connection(transport))
        if host not in client.hosts:
            self.engine.clients.meet(client, host)

    def heard(self, transport: Transport, client: Client) -> None:
        """A v4.0 client has named itself on a connection."""
        known = self.speakers.get(transport, client)
        if known is not client:
            self.speakers[transport] = client if known is not None and known.expired else None
        elif transport not in self.speakers:
            self.speakers[self.connection(transport)] = client

    def renew(self, transport: Transport, clientid: int) -> None:
        """v4.0: renew a client's lease. Raises STALE_CLIENTID, EXPIRED, and CB_PATH_DOWN, the lease renewed, when
        delegations could not be recalled."""
        client = self.engine.clients.renew(clientid, self.exports.speaker(transport))
        self.heard(transport, client)
        if client.delegations and self.callbacks.callback_path_down(client):
            # RFC 7530 section 16.28.4. The client gives its delegations back, or sets another callback address.
            raise Nfs4Error(p.NFS4ERR_CB_PATH_DOWN)

    def speaker(self, transport: Transport) -> Client | None:
        """The v4.0 client whose connection it is, as far as can be told: most operations do not name theirs."""
        return self.speakers.get(transport)

    def _connection_closed(self, transport: Transport) -> None:
        self.speakers.pop(transport, None)
        self._connections.discard(transport)
        self.engine.connection_closed(transport)

    async def clear_local(self, file: FileState) -> None:
        """Give up locally what no NFS client holds any more; under the file's gate."""
        if file.node is None:
            return
        node: Node = file.node
        departed = self.engine.locks.departed(file)
        ranges: list[LocalRange] = self.engine.locks.local_clears(file)
        for held in ranges:
            await self.service.clear_local_lock(node, held.start, held.length)
        for host in departed:
            self.service.let_locks(node, host)
        self.blocked.tell()


def gate(holder: FileState) -> asyncio.Lock:
    """The lock that keeps operations on one file's locks in a row, made when first needed."""
    if holder.gate is None:
        holder.gate = asyncio.Lock()
    lock: asyncio.Lock = holder.gate
    return lock
