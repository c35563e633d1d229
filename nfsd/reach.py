"""Directories that do not answer: a dead NFS mount, or a FUSE file system whose process hangs, blocks whoever looks
there.

Owns :func:`silent` and :func:`real_paths`. Threads do the looking, one for each path. Nobody waits for them, not even
at the end of the process. So a directory that hangs for days costs one thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from typing import Final

PATIENCE: Final = 5.0
"""Seconds that a directory has for an answer, from when it was first asked."""
_AT_ONCE: Final = 64
"""So many threads are begun at once; with more directories, each further lot has its own seconds."""


class _Look:
    """At one path, under way."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.until = time.monotonic() + PATIENCE


_lock = threading.Lock()
_looks: dict[str, _Look] = {}


def silent(paths: Iterable[str]) -> set[str]:
    """Those of the paths that have not answered in time; an error is an answer. It waits."""
    asked = list(dict.fromkeys(paths))
    found: set[str] = set()
    for start in range(0, len(asked), _AT_ONCE):
        looks = [(path, _begun(path)) for path in asked[start : start + _AT_ONCE]]
        found.update(path for path, look in looks if not look.over.wait(max(0.0, look.until - time.monotonic())))
    return found


def real_paths(paths: Iterable[str]) -> dict[str, str]:
    """What paths lead to, without symbolic links; of those that do not answer, themselves."""
    asked = list(paths)
    hanging = silent(asked)
    return {path: path if path in hanging else os.path.realpath(path) for path in asked}


def _begun(path: str) -> _Look:
    with _lock:
        look = _looks.get(path)
        if look is None:
            look = _looks[path] = _Look()
            threading.Thread(target=_run, args=(path, look), name="look at an export", daemon=True).start()
        return look


def _run(path: str, look: _Look) -> None:
    # Attributes may be cached. Opening asks.
    with contextlib.suppress(OSError, ValueError):
        os.stat(path)
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    with _lock:
        del _looks[path]
    look.over.set()
