"""One run: server, clients, faults, and who watches."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from rpcrdma.memory import Pool
from rpcrdma.verbs.softiwarp import SoftIwarp, SoftIwarpOptions
from tests.hostile.server import REPO
from tests.nfs3_client import Nfs3Client
from tests.soak.clients import Client, Client3, CloseToOpen, Door
from tests.soak.faults import Schedule
from tests.soak.guest import GuestClient, LinuxGuest
from tests.soak.lockers import Locker
from tests.soak.record import Record
from tests.soak.report import Report
from tests.soak.server import Server, Use

SETTLES = 15.0
"""Seconds after the last fault: no call is under way then."""
PATIENCE = 60.0
"""Seconds for everything to end; what does not is a finding."""


@dataclass(frozen=True)
class Options:
    """What is to be done."""

    seconds: float = 3600.0
    seed: int = 1
    calm: float = 0.4
    """The part of the time, at the end, in which the process lives on: in it, its memory is watched."""
    era: float = 20.0
    """Seconds that a key is used."""
    clients: int = 6
    """Of NFSv3, and as many lockers."""
    rate: float = 30.0
    """Connections made and dropped, a second."""
    kills: int = 0
    """SIGKILLs that there are to be at least; 0: as the schedule comes to them."""
    devices: bool = False
    """Remove the guest's RDMA device now and then, if there is a guest."""
    until_found: bool = False
    """End at the first finding."""


class Run:
    """All that goes on."""

    def __init__(self, options: Options, server: Server, guest: LinuxGuest | None = None) -> None:
        self.options, self.server, self.guest = options, server, guest
        self.record = Record()
        self.uses: list[Use] = []
        self.churned = [0, 0]
        """Connections made and dropped, and calls of the native generator."""
        self._found = asyncio.Event()
        self._deadly = asyncio.Event()
        if options.until_found:
            self.record.found = self._found.set

    def end(self) -> None:
        """Come to the end now."""
        self._found.set()

    async def go(self) -> Report:
        """To its end."""
        pool = Pool(512 << 20)
        provider = SoftIwarp(pool, SoftIwarpOptions(mpa_timeout=20.0))
        count = self.options.clients
        doors = [Door(number, self.server.tcp, self.server.rdma, provider, pool) for number in range(2 * count + 5)]
        for door in doors:
            for relay in door.relays.values():
                await relay.open()
        async with await Nfs3Client.connect("127.0.0.1", self.server.mountd) as mountd:
            root = await mountd.mount("/soak")

        def client(kind: type[Client], name: str, number: int) -> Client:
            transport = ("tcp", "rdma")[number % 2]
            seed = self.options.seed * 1000 + number
            return kind(f"{name}-{number}-{transport}", doors[number], transport, self.record, root, seed)

        clients = [client(Client3, "files", number) for number in range(count)]
        lockers = [client(Locker, "locks", number) for number in range(count, 2 * count)]
        at_guest = doors[2 * count + 3 :]
        guests: list[GuestClient] = []
        if self.guest is not None:
            guests = await self.guest.clients(self.server, at_guest, self.record, self.options.seed)
        begun = time.monotonic()
        storm = self.options.seconds * (1 - self.options.calm)
        schedule = Schedule(self.server, doors, [one for one in lockers if isinstance(one, Locker)], self.record,
                            self.options.seed, self.options.kills / max(storm, 1.0),
                            self.guest if self.options.devices else None)  # fmt: skip
        readers = CloseToOpen(doors[2 * count : 2 * count + 3], self.record)
        working = [
            *(one.live() for one in (*clients, *lockers)),
            *(one.live() for one in guests),
            readers.live(),
        ]
        tasks = [asyncio.ensure_future(one) for one in (*working, self._eras(schedule), self._watch(), self._churn())]
        faults = asyncio.ensure_future(schedule.live(self._deadly))
        try:
            await self._wait(begun, [*tasks, faults])
            await self._end(faults)
            if not self._found.is_set():
                await asyncio.sleep(min(SETTLES, self.options.seconds / 4))
        finally:
            await self._stop(tasks)
            if self.guest is not None:
                await self.guest.leave(self.record)
            try:
                async with asyncio.timeout(PATIENCE):
                    for door in doors:
                        for relay in door.relays.values():
                            await relay.close()
                    await provider.close()
            except TimeoutError:
                self.record.finding(f"connections do not close: {traceback.format_exc()}")
        self.record.check(self.record.era + 1)
        if not self.server.alive:
            self.record.finding("the server has ended by itself")
        return Report.of(self.options, time.monotonic() - begun, self.record, schedule, self.uses, self.churned)

    async def _wait(self, begun: float, tasks: list[asyncio.Task[None]]) -> None:
        """Storm, then calm; until the time is over, or something is found, or somebody stumbles."""
        found = asyncio.ensure_future(self._found.wait())
        storm = begun + self.options.seconds * (1 - self.options.calm)
        self._deadly.set()
        for end in (storm, begun + self.options.seconds):
            left = max(0.0, end - time.monotonic())
            done, _ = await asyncio.wait({found, *tasks}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {found}:
                self.record.finding("".join(traceback.format_exception(task.exception())))
            self._deadly.clear()
            if done:
                break
        found.cancel()

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """End them all; one whose connection fails as it is cancelled takes that for another failure. What does not end
        is a finding."""
        left = set(tasks)
        ends = time.monotonic() + PATIENCE
        while left and time.monotonic() < ends:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=2)
        self._say(left)

    async def _end(self, faults: asyncio.Task[None]) -> None:
        """Let the fault that has begun be ended, and make no more. Its failure is a finding already."""
        faults.cancel()
        _, left = await asyncio.wait([faults], timeout=PATIENCE)
        self._say(left)

    def _say(self, stuck: Iterable[asyncio.Task[None]]) -> None:
        for task in stuck:
            where = io.StringIO()
            task.print_stack(file=where)
            self.record.finding(f"it does not end: {where.getvalue()}")

    async def _eras(self, schedule: Schedule) -> None:
        """Count eras, and check what has become old."""
        while True:
            await asyncio.sleep(self.options.era)
            self.record.era += 1
            # Calls of the era before may still be under way; those before it are over.
            self.record.check(self.record.era - 1)
            if self.record.era % 15 == 0:
                done = ", ".join(f"{name} {count}" for name, count in sorted(schedule.made.items()))
                print(f"era {self.record.era}: {done}; findings: {len(self.record.findings)}", flush=True)

    async def _watch(self) -> None:
        while True:
            use = self.server.use()
            if use is not None:
                self.uses.append(use)
            await asyncio.sleep(1.0)

    async def _churn(self) -> None:
        ports = [str(port) for port in (self.server.tcp, self.server.rdma, self.server.mountd)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.soak.churn", *ports, str(self.options.rate), cwd=REPO,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self.churned = json.loads(line)
            raise RuntimeError("the process that makes connections has ended")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
