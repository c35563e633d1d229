"""The server's side of RPCSEC_GSS without RPC: who may make contexts, and what has been made of them.

Owns :class:`Acceptor`, which is given to the dispatcher (``Dispatcher(..., gss=acceptor)``) and closed by whoever made
it. Imports the rest of this package.

Bounds: contexts are made in threads of their own, at which hosts take turns. Those that are being made are bounded for
each host and in all, and shared out among networks (:mod:`rpcrdma.crowd`). The mechanism's tokens come from anybody:
what is not made within some seconds is forgotten. Principals are looked up in threads of others, which may hang
(:mod:`rpcrdma.gss.identities`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from rpcrdma.callers import CALLING_HOST
from rpcrdma.crew import Crew
from rpcrdma.crowd import Crowd
from rpcrdma.gss.contexts import Context, new_handle
from rpcrdma.gss.identities import Answer, Identities
from rpcrdma.gss.identity import Mapper
from rpcrdma.gss.mechanism import Acceptance, Credential, GssError
from rpcrdma.gss.table import Table
from rpcrdma.gss.workers import Workers
from rpcrdma.log_limits import limited_logger
from rpcrdma.shown import shown

_log = limited_logger(__name__)

T = TypeVar("T")

_FAILURE: Final = 13 << 16
"""GSS_S_FAILURE (RFC 2744 section 3.9.1)."""
_FOREVER: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptorLimits:
    """Bounds; seconds where nothing else is said."""

    contexts: int = 8192
    """In all. Each has about 5 KiB, and 4 KiB more for each thread that uses it."""
    host_contexts: int = 1024
    waiting: int = 1024
    """Contexts that are being made, in all, half made ones included."""
    host_waiting: int = 512
    """Likewise of one host."""
    threads: int = 4
    host_threads: int = 2
    """Threads in which contexts of one host are made at a time."""
    askers: int = 8
    """Threads that ask the mapper."""
    host_askers: int = 2
    """Likewise on behalf of one host."""
    token: int = 64 << 10
    """Octets of a client's token: those with many groups' authorization data are long."""
    patience: float = 15.0
    """For which a context may wait for a thread, for the mapper, or for its client's next token."""
    identity_age: float = 600.0
    """After which the mapper is asked again."""
    nobody_age: float = 30.0
    """Likewise where it knew nobody, or could not tell: a name service may have failed."""


EVENTS: Final = (
    "established", "continued", "destroyed", "abandoned", "discarded", "refused_token", "refused_busy",
    "refused_no_context", "refused_bad_mic", "refused_bad_credential", "refused_bad_version",
    "refused_bad_arguments", "refused_sequence_exhausted", "refused_stranger",
)  # fmt: skip
"""Beside the table's own, ``evicted`` and ``expired``."""


class Busy(Exception):
    """Too many contexts are being made."""


@dataclass(slots=True, eq=False)
class _Making:
    """A context that is being made."""

    host: str
    since: float
    """When it was begun, or began to wait for its client."""
    acceptance: Acceptance = field(default_factory=Acceptance)
    handle: bytes = b""
    """What the client calls it while it is half made."""
    step: asyncio.Task[Made] | None = None
    """The one that it has taken last."""
    displaced: bool = False
    """Whether it has given way to others."""


@dataclass(slots=True)
class Made:
    """What is to be told a client of a context it makes (RFC 2203 section 5.2.3.1)."""

    handle: bytes
    major: int
    minor: int
    token: bytes
    context: Context | None = None


