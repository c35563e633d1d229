"""Network namespaces: sockets that are made inside one stay there. Imports nothing of the project."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CLONE_NEWNET = 0x40000000


class Inside:
    """This thread is in the network namespace that a file stands for; sockets that it makes there stay there."""

    def __init__(self, namespace: Path) -> None:
        self._namespace = namespace
        self._home = -1

    def __enter__(self) -> None:
        there = os.open(self._namespace, os.O_RDONLY)
        try:
            self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            _enter(there)
        finally:
            os.close(there)

    def __exit__(self, *exc: object) -> None:
        _enter(self._home)
        os.close(self._home)


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
