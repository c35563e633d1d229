"""A Linux client: a guest that mounts the server over RDMA (siw), NFSv4.2 and NFSv3, and programs on these mounts.

The programs (in_guest.py) do one system call after the other as they are told, over a TCP connection to this process.
So a call's beginning and end are this process's times, before it was told and after its answer: the clocks of host and
guest are never compared. The mounts go through relays of their own, as every client's connections do.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.soak.clients import KEYS, PAUSE, Door, values
from tests.soak.histories import Operation
from tests.soak.record import Again, Key, Record
from tests.soak.server import LEASE, Server
from tests.vm.guest import Guest, GuestError
from tests.vm.network import Slirp

PROGRAM = Path(__file__).with_name("in_guest.py")
VERSIONS = ("4.2", "3")
PROGRAMS = 2
"""On each mount."""
PATIENCE = 180.0
"""Seconds for a system call in one life of the server, over its grace period and a device that is away."""
_MOUNTED = "actimeo=0,lookupcache=none"
"""The mount asks the server for names and attributes each time. With its caches Linux promises no order of renames."""
_DEVICE = "rdma link add siw0 type siw netdev eth0"
_UNSURE = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EREMOTEIO, errno.ENODEV}
"""A disk without room or power, a lock that is lost, a device that is away: nobody knows what was done."""
_COMPLAINT = re.compile(r"BUG:|WARNING:|\bOops\b|Call Trace|general protection")
_BLOCKED = re.compile(r"^\[ *([\d.]+)\].* blocked for more than (\d+) seconds")
_BOTH = os.O_RDWR | os.O_CREAT
_PAST_CACHE = os.O_DIRECT


def complaints(log: str, since: float) -> list[str]:
    """What a kernel's log complains of. A task that was blocked already when the server began its life of now
    (``since``, in seconds of the kernel's own clock) has waited for a server that was ended all the time."""
    found, spared = [], False
    for line in log.splitlines():
        if blocked := _BLOCKED.match(line):
            spared = float(blocked[1]) - float(blocked[2]) < since
            found += [] if spared else [line]
        elif _COMPLAINT.search(line) and not (spared and "Call Trace" in line):
            found.append(line)
    return found


class Program:
    """One in the guest."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: Record) -> None:
        self.name, self._reader, self._writer, self._record = name, reader, writer, record

    async def call(self, name: str, *arguments: object) -> Any:
        """A system call's result. Raises OSError with the errno, EOFError when the program is gone."""
        begun = time.monotonic()
        self._writer.write(json.dumps([name, *arguments]).encode() + b"\n")
        answer = asyncio.ensure_future(self._reader.readline())
        try:
            while (left := max(begun, self._record.serves_since) + PATIENCE - time.monotonic()) > 0:
                if (await asyncio.wait({answer}, timeout=left))[0]:
                    break
            else:
                self._record.finding(f"{self.name}: {name}{arguments} takes more than {PATIENCE:.0f} s")
            line = await answer
        finally:
            answer.cancel()
        if not line:
            raise EOFError(f"{self.name} has ended")
        number, result = json.loads(line)
        if number:
            raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")
        return result


class Programs:
    """Those that have connected here, by their names."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known: dict[str, asyncio.Future[Program]] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        """Listen on loopback; the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await reader.readline()).decode().strip()
        self._named(name).set_result(Program(name, reader, writer, self._record))

    def _named(self, name: str) -> asyncio.Future[Program]:
        return self._known.setdefault(name, asyncio.get_running_loop().create_future())

    async def program(self, name: str) -> Program:
        """Wait for one. Raises TimeoutError."""
        return await asyncio.wait_for(self._named(name), PATIENCE)

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()


