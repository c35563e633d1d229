"""Scenarios: what is asked of a server, as calls ready to be sent, over TCP and over RDMA.

The calls are NFSv3's (RFC 1813) and NFSv4.1's (RFC 8881) as Linux sends them. Over RDMA (RFC 8166), READ offers a Write
chunk and WRITE a Read chunk; the others are short messages.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bench.generator import Generator, Load, Loads
from bench.nfs41 import Session
from bench.rdma_generator import RdmaGenerator
from bench.servers import Server
from nfsd.protocol.nfs3 import NFS_PROGRAM, diropargs3, nfs_fh3
from rpcrdma.xdr import pack
from tests.nfs3_client import Nfs3Client

FILE_SIZE = 64 << 20
DATA = random.randbytes(1 << 20)
"""What is written."""
MOST_DATA = 64 << 20
"""Octets of data in all the calls of a scenario."""
PATIENCE = struct.pack("ll", 60, 0)
"""A timeval: how long a call may take."""
OPENERS = 16
"""Files that are opened and closed at the same time."""
OFFSETS = 1024
"""Different calls of a scenario; they are sent in turn."""


@dataclass(frozen=True, slots=True)
class Files:
    """What is served, and the caller."""

    root: nfs_fh3
    data: nfs_fh3
    uid: int = 0
    session: Session | None = None
    """For calls of NFSv4.1: a handle is the same in both versions."""

    @property
    def nfs41(self) -> Session:
        """The session, which the scenario asked for."""
        assert self.session is not None
        return self.session


async def prepare(server: Server, uid: int = 0) -> Files:
    """Make the file of data and look it up."""
    server.lay_out(FILE_SIZE)
    root, data = await handles(server, "/export")
    return Files(root, data, uid)


async def handles(server: Server, export: str) -> tuple[nfs_fh3, nfs_fh3]:
    """Of an export's root and of the file of data in it."""
    async with await Nfs3Client.connect(server.host, server.mountd) as mountd:
        root = await mountd.mount(export)
    async with await Nfs3Client.connect(server.host, server.tcp) as nfs:
        return root, await nfs.lookup(root, b"data")


def rpc(files: Files, procedure: int, arguments: bytes) -> bytes:
    """A call of NFSv3; its XID is zero."""
    credential = struct.pack(">II4sIII", 0, 4, b"load", files.uid, files.uid, 0)
    head = struct.pack(">8I", 0, 0, 2, NFS_PROGRAM, 3, procedure, 1, len(credential))
    return head + credential + bytes(8) + arguments


def offsets(size: int) -> list[int]:
    """Random multiples of ``size`` in the file."""
    return [random.randrange(FILE_SIZE // size) * size for _ in range(OFFSETS)]


def getattr3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 1, pack(nfs_fh3, files.data))]


def lookup3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 3, pack(nfs_fh3, files.root) + struct.pack(">I4s", 4, b"data"))]


def access3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 4, pack(nfs_fh3, files.data) + struct.pack(">I", 0x3F))]


def read3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 6, pack(nfs_fh3, files.data) + struct.pack(">QI", at, size)) for at in offsets(size)]


