"""As whom principals act, as far as the mapper has said. Owns :class:`Identities`; imports the workers.

The mapper has threads of its own: a name service that hangs keeps nobody waiting but those whom it alone knows. It is
asked once about a principal at a time, however many contexts wait for the answer. While it does not answer, a principal
is who it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from rpcrdma.gss.contexts import Context
from rpcrdma.gss.identity import Identity, Mapper
from rpcrdma.gss.workers import Workers

_ANOTHER: Final = 2.0
"""Seconds that a new answer is waited for where there is an old one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the mapper has said."""

    identity: Identity | None
    until: float
    """When it is to be asked again (time.monotonic)."""

    def tell(self, context: Context) -> None:
        """That is who a context's principal is."""
        context.identity, context.credentials, context.known_until = self.identity, (), self.until


class Identities:
    """Asks the mapper, and remembers what it says."""

    def __init__(
        self, mapper: Mapper, workers: Workers, *, most: int, age: float, nobody_age: float, patience: float
    ) -> None:
        """``most``: answers that are kept. ``age``: seconds for which one is good; ``nobody_age``: likewise if it says
        nobody. ``patience``: seconds that the mapper is waited for."""
        self.mapper = mapper
        self._workers, self._most = workers, most
        self._age, self._nobody_age, self._patience = age, min(age, nobody_age), patience
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Answer]] = {}

    async def of(self, host: str, principal: str) -> Answer:
        """As whom a principal acts, whom a host is asking for. Raises what the mapper does, and TimeoutError."""
        known = self._answers.get(principal)
        if known is not None and time.monotonic() < known.until:
            return known
        try:
            async with asyncio.timeout(self._patience if known is None else min(self._patience, _ANOTHER)):
                return await asyncio.shield(self.ask(host, principal))
        except Exception:
            if known is None:
                raise
            return Answer(known.identity, time.monotonic() + self._nobody_age)

    def ask(self, host: str, principal: str) -> asyncio.Task[Answer]:
        """Ask the mapper, unless it is being asked already."""
        asked = self._asked.get(principal)
        if asked is None:
            asked = self._asked[principal] = asyncio.ensure_future(self._ask(host, principal))
            asked.add_done_callback(lambda over: self._over(principal, over))
        return asked

    async def _ask(self, host: str, principal: str) -> Answer:
        identity = await self._workers.run(host, self.mapper, principal, patience=self._patience)
        age = self._nobody_age if identity is None else self._age
        answer = self._answers[principal] = Answer(identity, time.monotonic() + age)
        self._answers.move_to_end(principal)
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)
        return answer

    def _over(self, principal: str, asked: asyncio.Task[Answer]) -> None:
        del self._asked[principal]
        if not asked.cancelled():
            asked.exception()  # whoever waits for the answer is told
