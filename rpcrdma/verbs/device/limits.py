"""The process's limit on locked memory, which everything that a device may reach counts against.

Owns :func:`raise_memory_lock` and :func:`warn_of_memory_lock`; imports the remedies.
"""

from __future__ import annotations

import logging
import resource

from rpcrdma.verbs.device.errors import MEMLOCK

log = logging.getLogger("rpcrdma.verbs")


def raise_memory_lock() -> None:
    """Raise the limit as far as the process may. To be called while it still has the right to (CAP_SYS_RESOURCE)."""
    unlimited = resource.RLIM_INFINITY
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (unlimited, unlimited))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def warn_of_memory_lock(wanted: int) -> None:
    """Say so when the limit is below ``wanted`` octets: siw goes by it even where the process may lock any amount."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft not in (resource.RLIM_INFINITY, -1) and soft < wanted:
        log.warning("only %d of %d MiB of buffers may be locked: %s", soft >> 20, wanted >> 20, MEMLOCK)
