"""What happens to the server: a schedule made of a seed, one fault after the other."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence

from tests.soak.clients import Door
from tests.soak.guest import LinuxGuest
from tests.soak.lockers import Locker
from tests.soak.record import Record
from tests.soak.server import Server

WEIGHTS = {
    "SIGKILL": 8,
    "power cut": 2,
    "stopped process": 2,
    "stalled disk": 2,
    "full disk": 2,
    "dropped connections": 5,
    "delayed connections": 3,
    "reload": 2,
    "eviction": 2,
    "device removed": 2,
}
"""How often each comes, in relation to the others."""
DEADLY = {"SIGKILL", "power cut"}
"""Those after which the process is another one."""
ON_DISK = {"power cut", "stalled disk", "full disk"}
MOST_IN_A_ROW = 25
"""SIGKILLs, without another fault between them."""
PAUSE = 2.0
"""Seconds between two faults, on average."""


class Schedule:
    """Faults for one server and its clients."""

    def __init__(
        self, server: Server, doors: Sequence[Door], lockers: Sequence[Locker], record: Record, seed: int,
        kills: float = 0.0, devices: LinuxGuest | None = None,
    ) -> None:  # fmt: skip
        """``kills``: how many there are to be in a second, if need be several in a row. ``devices``: their owner."""
        self.server, self.doors, self.lockers, self.record = server, doors, lockers, record
        self.kills, self.devices = kills, devices
        self.begun = time.monotonic()
        self.chance = random.Random(seed)
        self.made: Counter[str] = Counter()
        self.longest_start = 0.0
        """Seconds until the server was ready again."""

    async def live(self, deadly: asyncio.Event) -> None:
        """One after the other until cancelled; deadly ones as long as the event is set."""
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / PAUSE))
            allowed = {
                name: weight
                for name, weight in WEIGHTS.items()
                if (deadly.is_set() or name not in DEADLY)
                and (self.server.disk.real or name not in ON_DISK)
                and (self.devices is not None or name != "device removed")
            }
            name = self.chance.choices(list(allowed), list(allowed.values()))[0]
            if deadly.is_set() and self._due() > MOST_IN_A_ROW // 2:
                name = "SIGKILL"
            # A fault that has begun is ended, whoever cancels: a disk must not stay frozen.
            task = asyncio.ensure_future(self.fault(name))
            self.made[name] += name != "SIGKILL"  # which counts itself
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                await task
                raise

    async def fault(self, name: str) -> None:
        """One of them, to its end."""
        if not self.server.alive:
            self.record.finding(f"the server has ended by itself: {self.server.log.read_text()[-2000:]}")
            await asyncio.to_thread(self.server.start)
        seconds = self.chance.uniform(0.3, 3.0)
        match name:
            case "SIGKILL":
                await self._kill(seconds / 10)
            case "power cut":
                begun = time.monotonic()
                await asyncio.to_thread(self.server.cut_power)
                self.record.cut(begun)
                await self._start(0)
            case "stopped process":
                self.server.signal(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                self.server.signal(signal.SIGCONT)
            case "stalled disk":
                await asyncio.to_thread(self.server.disk.freeze)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    await asyncio.to_thread(self.server.disk.thaw)
            case "full disk":
                await asyncio.to_thread(self.server.disk.fill)
                await asyncio.sleep(seconds)
                await asyncio.to_thread(self.server.disk.clear)
            case "device removed":
                assert self.devices is not None
                await self.devices.without_device(seconds)
            case _:
                await self._gentle(name, seconds)

    async def _gentle(self, name: str, seconds: float) -> None:
        chosen = [door for door in self.doors if self.chance.random() < 0.5]
        match name:
            case "dropped connections":
                for door in chosen:
                    for relay in door.relays.values():
                        relay.drop()
            case "delayed connections":
                for door in chosen:
                    for relay in door.relays.values():
                        relay.delay = self.chance.choice([0.005, 0.05, 0.3])
                await asyncio.sleep(seconds)
                for door in chosen:
                    for relay in door.relays.values():
                        relay.delay = 0.0
            case "reload":
                answer = await asyncio.to_thread(self.server.ask, "reload")
                if "error" in answer:
                    self.record.finding(f"reload: {answer}")
            case "eviction":
                locker = self.chance.choice(self.lockers)
                locker.evicted = time.monotonic() + 1e6  # until it is over: nobody knows when it takes effect
                await asyncio.to_thread(self.server.ask, "evict", client=locker.door.source)
                locker.evicted = time.monotonic()

    def _due(self) -> int:
        """SIGKILLs that there should have been by now."""
        return int(self.kills * (time.monotonic() - self.begun)) - self.made["SIGKILL"]

    async def _kill(self, pause: float) -> None:
        """Once; or until there have been as many as there are to be by now, some of them before the server is ready."""
        for left in range(min(max(self._due(), 1), MOST_IN_A_ROW), 0, -1):
            await asyncio.to_thread(self.server.kill)
            self.made["SIGKILL"] += 1
            if left == 1 or self.chance.random() > 0.2:
                await self._start(pause)
                await asyncio.sleep(self.chance.uniform(0.0, 0.6) if left > 1 else 0.0)
            else:
                await asyncio.to_thread(self.server.begin)
                self.record.counts["killed while it started"] += 1
                await asyncio.sleep(self.chance.uniform(0.0, 0.4))

    async def _start(self, pause: float) -> None:
        await asyncio.sleep(pause)
        begun = time.monotonic()
        await asyncio.to_thread(self.server.start)
        self.record.serves_since = time.monotonic()
        self.longest_start = max(self.longest_start, self.record.serves_since - begun)
