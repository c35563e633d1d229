"""The command ``rdma-nfsd``. Owns what becomes of one that is interrupted, or whose output nobody reads any more.

It imports everything else only when it runs, so that whoever interrupts it early gets no traceback either."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from nfsd.exit_status import INTERRUPTED, OUTPUT_GONE

_REPEATS = 20
_PAUSE = 0.1
"""Seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            if "serve" not in words:  # which waits in its loop, and gives up privileges that a thread would keep
                _wake_when_interrupted()
            from nfsd.command_line import run

            return run(words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads has seen enough, as head(1) has. What is still to be written would fail once more as Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_GONE


def _wake_when_interrupted() -> None:
    """Have this thread wake from any system call after a Ctrl-C.

    Python acts on a signal between two instructions. If it comes behind the last look for one and before a system call
    begins to wait, that waits on. A second signal, which means nothing, ends the wait, and both are looked at."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGURG) is _pass:
        return
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGURG, _pass)
    threading.Thread(target=_wake, args=(told, threading.get_ident()), daemon=True).start()


def _pass(number: int, frame: FrameType | None) -> None:
    """The signal that means nothing."""


def _wake(told: int, sleeper: int) -> None:
    while numbers := os.read(told, 64):
        if signal.SIGINT in numbers:
            for _ in range(_REPEATS):
                time.sleep(_PAUSE)
                signal.pthread_kill(sleeper, signal.SIGURG)


if __name__ == "__main__":
    sys.exit(main())
