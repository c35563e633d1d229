"""The grace period that the servers of a namespace in RADOS have together, kept in an object there.

Owns :class:`Together` and the object's format. Imports the rules (:mod:`nfsd.stable.cluster_grace`), which say why.

The object ``grace`` has a pair for each server, and the attribute ``version``, which every change compares and counts
up. A server is dead when nobody has the lock of its records any more. So it takes the others as long as the lock lasts
to find out about a crash. Until then the file system must keep what the dead server holds there; a cluster's metadata
server does so for longer.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nfsd.stable.cluster_grace import ClusterGrace, Member
from nfsd.stable.rados.records import has_clients, is_locked, lease
from nfsd.state.engine import StateEngine

if TYPE_CHECKING:
    from nfsd.stable.rados.client import Cluster

_log = logging.getLogger(__name__)

POLL: Final = 2.0
"""Seconds between two looks at the object."""
_SOON: Final = 0.2
"""Seconds between two looks at this server's own grace period, and at its locks that are being made."""
_PARTING: Final = 10.0
"""Seconds that a server which stops waits for the others to hold back."""
_OBJECT: Final = b"grace"
_VERSION, _FORMAT, _MEMBER = b"version", b"format", b"member."

_T = TypeVar("_T")
Event = Callable[[ClusterGrace], ClusterGrace]
"""What happens to the record."""


class Run(Protocol):
    """Where the cluster may be waited for."""

    def __call__(self, job: Callable[[], _T]) -> Awaitable[_T]:
        """Run a job there. OSErrors say where it was."""


