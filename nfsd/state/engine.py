"""The state engine: one object that owns every table and the clock, timers and stable-storage traffic between them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from nfsd.state.clients import ClientTable
from nfsd.state.limits import Limits
from nfsd.state.locks import LockTable
from nfsd.state.opens import FileState, OpenTable
from nfsd.state.recovery import Grace, Recovered, StoreWrite
from nfsd.state.sessions import SessionTable
from nfsd.state.stateids import StateidTable
from nfsd.state.types import Connection


class StateEngine:
    """All NFSv4 state of the server."""

    limits: Limits
    clients: ClientTable
    sessions: SessionTable
    stateids: StateidTable
    opens: OpenTable
    locks: LockTable
    grace: Grace

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        recovered: Recovered,
        *,
        random: Callable[[int], bytes] = os.urandom,
        on_release: Callable[[Any], None] | None = None,
    ) -> None:
        """``clock``: monotonic seconds. ``on_release(opened)``: called with an OpenState's ``opened`` when it goes away
        (CLOSE, expiry, a client restart…); must not call back into the engine."""
        raise NotImplementedError

    # -- timers --------------------------------------------------------------------------------------------------
    def get_timer(self) -> float | None:
        """When ``handle_timer`` wants to be called next (clock time), or None."""
        raise NotImplementedError

    def handle_timer(self, now: float) -> None:
        """Expire leases, end the grace period. Drain ``files_to_clear`` and ``take_writes`` afterwards."""
        raise NotImplementedError

    # -- connections ---------------------------------------------------------------------------------------------
    def connection_closed(self, connection: Connection) -> None:
        """Forget a connection: it is bound to nothing any more."""
        raise NotImplementedError

    # -- local locks left over by expiry ---------------------------------------------------------------------------
    def files_to_clear(self) -> list[FileState]:
        """Files with ranges held locally that nobody needs (after expiry, client restart): take each one's gate, ask
        ``locks.local_clears``, clear. Each file is told once."""
        raise NotImplementedError

    # -- stable storage ------------------------------------------------------------------------------------------
    @property
    def stable(self) -> bool:
        """Whether everything promised so far is on stable storage. A COMPOUND whose reply promises state (any that ran
        a state-changing operation) waits for this before the reply: ``await store.flush(engine)``."""
        raise NotImplementedError

    def take_writes(self) -> list[StoreWrite]:
        """Changes not yet handed to the store, in order."""
        raise NotImplementedError

    def writes_done(self, count: int) -> None:
        """The first ``count`` outstanding changes are on stable storage."""
        raise NotImplementedError
