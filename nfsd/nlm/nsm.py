"""The status monitor's two sides towards clients (XNFS): hearing of their restarts, and telling them of the server's.

Owns the SM_NOTIFY calls under way. Who is told is on stable storage (:mod:`nfsd.state.nlm`), so no monitor of the host
is asked to remember it (SM_MON).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Final

from nfsd.nlm.peers import UNANSWERED, Peers
from nfsd.protocol.nsm import SM_NOTIFY, SM_NULL, SM_PROGRAM, SM_VERS, stat_chge
from nfsd.state import ClientRecord, StateEngine
from nfsd.state.types import NLM
from nfsd.v4.server import Nfs4Server
from rpcrdma.firewall import spawn
from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.program import Call, Procedure, Program

_log = limited_logger(__name__)

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_PATIENCE: Final = 900.0
"""Seconds for which a client is called that does not answer: what Linux's sm-notify takes."""


class StatusMonitor:
    """The procedures."""

    def __init__(self, nfs4: Nfs4Server) -> None:
        self._nfs4 = nfs4

    async def null(self, call: Call, arguments: None) -> None:
        """Answer, and do no work at all."""

    async def notify(self, call: Call, args: stat_chge) -> None:
        """A client was restarted: it holds nothing any more."""
        address = call.transport.peer_address
        for client in self._nfs4.engine.nlm.restarted(args.mon_name, address, args.state):
            name = client.name.decode(errors="replace")
            _log.info("%s (%s) was restarted: its NFSv3 locks are free", name, address)
        await self._nfs4.clear_all()
        self._nfs4.blocked.tell()


def nsm_program(nfs4: Nfs4Server) -> Program:
    """The program for the dispatcher."""
    monitor = StatusMonitor(nfs4)
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

    def __init__(self, peers: Peers, engine: StateEngine, *, pause: float = _FIRST_PAUSE) -> None:
        """``pause``: seconds between the first two attempts."""
        self._peers = peers
        self._message = stat_chge(socket.gethostname().encode()[:1024], own_state(engine))
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
