"""Threads for what takes long, at which hosts take turns. Owns :class:`Workers`; imports the turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, nullcontext
from typing import Any, TypeVar

from rpcrdma.host_turns import HostTurns

T = TypeVar("T")


class Workers:
    """However much one host has waiting, another's next call waits for one of each."""

    def __init__(self, threads: int, of_host: int, name: str) -> None:
        """``of_host``: the threads that one host may have, though nobody else wants them."""
        self._most, self._of_host = threads, of_host
        self._turns, self._of_hosts = HostTurns(), HostTurns()
        self._pool = ThreadPoolExecutor(threads, name)

    def close(self) -> None:
        """Let go of the threads; what they do they end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, host: str, function: Callable[..., T], *arguments: Any, patience: float | None = None) -> T:
        """Have a thread call a function on a host's behalf. Raises what that does, and TimeoutError if no thread is the
        host's within ``patience`` seconds."""
        async with AsyncExitStack() as turn:
            async with nullcontext() if patience is None else asyncio.timeout(patience):  # that needs a task
                await turn.enter_async_context(self._of_hosts.turn(host, host, self._of_host))
                await turn.enter_async_context(self._turns.turn("", host, self._most))
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
