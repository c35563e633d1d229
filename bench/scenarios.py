"""Scenarios: the calls to a server as loads that are ready to run, over TCP and over RDMA.

The calls are those of :mod:`bench.calls`. Over RDMA (RFC 8166), READ offers a Write chunk and WRITE a Read chunk; the
others are short messages.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bench import calls as c
from bench import fixtures
from bench.calls import COLD_READS, DATA, FILE_SIZE, OPENERS, Calls, Files, Page
from bench.generator import Generator, Load, Loads
from bench.laps import Counted, Laps
from bench.nfs3_client import Nfs3Client
from bench.nfs4 import Session
from bench.rdma_generator import RdmaGenerator
from bench.running import Running
from bench.servers import Server
from nfsd.protocol.nfs3 import READDIRPLUS3args, nfs_fh3

PATIENCE = struct.pack("ll", 60, 0)
"""A timeval: how long a call may take."""
DIRECTORY_PAGE = 32768
"""Octets of a READDIRPLUS."""
Making = Callable[[Files, int], "list[bytes] | Calls"]


async def prepare(server: Server, uid: int = 0, needs: Iterable[str] = ()) -> Files:
    """Make the file of data and what else is needed, by its names in :data:`fixtures.MAKE`, and look them up."""
    server.lay_out(FILE_SIZE)
    root, data = await handles(server, "/export")
    more = {}
    pages: list[Page] = []
    names = sorted(set(needs))
    for name in names:
        fixtures.provide(name, server.export, server.export.parent if server.place is None else server.place.path)
    if names:
        async with await Nfs3Client.connect(server.host, server.tcp) as nfs:
            more = {name: await nfs.lookup(root, name.encode()) for name in names}
            if fixtures.MANY in more:
                pages = await _pages(nfs, more[fixtures.MANY])
    return Files(root, data, uid, None, more, pages)


async def _pages(nfs: Nfs3Client, directory: nfs_fh3) -> list[Page]:
    """What READDIRPLUS of a whole directory asks for."""
    found = []
    cookie, verifier = 0, bytes(8)
    while True:
        arguments = READDIRPLUS3args(directory, cookie, verifier, DIRECTORY_PAGE, DIRECTORY_PAGE)
        done = (await nfs.nfs("READDIRPLUS", arguments)).resok
        found.append(Page(cookie, verifier, len(done.reply.entries)))
        if done.reply.eof:
            return found
        cookie, verifier = done.reply.entries[-1].cookie, bytes(done.cookieverf)


async def handles(server: Server, export: str) -> tuple[nfs_fh3, nfs_fh3]:
    """Of an export's root and of the file of data in it."""
    async with await Nfs3Client.connect(server.host, server.mountd) as mountd:
        root = await mountd.mount(export)
    async with await Nfs3Client.connect(server.host, server.tcp) as nfs:
        return root, await nfs.lookup(root, b"data")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of call, so many of them outstanding on one connection."""

    name: str
    calls: Making
    outstanding: int
    size: int = 0
    """Octets of data per call."""
    direction: str = ""
    """``read`` or ``write``, when there are data."""
    goal: float | None = None
    """Server CPU per operation to be reached over TCP, in units of one socket round trip and one system call on the
    file."""
    rival: float = 0.2
    """The same, in units of what NFS-Ganesha takes."""
    minor: int | None = None
    """The calls are of this minor version of NFSv4, and need a client of it."""
    transports: tuple[str, ...] = ("tcp", "rdma")
    """Over which it is measured."""
    connections: int = 1
    shared: bool = False
    """The connections share the calls, of which each is made once."""
    rpcrdma: int = 1
    """The version of RPC-over-RDMA."""
    undo: Making | None = None
    """Calls that undo what those of the scenario do: all are made, then all are undone, which is not measured."""
    undo_first: bool = False
    needs: tuple[str, ...] = ()
    """What must be there, of :data:`fixtures.MAKE`; such scenarios are for servers on this machine."""
    disks: bool = False
    """It says nothing about a file system in memory."""
    most: int = 0
    """Of its calls, at most so many are made; 0: any number."""
    thing: str = "call"
    """What is counted."""

    def fresh(self, server: Server) -> None:
        """What must be done each time before it is measured."""
        for name in self.needs:
            if name in fixtures.BEFORE_EACH:
                fixtures.BEFORE_EACH[name](server.export / name)

    @contextmanager
    def load(
        self, server: Server, files: Files, transport: str, connections: int = 0, *, lenient: bool = False
    ) -> Iterator[Running]:
        """The load, on so many connections (0: as many as the scenario has), which are closed afterwards. ``lenient``:
        calls may fail."""
        with ExitStack() as ends:
            made, load = self._load(server, files, transport, connections or self.connections, lenient, ends)
            if self.undo is not None:
                # NFSv3 undoes it all.
                inverse = replace(self, calls=self.undo, undo=None, minor=None, outstanding=OPENERS, shared=False)
                unmade, undo = inverse._load(server, files, transport, 1, lenient, ends)
                numbers = len(made.calls), len(unmade.calls)
                yield Laps(load, numbers[0], undo, numbers[1], things=made.things, undo_first=self.undo_first)
            elif made.things != 1.0 or self.most:
                yield Counted(load, made.things, self.most)
            else:
                yield load

    def _load(
        self, server: Server, files: Files, transport: str, connections: int, lenient: bool, ends: ExitStack
    ) -> tuple[Calls, Load | Loads]:
        """The calls (of several connections, those of the last) and the load that they are."""
        options: dict[str, Any] = {"lenient": lenient}
        sessions: list[Session | None] = [None] * connections
        made: Calls | None = None
        loads = []
        with server.network():
            if self.minor is not None:
                sessions = [
                    ends.enter_context(closing(Session(server, self.outstanding, files.uid, self.minor)))
                    for _ in sessions
                ]
            sockets = [ends.enter_context(server.connect(transport)) for _ in sessions]
        for number, (sock, session) in enumerate(zip(sockets, sessions, strict=True)):
            if not lenient:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)
            if session is not None or made is None:
                with server.network():
                    found = self.calls(replace(files, session=session), self.size)
                made = found if isinstance(found, Calls) else Calls(found)
            if session is not None:
                options["sequence_at"] = session.sequence_at
            calls = part_of(made, number, connections) if self.shared else made.calls
            loads.append(self._on(sock, transport, calls, options | {"once": self.shared} | dict(made.options)))
        assert made is not None
        return made, loads[0] if connections == 1 else Loads(loads)

    def _on(self, sock: socket.socket, transport: str, calls: Sequence[bytes], options: dict[str, Any]) -> Load:
        """The load on one connection."""
        if transport == "tcp":
            return Generator(sock.fileno(), calls, self.outstanding, **options)
        bulk, position = b"", 0
        if self.direction == "read":
            options = options | {"handle_at": _LISTS[self.rpcrdma] + 12, "written": self.size}
        elif self.direction == "write":
            options = options | {"handle_at": _LISTS[self.rpcrdma] + 8}
            bulk = DATA[: self.size]
            position = calls[0].index(bulk)
            calls = [call[:position] + call[position + self.size :] for call in calls]
        head = _rdma_header(self, position)
        calls = [head + call for call in calls]
        return RdmaGenerator(sock.fileno(), calls, self.outstanding, rpc_at=len(head), bulk=bulk, **options)


def part_of(made: Calls, number: int, parts: int) -> list[bytes]:
    """The calls of one connection of so many, in whole chains."""
    chain = made.options.get("chain", 1)
    firsts = range(number * chain, len(made.calls), parts * chain)
    return [call for first in firsts for call in made.calls[first : first + chain]]


_LISTS = {1: 16, 2: 24}
"""Where the chunk lists begin, by version: Two has the direction and a handle in front of them."""


def _rdma_header(scenario: Scenario, position: int) -> bytes:
    """A header with the scenario's chunk in one segment, whose handle is filled in call by call."""
    reads = struct.pack(">IIIIQ", 1, position, 0, scenario.size, 0) if scenario.direction == "write" else b""
    writes = struct.pack(">IIIIQ", 1, 1, 0, scenario.size, 0) if scenario.direction == "read" else b""
    fixed = struct.pack(">4I", 0, scenario.rpcrdma, 128, 0) + bytes(_LISTS[scenario.rpcrdma] - 16)
    return fixed + reads + bytes(4) + writes + bytes(8)


