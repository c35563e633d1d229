"""What a server is fitted with to misbehave, or not to: dispatchers, callbacks, metrics, requests, its ready line.

Owns :class:`Fitting`, which the daemon has; imports the rest of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client.registry import Collector

from nfsd.control import Command
from nfsd.faults.acts import Acts, export_names
from nfsd.faults.callbacks import FaultyCallbacks
from nfsd.faults.choosing import Faults
from nfsd.faults.control import FaultCollector, commands
from nfsd.v4.callbacks import CallbackService
from nfsd.v4.server import Nfs4Server
from rpcrdma.faults.dispatcher import FaultyDispatcher
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.native import Gate


class Fitting:
    """Of a server that misbehaves, or of any other: then it is what that has anyway, and nothing."""

    def __init__(self, faults: Faults | None) -> None:
        self._faults = faults
        self.dispatcher: Callable[..., Dispatcher] = Dispatcher
        self.callbacks: Callable[..., CallbackService] = CallbackService
        self.collectors: list[Collector] = []
        if faults is not None:
            self.dispatcher = partial(FaultyDispatcher, faults)
            self.callbacks = partial(FaultyCallbacks, faults)
            self.collectors = [FaultCollector(faults)]

    def attach(self, nfs4: Nfs4Server, gate: Gate) -> None:
        """Have faults act on a server. Its ``gate`` is asked anew about everybody when there are other rules: that is
        when connections learn whether their calls may be answered natively."""
        faults = self._faults
        if faults is None:
            return

        def changed() -> None:
            gate.generation += 1

        faults.acts = Acts(nfs4)
        faults.export_names = lambda call: export_names(nfs4, call.export_ids())
        faults.changed.append(changed)

    def commands(self) -> dict[str, Command]:
        """The requests of the control socket."""
        return commands(self._faults)

    @property
    def ready(self) -> str:
        """What the ready line says."""
        return "" if self._faults is None else f" (FAULTS: {self._faults})"
