"""Servers of a cluster that are killed, come back or do not, and give one lock to one client each: a model world around
the real :mod:`nfsd.stable.rados.together`.

Owns the world; its time, its order of events and what befalls the servers follow from a seed. A server's requests to
the cluster run one after the other, but between any two of them those of other servers may.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nfsd.stable.rados import together
from nfsd.stable.rados.records import CLIENT, INSTANCE, instance_pair, object_of

NAMES = ("a", "b", "c")
LEASE = 3.0


class Wrong(AssertionError):
    """A client has got what it must not have, or has lost what was promised to it."""


class World:
    """The cluster, its file system with one lock to be had, and the servers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.attributes: dict[tuple[bytes, bytes], bytes] = {}
        self.objects: dict[bytes, dict[bytes, bytes]] = {}
        self.servers = {name: Server(self, name) for name in NAMES}
        self.holder: object = None
        """The session that has the lock."""
        self.grants = 0
        """How often anybody was given the lock anew."""
        self._waiting: list[tuple[Server, Callable[[], Any], asyncio.Future[Any]]] = []
        self._at_work: list[Server] = []

    # -- what together asks of the cluster -----------------------------------------------------------------------
    def attribute(self, name: bytes, key: bytes) -> bytes:
        self._others_first()
        return self.attributes.get((name, key), b"")

    def pairs(self, name: bytes) -> dict[bytes, bytes]:
        self._others_first()
        return dict(self.objects.get(name, {}))

    def lockers(self, name: bytes, lock: bytes) -> list[str]:
        self._others_first()
        return [server.name for server in self.servers.values() if object_of(server.name) == name and server.locked]

    def change(
        self, name: bytes, guard: tuple[bytes, bytes] | None, attributes: dict[bytes, bytes],
        pairs: dict[bytes, bytes], gone: list[bytes],
    ) -> None:  # fmt: skip
        self._others_first()
        if guard is not None and self.attributes.get((name, guard[0]), b"") != guard[1]:
            raise OSError(errno.ECANCELED, "another value")
        self.attributes.update({(name, key): value for key, value in attributes.items()})
        found = self.objects.setdefault(name, {})
        found.update(pairs)
        for key in gone:
            found.pop(key, None)

    # -- whose turn it is ----------------------------------------------------------------------------------------
    async def run(self, server: Server, job: Callable[[], Any]) -> Any:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((server, job, future))
        return await future

    def forget(self, server: Server) -> None:
        """A dead server asks for nothing."""
        self._waiting = [one for one in self._waiting if one[0] is not server]

    def _others_first(self) -> None:
        if self.rng.random() < 0.4:
            self.let_one_work()

    def let_one_work(self) -> None:
        ready = [one for one in self._waiting if one[0] not in self._at_work]
        if not ready:
            return
        chosen = self.rng.choice(ready)
        self._waiting.remove(chosen)
        server, job, future = chosen
        self._at_work.append(server)
        try:
            result = job()
        finally:
            self._at_work.remove(server)
        if not future.done():
            future.set_result(result)

    async def pass_time(self, chaos: bool) -> None:
        """Something happens."""
        self.now += self.rng.random() / 4
        self.let_one_work()
        server = self.rng.choice(list(self.servers.values()))
        if server.life is None:
            if not chaos or self.rng.random() < 0.05:
                server.start()
            elif server.locked and self.rng.random() < 0.1:
                server.lapse()
            elif server.may_be_evicted() and self.rng.random() < 0.3:
                server.let_go()
        elif chaos and self.rng.random() < 0.01:
            server.kill()
        elif server.serving:
            server.something()
        await asyncio.sleep(0)


