"""What a server proves itself with to those that it calls: Kerberos contexts that it begins, with its own keytab.

Owns :class:`Initiator`; imports the mechanism and the workers. Tickets are got from a KDC and stand in memory. A KDC
that does not answer holds up a thread, at which hosts take turns, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar
from uuid import uuid4

from rpcrdma.gss.mechanism import Credential, Initiation
from rpcrdma.gss.workers import Workers

_THREADS: Final = 4
T = TypeVar("T")


class Initiator:
    """Begins contexts as one principal of a keytab."""

    def __init__(self, keytab: str, principal: str) -> None:
        """``principal`` is a whole name: ``nfs/host@REALM``."""
        self.principal = principal
        self._store = {"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:{uuid4()}"}
        self._workers = Workers(_THREADS, 1, "gss-call")

    def close(self) -> None:
        """Let go of the threads; what they do they end."""
        self._workers.close()

    async def begin(self, host: str, target: str) -> Initiation:
        """A context with a principal that is on ``host``. Raises GssError."""
        return await self.work(host, lambda: Initiation(target, Credential(self.principal, self._store)))

    async def work(self, host: str, function: Callable[..., T], *arguments: Any) -> T:
        """Have a thread call a function on a host's behalf."""
        return await self._workers.run(host, function, *arguments)
