"""A dispatcher that has calls executed by their procedures' handlers in Python, where there are such."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program


class ByHandlers(Dispatcher):
    """Calls of procedures whose only body is native are offered to that, as general calls."""

    def __init__(self, programs: Iterable[Program], **options: Any) -> None:
        super().__init__(programs, **options)
        for row in self.rows.values():
            if row.procedure.handler is not None:
                row.native = None

    def direct_calls(self, transport: object) -> None:
        """Transports offer nothing."""