class GuestClient:
    """What one program does on one mount."""

    def __init__(self, program: Program, point: str, record: Record, sendings: Callable[[], int], seed: int) -> None:
        """``sendings``: a number that grows when a call that is under way may be sent again and done again."""
        self.name, self._call, self._point = program.name, program.call, point
        self.record, self._sendings = record, sendings
        self.chance = random.Random(seed)
        self._mount = VERSIONS.index(point.rpartition("/")[2])
        self._turns: list[Callable[[int, int], Awaitable[None]]] = [self._data, self._renamed, self._name]
        if not self._mount:
            self._turns += [self._lock] * 2  # the mount of NFSv3 has none: NLM needs the host's portmapper
        self._tokens = 0
        self._held = 0.0
        """When the lock was certainly there (CLOCK_MONOTONIC)."""

    async def live(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.chance.choice(self._turns)(self.record.era, self.chance.randrange(KEYS))
            except Again:
                self.record.counts["guest: asked in vain"] += 1
            except OSError as error:
                self.record.counts[f"guest: {errno.errorcode.get(error.errno or 0)}"] += 1
                if error.errno not in _UNSURE:
                    self.record.finding(f"{self.name}: {error}")
                await asyncio.sleep(0.2)
            await asyncio.sleep(PAUSE * self.chance.random())

    def _repeats(self, kind: str, sendings: int, begun: float) -> int:
        """How often an operation that began so may have been done before."""
        if kind in ("read", "look"):
            return 0
        # By NFSv3, Linux creates with two calls, CREATE (EXCLUSIVE) and SETATTR (RFC 1813 section 3.3.8). If another
        # client removes the file between them, it does both again.
        twice = kind == "create" and self._mount > 0
        # After a lease, the session may be another one.
        return max(self._sendings() - sendings, int(time.monotonic() - begun > LEASE)) + twice

    @contextmanager
    def _operation(self, kind: str, key: Key, value: object = None) -> Iterator[Operation]:
        """One that the kernel may have had done more often than once: each time but the last one nobody knows of."""
        sendings, begun = self._sendings(), time.monotonic()
        self.record.counts["guest: operations"] += 1
        try:
            with self.record.operation(self.name, kind, key, value) as made:
                yield made
        finally:
            for _ in range(self._repeats(kind, sendings, begun)):
                self.record.counts["guest: perhaps done before"] += 1
                self.record.perhaps(f"{self.name}'", kind, key, value, begun)
                if kind == "acquire":
                    self.record.released(f"{self.name}'", key, begun)

    @asynccontextmanager
    async def _file(self, name: str, flags: int) -> AsyncIterator[int]:
        file = await self._call("open", f"{self._point}/{name}", flags)
        try:
            yield file
        except (OSError, Again):
            with suppress(OSError):
                await self._call("close", file)
            raise
        await self._call("close", file)

    async def _number(self, file: int) -> int | None:
        octets = bytes.fromhex(await self._call("read", file, 8))
        return int.from_bytes(octets, "big") if octets else None

    async def _data(self, era: int, number: int) -> None:
        """Past the page cache, as others write there without a lock."""
        key: Key = "data", era, number
        async with self._file(f"data-{era}-{number}", _BOTH | _PAST_CACHE) as file:
            if self.chance.random() < 0.5:
                value = next(values)
                with self._operation("write", key, value):
                    await self._call("write", file, value.to_bytes(8, "big").hex())
            else:
                with self._operation("read", key) as made:
                    made.result = await self._number(file)

    async def _renamed(self, era: int, number: int) -> None:
        """What one mount renames, the other reads: a file that a program on the same mount has open at that moment is
        not replaced at once. Linux gives it another name first."""
        key: Key = "renamed", era, number
        name = f"renamed-{era}-{number}"
        if number % len(VERSIONS) == self._mount:
            value = next(values)
            async with self._file(f"new-{value}", _BOTH) as file:
                await self._call("write", file, value.to_bytes(8, "big").hex())
            sendings = self._sendings()
            with self._operation("write", key, value) as made:
                try:
                    await self._call("rename", f"{self._point}/new-{value}", f"{self._point}/{name}")
                except FileNotFoundError as error:
                    if not self._repeats("write", sendings, made.begun):
                        raise
                    raise OSError(errno.EIO, "it may have been renamed before") from error
            return
        with self._operation("read", key) as made:
            try:
                async with self._file(name, os.O_RDONLY) as file:
                    made.result = await self._number(file)
            except FileNotFoundError:
                made.result = None
            except OSError as error:
                raise Again from error  # another file has taken its place, or the disk has failed

    async def _name(self, era: int, number: int) -> None:
        key: Key = "name", era, number
        path = f"{self._point}/name-{era}-{number}"
        match kind := self.chance.choice(["create", "remove", "look"]):
            case "create":
                with self._operation(kind, key) as made:
                    try:
                        file = await self._call("open", path, _BOTH | os.O_EXCL)
                        made.result = True
                    except FileExistsError:
                        made.result = False
                if made.result:
                    await self._call("close", file)
            case "remove":
                with self._operation(kind, key) as made:
                    try:
                        await self._call("unlink", path)
                        made.result = True
                    except FileNotFoundError:
                        made.result = False
            case _:
                with self._operation(kind, key) as made:
                    made.result = await self._call("exists", path)

    async def _lock(self, era: int, number: int) -> None:
        """Lock, read, write, unlock, through the page cache or past it."""
        key: Key = "lock", era, number
        made: Operation | None = None
        try:
            async with self._file(f"lock-{era}-{number}", _BOTH | self.chance.choice([0, _PAST_CACHE])) as file:
                self._held = time.monotonic()
                with self._operation("acquire", key) as made:
                    made.result = await self._call("lock", file)
                if made.result:
                    await self._work(file, ("locked", era, number), made.begun)
                    began = time.monotonic()
                    await self._call("unlock", file)
                    if time.monotonic() - made.begun < LEASE:
                        self._held = began
        except OSError:
            if made is not None and made.result is not False:
                self.record.released(self.name, key, self._held)
            raise
        if made.result:
            self.record.released(self.name, key, self._held)

    async def _work(self, file: int, key: Key, taken: float) -> None:
        """What others have left there, and something of one's own. Raises OSError, also if the lock is lost."""
        for _ in range(1 + self.chance.randrange(4)):
            began = time.monotonic()
            if self.chance.random() < 0.5:
                self._tokens += 1
                token = b"%-16s%16d" % (self.name.encode(), self._tokens)
                with self._operation("write", key, token):
                    await self._call("write", file, token.hex())
                self._held = began
            else:
                with suppress(Again), self._operation("read", key) as made:
                    made.result = bytes.fromhex(await self._call("read", file, 32)) or None
                    if time.monotonic() - taken > LEASE:
                        raise Again  # the page cache may have answered for a lock that is lost


class LinuxGuest:
    """The guest itself; use as a context manager, from before the server's faults begin."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: how long it is to live at most."""
        self._guest = Guest("soak", Slirp(), memory=1024, cpus=1, time_limit=seconds, quiet=True)
        self._programs: Programs | None = None

    async def clients(self, server: Server, doors: Sequence[Door], record: Record, seed: int) -> list[GuestClient]:
        """Mount through these doors, one for each version, and start the programs."""
        self._programs = Programs(record)
        port = await self._programs.open()
        await self._run(f"modprobe siw && modprobe rpcrdma && {_DEVICE}")
        clients: list[GuestClient] = []
        for version, door in zip(VERSIONS, doors, strict=True):
            point, way = f"/mnt/{version}", door.relays["rdma"]
            options = f"rdma,port={way.port},vers={version},{_MOUNTED}"
            if version == "3":
                options += f",nolock,noacl,mountproto=tcp,mountport={server.mountd},mountvers=3"
            await self._run(f"mkdir -p {point} && mount -t nfs -o {options} {Slirp.server_address}:/soak {point}")
            for number in range(PROGRAMS):
                name = f"guest-{version}-{number}"
                words = f"python3 {PROGRAM} {Slirp.server_address} {port} {name}"
                await self._run(f"{words} </dev/null >/run/{name} 2>&1 &")
                program = await self._programs.program(name)
                # A session makes a call exactly once in one life of the server. NFSv3 has a cache for that which may
                # forget, and the kernel sends its calls again over each new connection.
                sendings = (lambda: server.lives) if version == "4.2" else (lambda way=way: way.connections)
                clients.append(GuestClient(program, point, record, sendings, seed * 1000 + 100 + len(clients)))
        return clients

    async def without_device(self, seconds: float) -> None:
        """Remove its RDMA device with all connections, and make a new one after that time."""
        await self._run("timeout 120 rdma link delete siw0")
        await asyncio.sleep(seconds)
        await self._run(_DEVICE)

    async def leave(self, record: Record) -> None:
        """After the last call. What its kernel complains of is a finding."""
        if self._programs is not None:
            self._programs.close()
        try:
            log = await self._run("dmesg")
            now = float(await self._run("cut -d ' ' -f 1 /proc/uptime"))
        except GuestError as error:
            log, now = f"BUG: {error}", 0.0
        for line in complaints(log, now - (time.monotonic() - record.serves_since)):
            record.finding(f"the guest's kernel: {line}")

    async def _run(self, script: str) -> str:
        return (await asyncio.to_thread(self._guest.run, script, 120)).output

    def __enter__(self) -> LinuxGuest:
        return self

    def __exit__(self, *_: object) -> None:
        self._guest.close()
