"""A peer cannot fill the log: of one cause a few lines are written, then only their number.

Owns :class:`LogLimit` and the one that the loggers of this package and of the server share. Imports the standard
library only. A module whose lines a peer can provoke takes its logger from :func:`limited_logger`.

A cause is a logger and the line's text before its arguments are put in; with an exception, also the exception's type
and the place that raised it. Lines below INFO were asked for, and are not counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from types import TracebackType

LINES = 5
"""Of one cause within :data:`SECONDS`; the rest is counted."""
SECONDS = 60.0
CAUSES = 256
"""Told apart at a time; those beyond share one."""
_LONGEST = 300
"""Characters of a line that is repeated with the count."""

_OTHERS = ("", "", "", 0)


class _Window:
    """One cause, since its first line of late."""

    __slots__ = ("began", "latest", "left_out", "level", "lines", "name")

    def __init__(self, record: logging.LogRecord, began: float) -> None:
        self.began = began
        self.name, self.level = record.name, record.levelno
        self.lines = self.left_out = 0
        self.latest = ""


class LogLimit(logging.Filter):
    """Lets ``lines`` lines of a cause pass within ``seconds``, counts those that follow, and logs their number when the
    time is over: with the next line of any cause, or at :meth:`flush`. Any thread may log."""

    def __init__(
        self,
        lines: int = LINES,
        seconds: float = SECONDS,
        causes: int = CAUSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._lines, self._seconds, self._causes, self._clock = lines, seconds, causes, clock
        self._windows: dict[Hashable, _Window] = {}  # in the order in which they began
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be logged."""
        if record.levelno < logging.INFO:
            return True
        now = self._clock()
        with self._lock:
            over = self._take_over(now)
            cause = _cause(record)
            window = self._windows.get(cause)
            if window is None:
                if len(self._windows) >= self._causes:
                    cause = _OTHERS
                    window = self._windows.get(cause)
                if window is None:
                    window = self._windows[cause] = _Window(record, now)
            passes = window.lines < self._lines
            if passes:
                window.lines += 1
                if window.lines == self._lines:
                    window.latest = _text(record)
            else:
                window.left_out += 1
        for each in over:
            self._tell(each)
        return passes

    def flush(self) -> None:
        """Log the numbers of the lines that were left out, of causes whose time is over."""
        with self._lock:
            over = self._take_over(self._clock())
        for each in over:
            self._tell(each)

    def reset(self) -> None:
        """Forget every cause."""
        with self._lock:
            self._windows.clear()

    def __len__(self) -> int:
        """Causes that are told apart now."""
        return len(self._windows)

    def _take_over(self, now: float) -> list[_Window]:
        """The windows that are over and left something out; all that are over are forgotten."""
        over = []
        while self._windows:
            cause, oldest = next(iter(self._windows.items()))
            if now - oldest.began < self._seconds:
                break
            del self._windows[cause]
            if oldest.left_out:
                over.append(oldest)
        return over

    def _tell(self, window: _Window) -> None:
        logger = logging.getLogger(window.name)
        text = f"... and {window.left_out:,} more in the last {self._seconds:.0f} s like: {window.latest}"
        # Past this filter, which has let it pass.
        logger.callHandlers(logger.makeRecord(window.name, window.level, __file__, 0, text, (), None))


def _cause(record: logging.LogRecord) -> Hashable:
    if not record.exc_info or record.exc_info[0] is None:
        return record.name, record.msg, "", 0
    kind, _, traceback = record.exc_info
    file, line = _raised_at(traceback)
    return record.name, record.msg, kind.__qualname__, file, line


def _raised_at(traceback: TracebackType | None) -> tuple[str, int]:
    """File and line of the innermost frame."""
    if traceback is None:
        return "", 0
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename, traceback.tb_lineno


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage().partition("\n")[0]
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


LIMIT = LogLimit()
"""What the loggers of :func:`limited_logger` share."""


def limited_logger(name: str) -> logging.Logger:
    """The logger of this name, whose lines are limited by cause."""
    logger = logging.getLogger(name)
    logger.addFilter(LIMIT)
    return logger
