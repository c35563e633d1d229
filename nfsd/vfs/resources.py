"""What the process may have, and who gets how much of it: descriptors, and threads for the exports."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from nfsd.exported import Export

_SPARE_THREADS = 8
_MOST_THREADS = 256
_OWN = 128
"""Descriptors for what there is whoever comes: listeners, state, export roots, pipes, what is open for a moment."""
_CONNECTIONS = 4
"""One part in so many of all descriptors is what connections may have at most."""
_CALLS = 16
"""Likewise calls that are worked on, each of which needs its file."""


def raise_descriptor_limit() -> int:
    """Allow as many descriptors as the hard limit does; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, 1 << 20) if hard != resource.RLIM_INFINITY else 1 << 20


def most_connections(descriptors: int, each: int = 1) -> int:
    """How many connections a process with so many descriptors can have, if each takes so many."""
    return max(1, descriptors // (_CONNECTIONS * each))


def most_calls(descriptors: int) -> int:
    """How many calls it can work on at a time."""
    return max(1, descriptors // _CALLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Bounds on what is kept open and remembered of files."""

    files: int
    """Descriptors for files altogether."""
    nodes: int
    """Files that are known; as far as more are not in use."""
    inodes: int
    open_files: int
    """Descriptors open for reading or writing that are kept for peers."""
    host_open_files: int
    """Those of one client's."""

    @classmethod
    def of(
        cls,
        descriptors: int,
        connections: int = 1024,
        calls: int = 8192,
        open_files: int | None = None,
        host_open_files: int | None = None,
        each: int = 1,
    ) -> Self:
        """Share out what connections, with so many descriptors ``each``, and calls leave; ``open_files`` and
        ``host_open_files``, if given, as far as there is so much. An open file has a node as well. A call may have two
        nodes, and something open to synchronise it."""
        left = descriptors - _OWN
        left -= each * min(connections, most_connections(descriptors, each)) + 3 * min(calls, most_calls(descriptors))
        left = max(left, 16)
        opens = left // 2 if open_files is None else min(open_files, left // 2)
        share = opens // 2 if host_open_files is None else min(host_open_files, opens)
        return cls(
            files=left,
            nodes=min(left, descriptors // 2),
            inodes=4 * descriptors,
            open_files=opens,
            host_open_files=max(1, share),
        )


def threads_for(exports: Iterable[Export]) -> int:
    """Threads that may run at a time: every export may stall with all of its own, and some are left. They start when
    they are needed."""
    return min(sum(export.workers for export in exports) + _SPARE_THREADS, _MOST_THREADS)
