"""What the server asks of stable storage, wherever that is.

Owns :class:`StableStorage`, and what an instance's number and lease follow from. Imports the engine's records.

Client records of NFSv4, monitors of NLM's clients (records of :data:`nfsd.state.types.NLM`), the boot epoch and the
lease are kept. RFC 8881 section 8.4.3, RFC 7530 section 9.6.3.4.
"""

from __future__ import annotations

from typing import Protocol

from nfsd.state.engine import StateEngine
from nfsd.state.recovery import Recovered


class StableStorage(Protocol):
    """The records of one server, which has them alone until they are closed."""

    async def start(self, *, lease: float = 90.0) -> Recovered:
        """Open or make the records, advance the boot epoch durably, and return what the engine starts from. ``lease``
        is this instance's lease time, kept for the grace period of the next. Until it returns, nothing may be touched
        that clients may reclaim. Raises OSError, which says what is wrong and where."""

    async def flush(self, engine: StateEngine) -> None:
        """Return once everything that the engine has promised so far is kept. Raises OSError when it cannot be: the
        reply must then not be sent (answer NFS4ERR_SERVERFAULT)."""

    def follow(self, engine: StateEngine) -> None:
        """Keep the engine's grace period in step with other servers', where there are any (``engine.grace.elsewhere``).
        Once, before clients are served."""

    async def part(self) -> None:
        """No client is served any more, but what clients hold is still held. Returns when that may be let go."""

    async def close(self) -> None:
        """Finish outstanding writes, and give the records back."""


def next_epoch(former: int, now: float) -> int:
    """This instance's number; ``now``: seconds since 1970."""
    # Not from 1 up: were the records lost, clients would hold ids that could pass for this instance's.
    return max(former + 1, int(now))


def lease_to_keep(lease: float, former: float, has_records: bool) -> float:
    """The lease that the next instance is to go by."""
    # A grace period cut short by another restart still owes the clients of the longest lease their time.
    return max(lease, former) if has_records else lease
