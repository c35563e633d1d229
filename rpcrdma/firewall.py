"""A fault in a callback of the event loop costs only the call or the connection that the callback was for.

Owns the few ways in which the loop calls our code: :func:`contain` around a callback, :class:`Ticker` for repeated
work, :func:`spawn` for tasks, and :func:`last_resort` for everything else that the loop meets. Imports
:mod:`rpcrdma.log_limits` and asyncio.

The contract
    An ``Exception`` never leaves a contained callback. It is logged, lines of one cause limited in number, and then
    ``failed`` is called: what closes the connection, or ends whatever the callback was for, so that a level-triggered
    event that was not served does not come again for ever. KeyboardInterrupt and SystemExit pass.

    An exception in answering a call is not for here: it is the dispatcher's (:mod:`rpcrdma.rpc.dispatch`) or the native
    calls' (:mod:`rpcrdma.rpc.native`), which answer SYSTEM_ERR. What gets here is a mistake in a transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVarTuple

from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)

Arguments = TypeVarTuple("Arguments")


def report(who: object, error: BaseException) -> None:
    """Log an exception that has nobody to go to. ``who``: what was called, or whose it is."""
    _log.error("%s failed", _describe(who), exc_info=error)


def contain(
    failed: Callable[[], object] | None,
    callback: Callable[[*Arguments], object],
    *arguments: *Arguments,
) -> bool:
    """Call ``callback(*arguments)``; whether it has raised no Exception. If it has, ``failed()`` is called, what that
    raises is logged as well."""
    try:
        callback(*arguments)
    except Exception as error:
        report(callback, error)
    else:
        return True
    if failed is not None:
        try:
            failed()
        except Exception as error:
            report(failed, error)
    return False


class Ticker:
    """Calls ``callback`` every ``seconds``, for the first time after that time, whatever it raises."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]) -> None:
        self._loop, self._seconds, self._callback = loop, seconds, callback
        self._handle = loop.call_later(seconds, self._tick)

    def cancel(self) -> None:
        """Call no more."""
        self._handle.cancel()

    def _tick(self) -> None:
        # First, since the callback may cancel us.
        self._handle = self._loop.call_later(self._seconds, self._tick)
        contain(None, self._callback)


def spawn(work: Coroutine[Any, Any, Any], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    """Run ``work`` as a task that nobody waits for: in ``tasks`` until it is over, its exception logged."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)

    def over(task: asyncio.Task[Any]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            report(work, error)

    task.add_done_callback(over)
    return task


def last_resort(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For ``loop.set_exception_handler``: what no wall was built around, or a future that nobody asked."""
    error = context.get("exception")
    _log.error("the event loop: %s", context.get("message", "an exception"), exc_info=error)


def _describe(who: object) -> str:
    """A bound method by its owner and name, anything else by its name, or as it says itself."""
    name = getattr(who, "__name__", None)
    if name is None:
        inner = getattr(who, "func", None)  # functools.partial
        return str(who) if inner is None else _describe(inner)
    owner = getattr(who, "__self__", None)
    try:
        return str(name) if owner is None else f"{owner}: {name}"
    except Exception:  # an owner that was only half made
        return str(name)