TCP = ("tcp",)
RDMA = ("rdma",)
NAME_CHANGE: dict[str, Any] = {"transports": TCP, "needs": (fixtures.NAMES,), "rival": 0.6}
TODAY = (
    Scenario("getattr", c.getattr3, 16, goal=1.1),
    Scenario("lookup", c.lookup3, 16, goal=1.1),
    Scenario("access", c.access3, 16, goal=1.1),
    Scenario("read-4k-1", c.read3, 1, 4096, "read"),
    Scenario("read-4k-32", c.read3, 32, 4096, "read", goal=1.3),
    Scenario("write-4k-32", c.write3, 32, 4096, "write", goal=1.5),
    Scenario("read-1m-4", c.read3, 4, 1 << 20, "read", rival=0.7),
    Scenario("write-1m-4", c.write3, 4, 1 << 20, "write", rival=0.7),
    Scenario("create-stat-unlink", c.names3, 16, rival=0.4, transports=TCP),
    Scenario("getattr-v4.1", c.getattr4, 16, goal=1.6, minor=1),
    Scenario("lookup-v4.1", c.lookup4, 16, goal=1.6, minor=1),
    Scenario("access-v4.1", c.access4, 16, goal=1.6, minor=1),
    Scenario("open-v4.1", c.open4, 16, goal=4, minor=1),
    Scenario("open-close-v4.1", c.open_close4, OPENERS, minor=1),
    Scenario("read-4k-32-v4.1", c.read4, 32, 4096, "read", goal=1.6, minor=1),
    Scenario("write-4k-32-v4.1", c.write4, 32, 4096, "write", goal=1.8, minor=1),
)
"""Those whose cost may not grow by more than 3 % from one version to the next (``python -m bench compare``)."""
MORE = (
    Scenario("read-4k-half", c.read_half3, 32, 4096, "read", transports=TCP, needs=(fixtures.HALF,), disks=True),
    Scenario(
        "read-4k-cold", c.read_cold3, 32, 4096, "read", rival=0.5, transports=TCP, needs=(fixtures.COLD,), disks=True,
        most=COLD_READS,
    ),
    Scenario("write-4k-in-order", c.write_on3, 32, 4096, "write", transports=TCP, disks=True),
    Scenario("read-4k-1x64", c.read3, 1, 4096, "read", transports=TCP, connections=64),
    Scenario("read-1m-4x4", c.read3, 4, 1 << 20, "read", rival=0.7, transports=TCP, connections=4),
    Scenario("write-1m-4x4", c.write3, 4, 1 << 20, "write", rival=0.7, transports=TCP, connections=4),
    Scenario("read-1m-4x16", c.read3, 4, 1 << 20, "read", rival=0.7, transports=TCP, connections=16),
    Scenario("write-1m-4x16", c.write3, 4, 1 << 20, "write", rival=0.7, transports=TCP, connections=16),
    Scenario(
        "readdirplus", c.readdirplus3, 4, DIRECTORY_PAGE, rival=1.0, transports=TCP, needs=(fixtures.MANY,),
        thing="entry",
    ),
    Scenario(
        "readdirplus-1x16", c.readdirplus3, 1, DIRECTORY_PAGE, rival=1.0, transports=TCP, connections=16,
        needs=(fixtures.MANY,), thing="entry",
    ),
    Scenario(
        "untar", c.untar3, OPENERS, rival=0.5, transports=TCP, needs=(fixtures.TAR,), undo=c.remove3, thing="file",
    ),
    Scenario(
        "untar-1x16", c.untar3, 1, rival=0.5, transports=TCP, connections=16, shared=True, needs=(fixtures.TAR,),
        undo=c.remove3, thing="file",
    ),
    Scenario(
        "remove", c.remove3, OPENERS, rival=0.5, transports=TCP, needs=(fixtures.TAR,), undo=c.untar3, undo_first=True,
        thing="file",
    ),
    Scenario("mkdir", c.mkdir3, 16, undo=c.rmdir3, **NAME_CHANGE),
    Scenario("rename", c.rename3, 16, undo=c.rename_back3, **NAME_CHANGE),
    Scenario("link", c.link3, 16, undo=c.unlink3, **NAME_CHANGE),
    Scenario("symlink", c.symlink3, 16, undo=c.unsymlink3, **NAME_CHANGE),
    Scenario("setattr-size", c.resize3, 16, fixtures.BLOCK, rival=0.6, transports=TCP, needs=(fixtures.SIZED,)),
    Scenario("open-create-v4.1", c.create4, 16, rival=0.6, minor=1, transports=TCP, undo=c.uncreate3),
    Scenario("open-delegated-v4.1", c.open_delegated4, OPENERS, minor=1, transports=TCP),
    Scenario("getattr-v4.0", c.getattr4, 16, minor=0, transports=TCP),
    Scenario("open-close-v4.0", c.open_close4, OPENERS, minor=0, transports=TCP),
    Scenario("read-4k-32-v4.0", c.read4, 32, 4096, "read", minor=0, transports=TCP),
    Scenario("write-4k-32-v4.0", c.write4, 32, 4096, "write", minor=0, transports=TCP),
    Scenario("getattr-two", c.getattr3, 16, transports=RDMA, rpcrdma=2),
    Scenario("lookup-two", c.lookup3, 16, transports=RDMA, rpcrdma=2),
    Scenario("read-4k-32-two", c.read3, 32, 4096, "read", transports=RDMA, rpcrdma=2),
    Scenario("write-4k-32-two", c.write3, 32, 4096, "write", transports=RDMA, rpcrdma=2),
)  # fmt: skip
SCENARIOS = TODAY + MORE
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def needed(chosen: Iterable[Scenario]) -> set[str]:
    """What must be there for these."""
    return {name for scenario in chosen for name in scenario.needs}


def local(scenario: Scenario) -> bool:
    """Whether it is for servers of this machine only: what it needs is made there, and only ours has version Two."""
    return bool(scenario.needs) or scenario.rpcrdma != 1
