"""How far a copy is, on a terminal. Owns :class:`Progress`; imports the words for sizes only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from nfsd.commands.common import printable
from nfsd.commands.format import human

FIRST_AFTER: Final = 1.0
EVERY: Final = 0.2
EVERY_LINE: Final = 2.0
_NAME_WIDTH: Final = 28
_CLEAR: Final = "\r\x1b[K"


def on_stderr(*, wanted: bool, unwanted: bool) -> Progress:
    """What is shown on stderr: on a terminal, or if it is ``wanted``."""
    terminal = sys.stderr.isatty()
    return Progress(sys.stderr, shown=(terminal or wanted) and not unwanted, lines=not terminal)


class Progress:
    """A line that is written over and over."""

    def __init__(
        self, stream: TextIO, *, shown: bool, clock: Callable[[], float] = time.monotonic, lines: bool = False
    ) -> None:
        """``lines``: one line after another, for what is no terminal."""
        self._stream = stream
        self._shown = shown
        self._clock = clock
        self._lines = lines
        self._began = clock()
        self._next = self._began + FIRST_AFTER
        self._drawn = False
        self.total: int | None = 0
        """Octets that are to be copied; None while that is not known."""
        self.done = 0
        self.files = 0

    def count(self, octets: int) -> None:
        """So many octets more have been copied."""
        self.done += octets

    def skip(self, octets: int) -> None:
        """So many octets were there already."""
        if self.total is not None:
            self.total -= octets

    def end(self) -> None:
        """Say how much it was in the end, and how fast, if how far it is was to be said."""
        self.clear()
        if not self._shown or not self.files:
            return
        seconds = self._clock() - self._began
        files = "1 file" if self.files == 1 else f"{self.files} files"
        rate = self.done / max(seconds, 1e-6) / 1e6
        self._stream.write(f"{files}, {human(self.done)} in {seconds:.1f} s, {rate:.1f} MB/s\n")
        self._stream.flush()

    def show(self, name: str) -> None:
        """Draw the line, if it is time to; ``name`` is the file being copied."""
        now = self._clock()
        if not self._shown or now < self._next:
            return
        self._next = now + (EVERY_LINE if self._lines else EVERY)
        self._drawn = True
        line = self.line(name, now)
        self._stream.write(line + "\n" if self._lines else _CLEAR + line)
        self._stream.flush()

    def line(self, name: str, now: float) -> str:
        """What is to be seen: name, amount, percent, rate, time left."""
        rate = self.done / max(now - self._began, 1e-6)
        shown = printable(name)
        shown = shown if len(shown) <= _NAME_WIDTH else "…" + shown[1 - _NAME_WIDTH :]
        parts = [f"{shown:<{_NAME_WIDTH}}"]
        if self.files:
            parts.append(f"{self.files} files done")
        if self.total:
            percent = min(100, 100 * self.done // self.total)
            parts += [f"{percent:3d}%", f"{human(self.done)} of {human(self.total)}", f"{rate / 1e6:.1f} MB/s"]
            if rate and self.done < self.total:
                left = int((self.total - self.done) / rate)
                parts.append(f"{left // 60}:{left % 60:02d} left")
        else:
            parts += [human(self.done), f"{rate / 1e6:.1f} MB/s"]
        return "  ".join(parts)

    def clear(self) -> None:
        """Leave no line behind."""
        if self._drawn and not self._lines:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._drawn = False
