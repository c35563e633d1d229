"""A dispatcher whose transports offer no calls where they arrive: all become general calls."""

from __future__ import annotations

from rpcrdma.rpc.dispatch import Dispatcher


class GeneralCalls(Dispatcher):
    """Calls go to native functions as general calls, as those do that came in some way that is not common."""

    def native_calls(self, transport: object) -> None:
        """Transports offer nothing."""
