"""``rdma-nfsd top``: a live screen of a running server.

Owns :func:`main`, the keys and the pace. Imports the screen, which needs rich: without it the error names the extra.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nfsd.admin.asking import NotAnswered, ask, state_dir_of, told

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nfsd.admin.screen import Screen

_MISSING = """\
rdma-nfsd top: the Python package rich is missing: pip install 'rdma-nfsd[top]', or on Debian apt install python3-rich
(rdma-nfsd stats --seconds 5 shows the same numbers without it)
"""


def main(parsed: argparse.Namespace) -> int:
    """Show it until ``q``, SIGINT, or as often as asked. Returns the exit status."""
    try:
        from rich.console import Console
        from rich.live import Live

        from nfsd.admin.screen import Screen
    except ModuleNotFoundError:
        sys.stderr.write(_MISSING)
        return 1
    screen, state_dir = Screen(parsed.sort), ""

    def begin() -> None:
        nonlocal state_dir
        state_dir = state_dir_of(parsed.config, parsed.state_dir)
        screen.look(ask(state_dir, "stats"))

    status = told("top", begin)
    if status:
        return status
    console = Console()
    left = parsed.count
    with contextlib.suppress(KeyboardInterrupt), _keys() as keyboard:
        if not console.is_terminal:
            return _print(screen, state_dir, parsed, console.print)
        with Live(screen.draw(console.height), console=console, screen=True, auto_refresh=False) as live:
            due = time.monotonic() + min(parsed.interval, 0.5)  # the first rates come soon
            while True:
                key = _key(keyboard, max(0.0, due - time.monotonic()))
                if key in ("q", "\x03"):
                    break
                if key == "s":
                    screen.next_order()
                elif key == "p":
                    screen.paused = not screen.paused
                if time.monotonic() >= due:
                    due = time.monotonic() + parsed.interval
                    _look(screen, state_dir)
                    left -= 1
                live.update(screen.draw(console.height), refresh=True)
                if not left and parsed.count:
                    break
    return 0


def _look(screen: Screen, state_dir: str) -> None:
    try:
        screen.look(ask(state_dir, "stats", patience=5.0))
    except NotAnswered as error:
        screen.trouble = str(error)


def _print(screen: Screen, state_dir: str, parsed: argparse.Namespace, show: Callable[[RenderableType], None]) -> int:
    """Not on a terminal: one screen after the other, for files and pipes."""
    for _ in range(parsed.count or 1):
        time.sleep(parsed.interval)
        _look(screen, state_dir)
        show(screen.draw(10**4))
    return 0


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """The keyboard, key by key, without an echo; None where there is none."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _key(keyboard: int | None, seconds: float) -> str:
    """The next key, or nothing after a while."""
    if keyboard is None:
        time.sleep(seconds)
        return ""
    ready, _, _ = select.select([keyboard], [], [], seconds)
    if not ready:
        return ""
    octets = os.read(keyboard, 1)
    return octets.decode("ascii", "replace").lower() if octets else "q"
