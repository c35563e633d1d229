"""The destination and the form of the server's log. Owns :func:`set_up_logging`; imports nothing of the project."""

from __future__ import annotations

import logging
import os
import sys

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class JournalFormatter(logging.Formatter):
    """Lines with sd-daemon(3)'s priority in front; the journal knows the time."""

    def format(self, record: logging.LogRecord) -> str:
        """Put the priority before every line, or the journal would lose it after the first. Lines end where the journal
        has them end: other characters that could end one may be a peer's."""
        prefix = f"<{_PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).split("\n"))


def set_up_logging(level: str, who: str = "") -> None:
    """Log to stderr; in the journal's format if that is where stderr goes. ``who``: which of several processes it is
    that logs."""
    who = f"[{who}] " if who else ""
    handler = logging.StreamHandler(sys.stderr)
    if os.environ.get("JOURNAL_STREAM"):
        handler.setFormatter(JournalFormatter(f"{who}%(name)s: %(message)s"))
    else:
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
