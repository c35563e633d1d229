"""On whose behalf something is done: the host whose call it is, wherever the call has to wait.

Owns one context variable; imports contextvars, and whose an address is. The code that starts the work for which a call
waits sets it. Coroutines, tasks and callbacks that go on from there inherit it, as contexts do (PEP 567).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeVar, TypeVarTuple

from rpcrdma.addresses import host_of

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

CALLING_HOST: Final[ContextVar[str]] = ContextVar("CALLING_HOST", default="")
"""A client (:func:`rpcrdma.addresses.host_of`); empty: nobody, it is the server's own work."""


def on_behalf_of(address: str, begin: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Call ``begin(*arguments)``, as what a client at an address has asked for."""
    before = CALLING_HOST.set(host_of(address))
    try:
        return begin(*arguments)
    finally:
        CALLING_HOST.reset(before)
