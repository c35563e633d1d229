"""The thread that makes the control calls of the RDMA libraries.

Owns :class:`Control`; imports nothing of the project.

Why a thread
    The kernel takes a command written to ``/dev/infiniband/*`` only from a thread whose credentials are, to the very
    object, those the file was opened with (``ib_safe_file_access``: EACCES otherwise, and "changed security contexts
    after opening file descriptor" in the kernel's log). The event loop's thread acts as its callers now and then, after
    which it has the same identities again but never the same credentials. This thread never changes its own, so all
    such files are opened and used by it, and by threads that it starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class _Call:
    __slots__ = ("arguments", "done", "error", "function", "result")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None


class Control:
    """A thread with credentials that never change."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="rdma-control", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Have the thread call a function, wait, and return what it returned or raise what it raised."""
        if threading.current_thread() is self._thread:
            return function(*arguments)
        call = _Call(function, arguments)
        self._calls.put(call)
        call.done.acquire()
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the thread, after what it was asked before."""
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = call.function(*call.arguments)
            except BaseException as error:
                call.error = error
            call.done.release()
            del call
