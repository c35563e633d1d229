"""What keeps something for a call until it is over: mostly a :class:`~rpcrdma.memory.Lease`. Imports nothing."""

from __future__ import annotations

from typing import Protocol


class Hold(Protocol):
    """Let go of once."""

    def release(self) -> None:
        """The call is over, or has been dropped."""
