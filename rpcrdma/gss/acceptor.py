"""The server's side of RPCSEC_GSS without RPC: who may make contexts, and what has been made of them.

Owns :class:`Acceptor`, which is given to the dispatcher (``Dispatcher(..., gss=acceptor)``) and closed by whoever made
it. Imports the rest of this package.

Bounds: contexts are made in threads of their own, of which one host has no more than its part. Those that wait for a
thread, those half made and those made are bounded for each host and in all. The mechanism's tokens come from anybody:
what is not made within some seconds is forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from rpcrdma.gss.contexts import Context, new_handle
from rpcrdma.gss.identity import Identity, Mapper
from rpcrdma.gss.mechanism import Acceptance, Credential, GssError
from rpcrdma.gss.table import Table
from rpcrdma.log_limits import limited_logger

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
    """Contexts to be made that wait for a thread, in all; and as many half made ones."""
    host_waiting: int = 32
    """Likewise of one host, half made ones included."""
    threads: int = 4
    host_threads: int = 2
    """Threads in which contexts of one host are made at a time."""
    token: int = 64 << 10
    """Octets of a client's token: those with many groups' authorization data are long."""
    patience: float = 15.0
    """For which a context may wait for a thread, or for its client's next token."""
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
        self.limits = AcceptorLimits() if limits is None else limits
        self.table = Table(self.limits.contexts, self.limits.host_contexts)
        self.counts: Counter[str] = Counter()
        """What has happened; of :data:`EVENTS`."""
        # The mechanism's own replay cache is of no use: who replays a token does not have the context's key, and can
        # sign no call with it. It would cost a write to disk for each context.
        store = {"rcache": "none:"} | ({"keytab": f"FILE:{keytab}"} if keytab else {})
        self._credential = Credential(service, store, True)
        self._mapper = mapper
        self._nobody_age = min(self.limits.nobody_age, self.limits.identity_age)
        self._asking: set[str] = set()
        """Principals that the mapper is being asked about again."""
        self._half: OrderedDict[bytes, tuple[float, str, Acceptance]] = OrderedDict()
        self._waiting: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._makers = ThreadPoolExecutor(self.limits.threads, "gss-make")
        self._workers = ThreadPoolExecutor(self.limits.threads, "gss-seal")

    def close(self) -> None:
        """Let go of the threads; what they do they end."""
        self._makers.shutdown(wait=False, cancel_futures=True)
        self._workers.shutdown(wait=False, cancel_futures=True)

    def events(self) -> dict[str, int]:
        """What has happened so far, and how often: see docs/metrics.md."""
        return {**dict.fromkeys(EVENTS, 0), **self.counts, "evicted": self.table.evicted, "expired": self.table.expired}

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Have a worker call a function, beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

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
        if now > context.known_until and context.principal not in self._asking:
            self._look_up_again(context)
        return context

    def destroy(self, context: Context) -> None:
        """The client wants it no more."""
        self.counts["destroyed"] += 1
        self.table.remove(context)

    # -- making ----------------------------------------------------------------------------------------------------

    async def make(self, host: str, handle: bytes, token: bytes) -> Made:
        """Take a step of a context: the first one with no ``handle``. Raises Busy, KeyError for a handle that is none,
        TimeoutError."""
        self._forget_half_made()
        if handle:
            _, owner, acceptance = self._half[handle]
            if owner != host:
                raise KeyError(handle)
            del self._half[handle]
        else:
            acceptance = Acceptance()
            half = sum(1 for _, other, _ in self._half.values() if other == host)
            if self._waiting[host] + half >= self.limits.host_waiting or self._waiting.total() >= self.limits.waiting:
                self.counts["refused_busy"] += 1
                raise Busy
        self._waiting[host] += 1
        turn = self._turns.setdefault(host, asyncio.Semaphore(self.limits.host_threads))
        try:
            async with asyncio.timeout(self.limits.patience):
                await turn.acquire()
            try:
                loop = asyncio.get_running_loop()
                answer, identity = await loop.run_in_executor(self._makers, self._step, acceptance, token)
            finally:
                turn.release()
        finally:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host], self._turns[host]
        return self._made(host, acceptance, answer, identity)

    def _step(self, acceptance: Acceptance, token: bytes) -> tuple[bytes, Identity | None]:
        """In a thread."""
        answer = acceptance.step(self._credential, token)
        return answer, self._mapper(acceptance.principal) if acceptance.made else None

    def _made(self, host: str, acceptance: Acceptance, answer: bytes, identity: Identity | None) -> Made:
        if acceptance.failed:
            self.counts["refused_token"] += 1
            _log.info("%s: a security context was refused: %s", host, acceptance.why)
            return Made(b"", acceptance.major, acceptance.minor, answer)
        now = time.monotonic()
        if not acceptance.made:
            self.counts["continued"] += 1
            # Named as contexts are, and on the account of its host until the next token comes.
            handle = new_handle()
            if len(self._half) >= self.limits.waiting:
                self._half.popitem(last=False)
                self.counts["abandoned"] += 1
            self._half[handle] = (now, host, acceptance)
            return Made(handle, acceptance.major, acceptance.minor, answer)
        expires = float("inf") if acceptance.lifetime == _FOREVER else now + acceptance.lifetime
        try:
            context = Context(acceptance.export(), acceptance.principal, host, expires)
        except GssError as error:
            _log.error("%s: %s", host, error)
            return Made(b"", _FAILURE, 0, b"")
        self._take(context, identity)
        self.table.expire(now)
        self.table.add(context)
        self.counts["established"] += 1
        return Made(context.handle, acceptance.major, acceptance.minor, answer, context)

    def _look_up_again(self, context: Context) -> None:
        """Ask the mapper anew; calls that come meanwhile are those of the user that the principal has been. Its other
        contexts wait: a name service that hangs has one thread of it, however many there are."""
        self._asking.add(context.principal)
        asked = asyncio.get_running_loop().run_in_executor(self._makers, self._mapper, context.principal)
        asked.add_done_callback(partial(self._looked_up, context))

    def _looked_up(self, context: Context, asked: asyncio.Future[Identity | None]) -> None:
        self._asking.discard(context.principal)
        if asked.cancelled():
            return
        if error := asked.exception():
            _log.warning("%s cannot be looked up: %s", context.principal, error)
            context.known_until = time.monotonic() + self._nobody_age
            return
        self._take(context, asked.result())

    def _take(self, context: Context, identity: Identity | None) -> None:
        """The mapper has said as whom a context's principal acts."""
        age = self._nobody_age if identity is None else self.limits.identity_age
        context.identity, context.credentials, context.known_until = identity, (), time.monotonic() + age

    def _forget_half_made(self) -> None:
        oldest_allowed = time.monotonic() - self.limits.patience
        while self._half:
            handle, (began, _, _) = next(iter(self._half.items()))
            if began > oldest_allowed:
                return
            del self._half[handle]
            self.counts["abandoned"] += 1
