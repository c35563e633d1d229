"""The audit log: all events of clients, as JSON lines in a file.

Owns :class:`Audit`; imports nothing of the project but the limits of the log. A separate thread writes the lines, so
the loop never waits for a disk. The file is bounded: when it reaches its size, it is renamed to ``FILE.1`` and replaces
the previous one. The queue to the thread is bounded too. Lines that do not fit are counted, and the count is written.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import queue
import time
from io import TextIOWrapper
from logging.handlers import QueueListener, RotatingFileHandler
from typing import Final

from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)

_WAITING: Final = 8192
"""Lines that may wait for the disk."""


class _File(RotatingFileHandler):
    """The file, for its owner alone."""

    def _open(self) -> TextIOWrapper:
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.baseFilename, how, 0o600)
        except OSError as error:
            if error.errno == errno.ENXIO:
                error.strerror = "is a pipe that nobody reads, or a socket; name a file"
            raise
        os.set_blocking(descriptor, True)
        return open(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging calls it so)
        _log.error("the audit log %s lacks a line", self.baseFilename, exc_info=True)


class _Writer(QueueListener):
    """The thread."""

    def enqueue_sentinel(self) -> None:
        """Let it end when everything is written: wait for room, where the base class would raise."""
        self.queue.put(None)  # type: ignore[attr-defined]


class Audit:
    """One file of events. Raises OSError where it cannot be opened."""

    def __init__(self, path: str, size: int, waiting: int = _WAITING) -> None:
        """``size``: octets of the file; there are two at most."""
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(waiting)
        self._file = _File(path, maxBytes=size, backupCount=1)
        self._writer = _Writer(self._lines, self._file)
        self._writer.start()
        self._lost = 0

    def tell(self, event: str, **facts: object) -> None:
        """Write one event; never waits."""
        if self._lost and not self._lines.full():
            lost, self._lost = self._lost, 0
            self._put({"event": "lost", "lines": lost})
        self._put({"event": event, **facts})

    def _put(self, facts: dict[str, object]) -> None:
        line = json.dumps({"time": round(time.time(), 3), **facts}, default=str)
        try:
            self._lines.put_nowait(logging.makeLogRecord({"msg": line}))
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write what waits, and close the file. Waits for the disk."""
        self._writer.stop()
        self._file.close()
