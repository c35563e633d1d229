"""Threads for stores in Python: a bounded number for each, on which nobody waits at the end of the process.

Owns :class:`Pool`; imports asyncio and the firewall's log. A store that hangs holds its own threads. Its calls wait;
others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from rpcrdma.firewall import contain, report

MOST_WAITING = 4096
"""Calls for one store that may wait for its threads; further ones are told to come again."""

_Job = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any] | None"]


class Pool:
    """Threads, begun when it is made: they are the server's, whoever the loop's thread acts as later."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._threads = self._left = threads
        self._last: Callable[[], object] | None = None
        """What is to be done when all threads have ended."""
        self._ending = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._under_way = 0
        for _ in range(threads):
            threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns or raises, from a thread. This ends with the function, even if its caller is
        cancelled: the function may be using the caller's memory. EAGAIN when too many wait already."""
        if self._under_way >= self._threads + MOST_WAITING:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._jobs.put((function, arguments, future))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await asyncio.shield(future)
            future.exception()  # nobody is left to be told
            raise

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function run for which nobody waits."""
        self._jobs.put((contain, (None, function, *arguments), None))

    def close(self, last: Callable[[], object] | None = None) -> None:
        """Let the threads end when they have done what waits, and have a function run when none of them is at work."""
        self._last = last
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        self._serve()
        with self._ending:
            self._left -= 1
            is_last = not self._left
        if is_last and self._last is not None:
            contain(None, self._last)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, arguments, future = job
            result, failure = None, None
            try:
                result = function(*arguments)
            except BaseException as error:
                failure = error
            if future is None:
                continue
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(self._settle, future, result, failure)
            del job, function, arguments, future, result, failure

    def _settle(self, future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
        self._under_way -= 1
        if future.done():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(contained(f"backend {self._name}", failure))


def contained(who: str, failure: BaseException) -> OSError:
    """What a store's call raises for what the store has raised: an OSError is an answer, anything else is a mistake,
    which the log has with ``who`` made it."""
    if isinstance(failure, OSError) and isinstance(failure.errno, int) and failure.errno > 0:
        return failure
    report(who, failure if isinstance(failure, Exception) else RuntimeError(repr(failure)))
    return OSError(errno.EIO, os.strerror(errno.EIO))
