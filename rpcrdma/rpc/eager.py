"""Running a call's coroutine without a task: the first steps at once, the rest from the futures it waits for.

Owns :func:`start` and :class:`Run`; imports asyncio only. Most calls finish without waiting, and an asyncio task costs
such a call two trips through the event loop. What runs here may await futures, tasks, locks, events, gather and sleep.
What asks for the current task (asyncio.timeout, wait_for, TaskGroup) must be wrapped in ensure_future by the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Outcome = Callable[[Any, BaseException | None], None]
"""Called exactly once with (result, None) or (None, exception)."""


def start(coroutine: Coroutine[Any, Any, Any], outcome: Outcome) -> Run | None:
    """Run ``coroutine`` until it waits. Returns None when it is over already (``outcome`` has been called), otherwise
    the run, which calls ``outcome`` from the event loop later.

    KeyboardInterrupt and SystemExit are not caught. An exception of ``outcome`` itself propagates to whoever made the
    step: the caller of this function, or the event loop.
    """
    try:
        waited = coroutine.send(None)
    except StopIteration as stop:
        outcome(stop.value, None)
        return None
    except (Exception, asyncio.CancelledError) as exception:
        outcome(None, exception)
        del outcome  # as in Run._step
        return None
    run = Run(coroutine, outcome)
    run._wait(waited)
    return run


class Run:
    """A coroutine that is waiting for something."""

    __slots__ = ("__weakref__", "_coroutine", "_future", "_handle", "_outcome")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], outcome: Outcome) -> None:
        self._coroutine = coroutine
        self._outcome: Outcome | None = outcome
        self._future: asyncio.Future[Any] | None = None
        self._handle: asyncio.Handle | None = None

    def cancel(self) -> None:
        """Throw CancelledError into the coroutine, now. What it waited for is left alone: others may wait for it too
        (a shared fsync), or native code may be about to complete it."""
        if self._outcome is None:
            return
        self._let_go()
        self._step(asyncio.CancelledError())

    def _let_go(self) -> None:
        if self._future is not None:
            self._future.remove_done_callback(self._ready)
            self._future = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ready(self, _: asyncio.Future[Any]) -> None:
        self._future = None
        self._step(None)

    def _turn(self) -> None:
        self._handle = None
        self._step(None)

    def _step(self, exception: BaseException | None) -> None:
        outcome = self._outcome
        if outcome is None:
            return
        try:
            waited = self._coroutine.send(None) if exception is None else self._coroutine.throw(exception)
        except StopIteration as stop:
            self._outcome = None
            outcome(stop.value, None)
        except (Exception, asyncio.CancelledError) as failure:
            exception = None  # its traceback leads to this frame: the call's buffers would wait for the collector
            self._outcome = None
            outcome(None, failure)
            del outcome  # so does that of the failure, which may be kept
        else:
            self._wait(waited)

    def _wait(self, waited: Any) -> None:
        """Arrange for the next step; ``waited`` is what the coroutine yielded, by the protocol asyncio.Task follows."""
        if waited is None:  # asyncio.sleep(0)
            self._handle = asyncio.get_running_loop().call_soon(self._turn)
        elif getattr(waited, "_asyncio_future_blocking", None):
            waited._asyncio_future_blocking = False
            self._future = waited
            waited.add_done_callback(self._ready)
        else:
            # Resumed from the loop, lest a coroutine that catches this and yields again recurses without bound.
            mistake = RuntimeError(f"a call's coroutine yielded {waited!r}, which is nothing to wait for")
            self._handle = asyncio.get_running_loop().call_soon(self._step, mistake)
