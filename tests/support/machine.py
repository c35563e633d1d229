"""Requirements of tests on the machine that runs them."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6")
"""Containers often have none."""


def open_the_way(path: Path) -> None:
    """Let any user reach ``path``, a test's ``tmp_path``: pytest's directories above it are its owner's alone.

    There are two of them, and three where tests run in several processes.
    """
    for directory in (path, *path.parents[:3]):
        if directory == Path(tempfile.gettempdir()):
            break
        directory.chmod(directory.stat().st_mode & 0o7777 | 0o755)