class Server:
    """One, through all its lives, and the one client that it has."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.locked = self.serving = False
        self.life: asyncio.Task[None] | None = None
        self.session: object = None
        self.engine: Any = None
        self.recorded = False
        """Whether the client may reclaim in this instance."""
        self.held: int | None = None
        """Which grant the client believes to have; it has heard of nothing else."""
        self.holds = self.away = False
        """``away``: the client is not heard of in this life of the server."""
        self.looks = 0
        """How often this life has looked at the others."""
        self._seen: dict[str, int] = {}

    def start(self) -> None:
        self.locked = True
        self.away = self.world.rng.random() < 0.3
        self.life = asyncio.create_task(self._live())

    def kill(self) -> None:
        """The lock and the session stay behind."""
        assert self.life is not None
        self.life.cancel()
        if self._together._keeping is not None:
            self._together._keeping.cancel()
        self.life, self.serving, self.holds = None, False, False
        self.world.forget(self)

    def lapse(self) -> None:
        """The lock that it has left behind does."""
        self.locked = False
        self._seen = {name: other.looks for name, other in self.world.servers.items() if other.serving}

    def may_be_evicted(self) -> bool:
        """The file system keeps a dead server's locks for longer than the others need to find out."""
        others = [(self.world.servers[name], looks) for name, looks in self._seen.items()]
        return not self.locked and all(not other.serving or other.looks > looks + 1 for other, looks in others)

    def let_go(self) -> None:
        if self.session is not None and self.world.holder is self.session:
            self.world.holder = None

    def lost(self, why: str) -> None:
        raise Wrong(f"{self.name} was taken for dead")

    async def _live(self) -> None:
        world, mine = self.world, object_of(self.name)
        self._seen = {}
        made = together.Together(self.name, self.name, lambda: world, lambda job: world.run(self, job), self.lost)  # type: ignore[arg-type, return-value]
        self._together = made
        step = made._step

        async def counted(*args: Any) -> None:
            await step(*args)
            self.looks += 1

        made._step = counted  # type: ignore[method-assign]
        records = world.objects.setdefault(mine, {INSTANCE: instance_pair(1, LEASE)})
        self.recorded = CLIENT in records
        if not await made.join(self.recorded):
            records.pop(CLIENT, None)
            self.recorded = False
            await made.join(False)
        self.let_go()
        self.session = object()
        grace = SimpleNamespace(active=self.recorded, elsewhere=False)
        self.engine = SimpleNamespace(grace=grace, locks=SimpleNamespace(plans=0))
        made.follow(self.engine, self._flush)
        self.serving = True

    async def _flush(self) -> None:
        """What is left of the records when the grace period is over."""
        await self.world.run(self, lambda: None)
        if not self.holds:
            self.world.objects[object_of(self.name)].pop(CLIENT, None)

    def something(self) -> None:
        """The client asks for something, or the grace period ends."""
        assert self.life is not None
        grace, rng = self.engine.grace, self.world.rng
        if grace.active:
            if self.held is not None and not (self.holds or self.away) and rng.random() < 0.5:
                self._reclaim()
            elif rng.random() < 0.1:
                grace.active = False
        elif self.holds:
            if rng.random() < 0.2:
                self._unlock()
        elif not (self.away or grace.elsewhere) and not self.engine.locks.plans:
            self.engine.locks.plans += 1
            asyncio.get_running_loop().create_task(self._lock(self.session))

    def _reclaim(self) -> None:
        if not self.recorded:
            self.held = None
            return
        if self.world.grants != self.held:
            raise Wrong(f"{self.name} lets its client reclaim what another has had since")
        if self.world.holder not in (None, self.session):
            raise Wrong(f"the client of {self.name} cannot reclaim what is its own")
        self.world.holder, self.holds = self.session, True

    def _unlock(self) -> None:
        self.world.holder, self.holds, self.held = None, False, None
        self.world.objects[object_of(self.name)].pop(CLIENT, None)

    async def _lock(self, session: object) -> None:
        """Admitted already: the lock of the file system, then the record, then the reply."""
        for _ in range(self.world.rng.randrange(4)):
            await asyncio.sleep(0)
        if not self.serving or self.session is not session:
            return
        if self.world.holder is None:
            self.world.holder = session
            self.world.grants += 1
            self.world.objects[object_of(self.name)][CLIENT] = b"{}"
            self.held, self.holds = self.world.grants, True
        self.engine.locks.plans -= 1


async def history(seed: int, steps: int = 1500) -> int:
    """One, which ends with all servers back, and everything to be had again. Raises Wrong. Returns how often the lock
    was given."""
    world = World(seed)
    failed: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: failed.append(about["exception"]))
    for left in range(steps, 0, -1):
        await world.pass_time(chaos=left > steps // 3)
        for server in world.servers.values():
            for task in (server.life, server.serving and server._together._keeping):
                if task and task.done() and not task.cancelled():
                    failed += [why for why in [task.exception()] if why is not None]
        if failed:
            raise failed[0]
    for server in world.servers.values():
        if not server.serving or server.engine.grace.elsewhere:
            raise Wrong(f"{server.name} grants nothing any more")
        server.kill()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return world.grants
