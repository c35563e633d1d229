"""The threads that make the control calls of the RDMA libraries.

Owns :class:`Control`. Imports the firewall and the limits of logs.

Why threads
    The kernel takes a command written to ``/dev/infiniband/*`` only from a thread whose credentials are, to the very
    object, those the file was opened with (``ib_safe_file_access``: EACCES otherwise, and "changed security contexts
    after opening file descriptor" in the kernel's log). The event loop's thread acts as its callers now and then, after
    which it has the same identities again but never the same credentials. These threads never change their own, so all
    such files are opened and used by them, and by threads that they start.

Who starts them
    A thread begins with the credentials of the one that starts it. librdmacm opens a device once in a process and keeps
    it open, whatever becomes of the provider it was opened for. So one thread starts the threads of every provider of a
    process. It begins when the first provider is made, and does nothing else: all of them have its credentials.

Why two
    A command takes as long as the device takes. What concerns one connection (its queue pair made, accepted, broken off
    and destroyed) and the events of all is the business of the first thread, in the order of asking, and the loop goes
    on meanwhile: :meth:`Control.submit`. What the loop cannot go on without, such as memory registered, it waits for:
    :meth:`Control.call`, on the second thread, where nothing stands before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger

T = TypeVar("T")

Done = Callable[[Any, BaseException | None], None]
"""Takes what a function returned, or what it raised."""

_STARTER = ThreadPoolExecutor(1, "rdma-starter")
"""One thread, begun by what is asked first."""

log = limited_logger("rpcrdma.verbs")


def _log_failure(result: Any, error: BaseException | None) -> None:
    if error is not None:
        log.error("%s", error, exc_info=error)


class _Work:
    __slots__ = ("arguments", "done", "error", "function", "result", "waited_for")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], done: Done | None) -> None:
        self.function = function
        self.arguments = arguments
        self.done = done or _log_failure
        self.waited_for: threading.Lock | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function(*self.arguments)
        except BaseException as error:
            self.error = error

    def tell(self) -> None:
        """On the loop's thread: the outcome."""
        self.done(self.result, self.error)


class Control:
    """Two threads with credentials that never change. To be made and used by the loop's thread, and by themselves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._submitted: SimpleQueue[_Work | None] = SimpleQueue()
        self._awaited: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        for name, queue in (("rdma-control", self._submitted), ("rdma-memory", self._awaited)):
            thread = threading.Thread(target=self._work, args=(queue,), name=name, daemon=True)
            _STARTER.submit(thread.start).result()
            self._threads.append(thread)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Have a function called at once, wait, and return what it returned or raise what it raised."""
        return self._wait_for(self._awaited, function, arguments)

    def call_last(self, function: Callable[..., T], *arguments: Any) -> T:
        """The same after all that was submitted: for the end of what that may be about."""
        return self._wait_for(self._submitted, function, arguments)

    def submit(self, done: Done | None, function: Callable[..., Any], *arguments: Any) -> None:
        """Have a function called after those submitted before, and ``done`` by the loop with its outcome, in the order
        of asking. Without ``done`` a failure is logged."""
        self._submitted.put(_Work(function, arguments, done))

    def close(self) -> None:
        """End the threads, after what they were asked before."""
        for queue in (self._submitted, self._awaited):
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _wait_for(self, queue: SimpleQueue[_Work | None], function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        if threading.current_thread() in self._threads:
            return function(*arguments)
        work = _Work(function, arguments, None)
        work.waited_for = threading.Lock()
        work.waited_for.acquire()
        queue.put(work)
        work.waited_for.acquire()
        if work.error is not None:
            raise work.error
        return work.result  # type: ignore[no-any-return]

    def _work(self, queue: SimpleQueue[_Work | None]) -> None:
        while (work := queue.get()) is not None:
            work.run()
            if work.waited_for is not None:
                work.waited_for.release()
            else:
                # Where the loop is closed, nobody wants to know any more.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(contain, None, work.tell)
            del work
