"""The asynchronous forms of NLM's procedures: TEST_MSG, LOCK_MSG, CANCEL_MSG, UNLOCK_MSG (XNFS). The call's reply says
nothing; the answer is a call of the server's own (TEST_RES and so on) to the lock manager of the caller's host.

Owns the answers under way. Such a caller is called with NLM_GRANTED like any other, and has it from the reply whether
the lock is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from nfsd.nlm.locks import LockManager
from nfsd.nlm.peers import UNANSWERED, Peers
from nfsd.protocol import nlm4 as n
from rpcrdma.firewall import spawn
from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.program import Call, DropCall, Procedure

_log = limited_logger(__name__)

_ANSWERS: Final = 256
"""Answers under way at most. A client that gets none asks again."""


class Messages:
    """The procedures."""

    def __init__(self, manager: LockManager, peers: Peers) -> None:
        self._peers = peers
        self._tasks: set[asyncio.Task[None]] = set()
        self.procedures = {
            n.NLMPROC4_TEST_MSG: self._form("TEST", manager.test, n.nlm4_testargs, n.nlm4_testres),
            n.NLMPROC4_LOCK_MSG: self._form("LOCK", manager.lock, n.nlm4_lockargs, n.nlm4_res),
            n.NLMPROC4_CANCEL_MSG: self._form("CANCEL", manager.cancel, n.nlm4_cancargs, n.nlm4_res),
            n.NLMPROC4_UNLOCK_MSG: self._form("UNLOCK", manager.unlock, n.nlm4_unlockargs, n.nlm4_res),
        }

    async def close(self) -> None:
        """Give up answers under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _form(self, name: str, plain: Callable[[Call, Any], Awaitable[Any]], arguments: Any, results: Any) -> Procedure:
        answer = getattr(n, f"NLMPROC4_{name}_RES")

        async def message(call: Call, args: Any) -> None:
            if len(self._tasks) >= _ANSWERS:
                raise DropCall(silently=True)
            result = results, await plain(call, args)
            host, source = call.transport.peer_address, call.transport.local_address
            spawn(self._answer(host, source, answer, result), self._tasks)

        return Procedure(f"{name}_MSG", message, arguments)

    async def _answer(self, host: str, source: str, procedure: int, result: Any) -> None:
        try:
            await self._peers.call(host, source, n.NLM_PROGRAM, n.NLM_V4, procedure, result, None)
        except UNANSWERED as error:
            _log.info("%s does not take the answer to its NLM message: %s", host, error or type(error).__name__)