class Acceptor:
    """Makes contexts, and has them.

    ``mapper`` says as whom a principal acts here; it is called in a thread. ``keytab`` is a path, empty for the
    library's own default; a keytab that changes is read again. ``service`` is the host-based service that clients ask
    for: ``nfs@host``, or ``nfs`` for that of any host in the keytab.

    Raises Unavailable without the library, and GssError if the keytab has no key of the service.
    """

    def __init__(
        self, mapper: Mapper, *, keytab: str = "", service: str = "nfs", limits: AcceptorLimits | None = None
    ) -> None:
        self.limits = limits = AcceptorLimits() if limits is None else limits
        self.table = Table(limits.contexts, limits.host_contexts)
        self.counts: Counter[str] = Counter()
        """What has happened; of :data:`EVENTS`."""
        # The mechanism's own replay cache is of no use: who replays a token does not have the context's key, and can
        # sign no call with it. It would cost a write to disk for each context.
        store = {"rcache": "none:"} | ({"keytab": f"FILE:{keytab}"} if keytab else {})
        self._credential = Credential(service, store, True)
        self._crowd: Crowd[_Making] = Crowd(limits.waiting, limits.host_waiting)
        """All contexts that are being made."""
        self._half: OrderedDict[bytes, _Making] = OrderedDict()
        """Those of them that wait for their clients' next tokens."""
        self._makers = Workers(limits.threads, limits.host_threads, "gss-make")
        self._askers = Workers(limits.askers, limits.host_askers, "gss-ask")
        self._workers = Workers(limits.threads, limits.threads, "gss-seal")
        self.crew = Crew(min(limits.threads, len(os.sched_getaffinity(0))))
        """For what is long and done natively."""
        self.identities = Identities(
            mapper, self._askers, most=limits.contexts, age=limits.identity_age, nobody_age=limits.nobody_age,
            patience=limits.patience,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the threads; what they do they end."""
        for workers in (self._makers, self._askers, self._workers):
            workers.close()
        self.crew.close()

    def events(self) -> dict[str, int]:
        """What has happened so far, and how often: see docs/metrics.md."""
        return {**dict.fromkeys(EVENTS, 0), **self.counts, "evicted": self.table.evicted, "expired": self.table.expired}

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Have a worker call a function, beside the loop, on behalf of the host whose call it is."""
        return await self._workers.run(CALLING_HOST.get(), function, *arguments)

    def find(self, handle: bytes) -> Context | None:
        """The context that a client calls so, unless its time is over."""
        context = self.table.find(handle)
        if context is None:
            return None
        now = time.monotonic()
        if context.expires <= now:
            self.table.remove(context)
            return None
        context.recent = True
        if now > context.known_until:
            self._look_up_again(context)
        return context

    def destroy(self, context: Context) -> None:
        """The client wants it no more."""
        self.counts["destroyed"] += 1
        self.table.remove(context)

    # -- making ----------------------------------------------------------------------------------------------------

    async def make(self, host: str, handle: bytes, token: bytes) -> Made:
        """Take a step of a context: the first one with no ``handle``. Raises Busy, KeyError for a handle that is none,
        TimeoutError, and what the mapper does."""
        now = time.monotonic()
        self._forget_half_made(now - self.limits.patience)
        making = self._half[handle] if handle else self._begin(host, now)
        if making.host != host:
            raise KeyError(handle)
        self._half.pop(making.handle, None)
        making.handle, making.step = b"", asyncio.ensure_future(self._step(making, token))
        try:
            return await making.step
        except asyncio.CancelledError:
            if making.displaced:
                raise Busy from None
            raise
        finally:
            if not making.handle:
                self._crowd.leave(making)

    def _begin(self, host: str, now: float) -> _Making:
        """Another context is to be made; a place is found for it, perhaps another's. Raises Busy."""
        making = _Making(host, now)
        try:
            displaced = self._crowd.enter(making, now)
        except ConnectionError:
            self.counts["refused_busy"] += 1
            raise Busy from None
        if displaced is None:
            pass
        elif displaced.handle:
            del self._half[displaced.handle]
            self.counts["abandoned"] += 1
        elif displaced.step is not None:
            self.counts["refused_busy"] += 1
            displaced.displaced = True
            displaced.step.cancel()
        return making

    async def _step(self, making: _Making, token: bytes) -> Made:
        acceptance, patience = making.acceptance, self.limits.patience
        answer = await self._makers.run(making.host, acceptance.step, self._credential, token, patience=patience)
        if acceptance.failed:
            self.counts["refused_token"] += 1
            _log.info("%s: a security context was refused: %s", making.host, shown(acceptance.why or ""))
            return Made(b"", acceptance.major, acceptance.minor, answer)
        if not acceptance.made:
            self.counts["continued"] += 1
            # Named as contexts are, and on the account of its host until the next token comes.
            making.handle, making.since = new_handle(), time.monotonic()
            self._half[making.handle] = making
            return Made(making.handle, acceptance.major, acceptance.minor, answer)
        return self._made(making, answer, await self.identities.of(making.host, acceptance.principal))

    def _made(self, making: _Making, answer: bytes, known: Answer) -> Made:
        acceptance, now = making.acceptance, time.monotonic()
        expires = float("inf") if acceptance.lifetime == _FOREVER else now + acceptance.lifetime
        try:
            context = Context(acceptance.export(), acceptance.principal, making.host, expires)
        except GssError as error:
            _log.error("%s: %s", making.host, error)
            return Made(b"", _FAILURE, 0, b"")
        known.tell(context)
        self.table.expire(now)
        self.table.add(context)
        self.counts["established"] += 1
        return Made(context.handle, acceptance.major, acceptance.minor, answer, context)

    def _look_up_again(self, context: Context) -> None:
        """Ask the mapper anew; calls that come meanwhile are those of the user that the principal has been."""
        context.known_until = float("inf")
        self.identities.ask(context.host, context.principal).add_done_callback(partial(self._looked_up, context))

    def _looked_up(self, context: Context, asked: asyncio.Future[Answer]) -> None:
        if asked.cancelled():
            return
        if error := asked.exception():
            why = str(error) or type(error).__name__
            _log.warning("%s cannot be looked up: %s", shown(context.principal), why)
            context.known_until = time.monotonic() + min(self.limits.nobody_age, self.limits.identity_age)
            return
        asked.result().tell(context)

    def _forget_half_made(self, before: float) -> None:
        """Those that have been waiting since then."""
        while self._half:
            making = next(iter(self._half.values()))
            if making.since > before:
                return
            del self._half[making.handle]
            self._crowd.leave(making)
            self.counts["abandoned"] += 1