class Together:
    """One server's part in it."""

    def __init__(
        self, name: str, place: str, cluster: Callable[[], Cluster], run: Run, lost: Callable[[str], None]
    ) -> None:
        """``name``: the server's. ``place``: of its records, for the log. ``lost``: ends the server; is told why."""
        self._name, self._place, self._cluster, self._run, self._lost = name, place, cluster, run, lost
        self._needs = False
        """What the record says of this server, which nobody else may change while it lives."""
        self._dead: dict[str, float] = {}
        """Servers that were found dead and have something to be reclaimed, and when."""
        self._keeping: asyncio.Task[None] | None = None

    # -- the server's life ---------------------------------------------------------------------------------------
    async def join(self, claims: bool) -> bool:
        """This server starts; ``claims``: its clients may reclaim something. Returns when everybody holds back: until
        then files must not be touched. Returns False, with nothing done, if the others have given the server up: then
        its records are to go before it joins without claims."""

        def event(grace: ClusterGrace) -> ClusterGrace:
            return grace if claims and grace.of(self._name).given_up else grace.started(self._name, claims)

        grace = await self._change(event)
        self._needs = grace.of(self._name).needs
        told = 0.0
        while self._needs and not grace.everybody_holds_back:
            if time.monotonic() - told > _PARTING:
                told = time.monotonic()
                names = sorted(name for name, member in grace.members.items() if not member.holds_back)
                _log.info("%s: waiting for other servers to hold back: %s", self._place, ", ".join(names))
            await asyncio.sleep(_SOON)
            grace = await self._run(self._look)
        return not grace.of(self._name).given_up

    def follow(self, engine: StateEngine, flush: Callable[[], Awaitable[None]]) -> None:
        """Keep this server's engine in step with the others. ``flush``: returns when the engine's promises are kept."""
        engine.grace.elsewhere = True  # until the first look
        self._keeping = asyncio.create_task(self._keep(engine, flush))

    async def part(self, claims: bool) -> None:
        """This server stops. If its clients are to reclaim something, the others hold back before it lets go of it."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        try:
            async with asyncio.timeout(_PARTING):
                grace = await self._change(lambda grace: grace.died(self._name, claims))
                while claims and not grace.everybody_holds_back:
                    await asyncio.sleep(_SOON)
                    grace = await self._run(self._look)
        except OSError as error:  # TimeoutError is one
            why = error.strerror or "not all of them hold back yet"
            _log.warning("%s: other servers may give away what clients have here: %s", self._place, why)

    async def _keep(self, engine: StateEngine, flush: Callable[[], Awaitable[None]]) -> None:
        told = ""
        while True:
            try:
                await self._step(engine, flush)
                told = ""
            except OSError as error:
                # A server that comes back meanwhile waits: this one has not said that it holds back.
                why = error.strerror or str(error)
                if why != told:
                    _log.warning("%s: other servers' grace periods are not seen: %s", self._place, why)
                told = why
            until = time.monotonic() + POLL
            # In time for the end of this server's own grace period, which the others wait for.
            while time.monotonic() < until and (engine.grace.active or not self._needs):  # noqa: ASYNC110
                await asyncio.sleep(_SOON)

    async def _step(self, engine: StateEngine, flush: Callable[[], Awaitable[None]]) -> None:
        """Look, and do what follows."""
        grace = await self._run(self._look)
        me = grace.members.get(self._name)
        if me is None or me.given_up or me.needs != self._needs:
            self._lost(f"{self._place}: other servers have taken this one for dead")
            return
        if me.needs and not engine.grace.active:
            await flush()
            grace = await self._change(lambda grace: grace.recovered(self._name))
            self._needs = False
        if not grace.active:
            grace = await self._change(lambda grace: grace.resumed(self._name))
        if grace.of(self._name).holds_back or grace.active:
            await self._hold_back(engine, grace)
        elif engine.grace.elsewhere:
            engine.grace.elsewhere = False
            _log.info("new opens and locks are granted: no server's clients have anything to reclaim")

    async def _hold_back(self, engine: StateEngine, grace: ClusterGrace) -> None:
        """Grant nothing new, and say so when that is true."""
        if not engine.grace.elsewhere:
            names = sorted(name for name, member in grace.members.items() if member.needs)
            _log.info("no new opens and locks are granted: clients of %s may reclaim theirs", ", ".join(names))
            engine.grace.elsewhere = True
        while engine.locks.plans:  # noqa: ASYNC110 (a count): what was admitted before goes to its end first
            await asyncio.sleep(_SOON)
        if not grace.of(self._name).holds_back:
            await self._change(lambda grace: grace.held_back(self._name))

    async def _change(self, event: Event) -> ClusterGrace:
        return await self._run(lambda: self._replace(event))

    # -- in the thread -------------------------------------------------------------------------------------------
    def _look(self) -> ClusterGrace:
        """The record, after servers that have died have been noted there."""
        cluster = self._cluster()
        _, grace = self._read(cluster)
        for name, member in grace.members.items():
            if name == self._name or member.given_up or is_locked(cluster, name):
                self._dead.pop(name, None)
            elif not (member.needs and member.holds_back):
                grace = self._noted_dead(cluster, name)
            elif time.monotonic() - self._dead.setdefault(name, time.monotonic()) > 2 * lease(cluster, name):
                grace = self._gave_up(cluster, name)
        return grace

    # Another server that has the lock lives: it has changed the record, or is about to.
    def _noted_dead(self, cluster: Cluster, name: str) -> ClusterGrace:
        claims = has_clients(cluster, name)
        _log.warning("%s has died%s", name, "; its clients may reclaim what they had" if claims else "")
        return self._replace(lambda grace: grace if is_locked(cluster, name) else grace.died(name, claims))

    def _gave_up(self, cluster: Cluster, name: str) -> ClusterGrace:
        _log.warning("%s has not come back: its clients lose what they had there", name)
        return self._replace(lambda grace: grace if is_locked(cluster, name) else grace.gave_up(name))

    def _replace(self, event: Event) -> ClusterGrace:
        """Change the record, if the event changes anything; what it says then. Asks the event again if somebody else
        was faster."""
        cluster = self._cluster()
        while True:
            version, former = self._read(cluster)
            grace = event(former)
            if grace == former or _store(cluster, version, former, grace):
                return grace

    @staticmethod
    def _read(cluster: Cluster) -> tuple[bytes, ClusterGrace]:
        # The version first: with one that is too old nothing can be changed.
        version = cluster.attribute(_OBJECT, _VERSION)
        pairs = cluster.pairs(_OBJECT) if version else {}
        try:
            return version, ClusterGrace({_name(key): Member(**json.loads(value)) for key, value in pairs.items()})
        except (TypeError, ValueError) as error:
            raise OSError(errno.EINVAL, f"the object {_OBJECT.decode()} is not this version's: {error}") from None


def _name(key: bytes) -> str:
    return key.removeprefix(_MEMBER).decode()


def _store(cluster: Cluster, version: bytes, former: ClusterGrace, grace: ClusterGrace) -> bool:
    """Whether nobody else was faster."""
    if not version:
        cluster.change(_OBJECT, None, {_FORMAT: b"1"}, {}, [])  # only of an object that exists can a change compare
    changed = {name: member for name, member in grace.members.items() if former.members.get(name) != member}
    pairs = {_MEMBER + name.encode(): json.dumps(asdict(member)).encode() for name, member in changed.items()}
    gone = sorted(_MEMBER + name.encode() for name in former.members.keys() - grace.members.keys())
    try:
        cluster.change(_OBJECT, (_VERSION, version), {_VERSION: b"%d" % (int(version or b"0") + 1)}, pairs, gone)
    except OSError as error:
        if error.errno != errno.ECANCELED:
            raise
        return False
    return True
