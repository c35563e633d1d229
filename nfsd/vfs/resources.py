"""What the process may have: descriptors, and threads for the exports."""

from __future__ import annotations

import resource
from collections.abc import Iterable

from nfsd.exports import Export

_SPARE_THREADS = 8
_MOST_THREADS = 256


def raise_descriptor_limit() -> int:
    """Allow as many descriptors as the hard limit does; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, 1 << 20) if hard != resource.RLIM_INFINITY else 1 << 20


def threads_for(exports: Iterable[Export]) -> int:
    """Threads that may run at a time: every export may stall with all of its own, and some are left. They start when
    they are needed."""
    return min(sum(export.workers for export in exports) + _SPARE_THREADS, _MOST_THREADS)
