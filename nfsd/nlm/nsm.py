"""The status monitor's two sides towards clients (XNFS): hearing of their restarts, and telling them of the server's.

Owns the SM_NOTIFY calls under way. Those who are told are on stable storage (:mod:`nfsd.state.nlm`), so no monitor of
the host is asked to remember it (SM_MON).

A host's word that it was restarted frees its locks, and NSM has no way to show whose word it is; Linux's sm-notify says
it in a datagram, and anybody can send one in its name. So the host is asked back, over TCP: its status monitor knows
its state number (SM_STAT), which must be the one that was told. A host without a status monitor (it begins one when it
first mounts), or with one that does not tell, has no word against it. One that does not answer is believed over TCP,
whose handshake shows the address, and not when a datagram says it; the call is not answered then, and comes again.

A peer that sends datagrams in the names of many hosts that are off has all of them asked, for as long as one that does
not answer is waited for. Then those that have been asked the longest make room: one that is there answers at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Final

from nfsd.nlm.peers import UNANSWERED, Peers
from nfsd.protocol.nsm import (
    SM_NOTIFY,
    SM_NULL,
    SM_PROGRAM,
    SM_STAT,
    SM_VERS,
    STAT_SUCC,
    sm_name,
    sm_stat_res,
    stat_chge,
)
from nfsd.state import ClientRecord, StateEngine
from nfsd.state.types import NLM
from nfsd.v4.callback_messages import CallbackError
from nfsd.v4.server import Nfs4Server
from rpcrdma.firewall import spawn
from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.program import Call, DropCall, Procedure, Program
from rpcrdma.shown import shown

_log = limited_logger(__name__)

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_PATIENCE: Final = 900.0
"""Seconds for which a client is called that does not answer: what Linux's sm-notify takes."""
MOST_ASKED: Final = 32
"""Hosts that are asked at a time because a datagram told of them: fewer than datagrams that are taken, and than calls
to other hosts that may be under way (:mod:`nfsd.nlm.peers`)."""


class StatusMonitor:
    """The procedures."""

    def __init__(self, nfs4: Nfs4Server, peers: Peers) -> None:
        self._nfs4 = nfs4
        self._peers = peers
        self._asking: set[str] = set()
        """Hosts that are being asked; the clients that there are bound them."""
        self._asked_for: dict[str, asyncio.Future[int | None]] = {}
        """Those of them that datagrams told of, in the order in which they came."""

    async def null(self, call: Call, arguments: None) -> None:
        """Answer, and do no work at all."""

    async def notify(self, call: Call, args: stat_chge) -> None:
        """A client was restarted: it holds nothing any more."""
        transport = call.transport
        address = transport.peer_address
        if not self._nfs4.exports.speaks_for_host(transport):
            return
        if not self._nfs4.engine.nlm.meant(args.mon_name, address, args.state):
            return
        if address in self._asking:
            raise DropCall(silently=True)
        datagram = transport.netid.startswith("udp")
        self._asking.add(address)
        try:
            # The call's coroutine is no task, which time limits need.
            asked = asyncio.ensure_future(self._ask(address, transport.local_address, args.mon_name, datagram=datagram))
            if datagram:
                self._make_room(address, asked)
            word = await asked
        except asyncio.CancelledError:
            raise DropCall(silently=True) from None
        finally:
            self._asking.discard(address)
            self._asked_for.pop(address, None)
        if word is not None and word != args.state:
            _log.warning("%s is said to have been restarted, and says that it was not: its locks stay", address)
            return
        for client in self._nfs4.engine.nlm.restarted(args.mon_name, address, args.state):
            _log.info('%s "%s" was restarted: its NFSv3 locks are free', address, shown(client.name))
        await self._nfs4.clear_all()
        self._nfs4.blocked.tell()

    def _make_room(self, address: str, asked: asyncio.Future[int | None]) -> None:
        """One more host is asked for a datagram; if there are too many, who has been asked the longest is no more."""
        self._asked_for[address] = asked
        if len(self._asked_for) > MOST_ASKED:
            self._asked_for.pop(next(iter(self._asked_for))).cancel()

    async def _ask(self, address: str, source: str, name: bytes, *, datagram: bool) -> int | None:
        """The state number of a host as its own status monitor tells it; None: there is none, or it does not tell.
        Raises DropCall when the host must be asked again before it is believed."""
        self._peers.forget(address, SM_PROGRAM)  # before its restart it was another port
        asked = sm_name, sm_name(name)
        try:
            found = await self._peers.call(address, source, SM_PROGRAM, SM_VERS, SM_STAT, asked, sm_stat_res)
        except (ConnectionRefusedError, CallbackError):
            return None  # the host answers, and nobody there knows better
        except OSError as error:
            if not datagram:
                return None
            _log.warning("%s is said to have been restarted, and cannot be asked (%s): its locks stay", address, error)
            raise DropCall(silently=True) from error
        return int(found.state) if found.res_stat == STAT_SUCC else None


def nsm_program(nfs4: Nfs4Server, peers: Peers) -> Program:
    """The program for the dispatcher."""
    monitor = StatusMonitor(nfs4, peers)
    procedures = {
        SM_NULL: Procedure("NULL", monitor.null),
        SM_NOTIFY: Procedure("NOTIFY", monitor.notify, stat_chge),
    }
    return Program(SM_PROGRAM, "nsm", {SM_VERS: procedures})


def own_state(engine: StateEngine) -> int:
    """This instance's state number: another one after each restart, odd while the server is up."""
    return (engine.epoch << 1 | 1) & 0x7FFFFFFF


class Notifier:
    """Tells clients on record that the server has been restarted, so that they reclaim their locks."""

    def __init__(
        self, peers: Peers, engine: StateEngine, name: str | None = None, *, pause: float = _FIRST_PAUSE
    ) -> None:
        """``name``: the server's, if it has one that it keeps on another host. ``pause``: seconds between the first
        two attempts."""
        self._peers = peers
        self._message = stat_chge((name or socket.gethostname()).encode()[:1024], own_state(engine))
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, records: Iterable[ClientRecord]) -> None:
        """Begin to tell those of the records that are clients of the lock manager."""
        for record in records:
            addresses = record.principal.split(" ")
            if record.minor == NLM and len(addresses) == 2:
                spawn(self._tell(*addresses), self._tasks)

    async def close(self) -> None:
        """Stop."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, address: str, source: str) -> None:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + _PATIENCE, self._pause
        while True:
            try:
                await self._peers.call(
                    address, source, SM_PROGRAM, SM_VERS, SM_NOTIFY, (stat_chge, self._message), None
                )
            except UNANSWERED as error:
                if loop.time() + pause >= deadline:
                    _log.info("%s was not told of the restart: %s", address, error or type(error).__name__)
                    return
            else:
                _log.info("%s was told of the restart: it may reclaim its NFSv3 locks", address)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