def write3(files: Files, size: int) -> list[bytes]:
    """Unstable WRITEs."""
    tails = [struct.pack(">QIII", at, size, 0, size) + DATA[:size] for at in offsets(size)[: MOST_DATA // size]]
    return [rpc(files, 7, pack(nfs_fh3, files.data) + tail) for tail in tails]


def names3(files: Files, size: int) -> list[bytes]:
    """CREATE of many files, LOOKUP of each, REMOVE of each: in turn, so that none is asked for before it is there."""
    attributes = struct.pack(">6I", 1, 0o644, 0, 0, 0, 0) + struct.pack(">I", 0)
    names = [b"file %04d" % number for number in range(OFFSETS)]
    places = [pack(diropargs3, diropargs3(files.root, name)) for name in names]
    creations = [rpc(files, 8, place + struct.pack(">I", 0) + attributes) for place in places]
    return creations + [rpc(files, 3, place) for place in places] + [rpc(files, 12, place) for place in places]


def getattr41(files: Files, size: int) -> list[bytes]:
    return [files.nfs41.getattr()]


def lookup41(files: Files, size: int) -> list[bytes]:
    return [files.nfs41.lookup()]


def access41(files: Files, size: int) -> list[bytes]:
    return [files.nfs41.access()]


def open41(files: Files, size: int) -> list[bytes]:
    """The same open owner's open of the same file, again and again."""
    return [files.nfs41.open()]


def open_close41(files: Files, size: int) -> list[bytes]:
    """OPEN and CLOSE in turn, of as many files as there are calls outstanding."""
    return files.nfs41.opens_and_closes(OPENERS)


def read41(files: Files, size: int) -> list[bytes]:
    return [files.nfs41.read(at, size) for at in offsets(size)]


def write41(files: Files, size: int) -> list[bytes]:
    """Unstable WRITEs."""
    return [files.nfs41.write(at, DATA[:size]) for at in offsets(size)[: MOST_DATA // size]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of call, so many of them outstanding on one connection."""

    name: str
    calls: Callable[[Files, int], list[bytes]]
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
    nfs41: bool = False
    """The calls are of NFSv4.1 and need a session."""
    transports: tuple[str, ...] = ("tcp", "rdma")
    """Over which it is measured."""

    @contextmanager
    def load(
        self, server: Server, files: Files, transport: str, connections: int = 1, *, lenient: bool = False
    ) -> Iterator[Load | Loads]:
        """The load, on so many connections, which are closed afterwards. ``lenient``: calls may fail."""
        options: dict[str, Any] = {"lenient": lenient}
        sessions: list[Session | None] = [None] * connections
        calls: list[bytes] = []
        with ExitStack() as open_ones:
            loads = []
            with server.network():
                if self.nfs41:
                    sessions = [Session(server, self.outstanding, files.uid) for _ in sessions]
                sockets = [open_ones.enter_context(server.connect(transport)) for _ in sessions]
            for sock, session in zip(sockets, sessions, strict=True):
                if not lenient:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)
                if session is not None:
                    options["sequence_at"] = session.sequence_at
                if session is not None or not calls:
                    with server.network():
                        calls = self.calls(replace(files, session=session), self.size)
                if session is not None:
                    options["pairs"] = session.pairs
                loads.append(self._on(sock, transport, calls, options))
            yield loads[0] if connections == 1 else Loads(loads)

    def _on(self, sock: socket.socket, transport: str, calls: list[bytes], options: dict[str, Any]) -> Load:
        """The load on one connection."""
        if transport == "tcp":
            return Generator(sock.fileno(), calls, self.outstanding, **options)
        bulk, position = b"", 0
        if self.direction == "read":
            options = options | {"handle_at": 28, "written": self.size}
        elif self.direction == "write":
            options = options | {"handle_at": 24}
            bulk = DATA[: self.size]
            position = calls[0].index(bulk)
            calls = [call[:position] + call[position + self.size :] for call in calls]
        head = _rdma_header(self, position)
        calls = [head + call for call in calls]
        return RdmaGenerator(sock.fileno(), calls, self.outstanding, rpc_at=len(head), bulk=bulk, **options)


def _rdma_header(scenario: Scenario, position: int) -> bytes:
    """A version One header with the scenario's chunk in one segment, whose handle is filled in call by call."""
    reads = struct.pack(">IIIIQ", 1, position, 0, scenario.size, 0) if scenario.direction == "write" else b""
    writes = struct.pack(">IIIIQ", 1, 1, 0, scenario.size, 0) if scenario.direction == "read" else b""
    return struct.pack(">4I", 0, 1, 128, 0) + reads + bytes(4) + writes + bytes(8)


SCENARIOS = (
    Scenario("getattr", getattr3, 16, goal=1.1),
    Scenario("lookup", lookup3, 16, goal=1.1),
    Scenario("access", access3, 16, goal=1.1),
    Scenario("read-4k-1", read3, 1, 4096, "read"),
    Scenario("read-4k-32", read3, 32, 4096, "read", goal=1.3),
    Scenario("write-4k-32", write3, 32, 4096, "write", goal=1.5),
    Scenario("read-1m-4", read3, 4, 1 << 20, "read", rival=0.7),
    Scenario("write-1m-4", write3, 4, 1 << 20, "write", rival=0.7),
    Scenario("create-stat-unlink", names3, 16, rival=0.4, transports=("tcp",)),
    Scenario("getattr-v4.1", getattr41, 16, goal=1.6, nfs41=True),
    Scenario("lookup-v4.1", lookup41, 16, goal=1.6, nfs41=True),
    Scenario("access-v4.1", access41, 16, goal=1.6, nfs41=True),
    Scenario("open-v4.1", open41, 16, goal=4, nfs41=True),
    Scenario("open-close-v4.1", open_close41, OPENERS, nfs41=True),
    Scenario("read-4k-32-v4.1", read41, 32, 4096, "read", goal=1.6, nfs41=True),
    Scenario("write-4k-32-v4.1", write41, 32, 4096, "write", goal=1.8, nfs41=True),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
