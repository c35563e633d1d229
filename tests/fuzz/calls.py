"""Target ``calls``: whole NFSv3 calls, answered where they arrive and as general calls, over TCP and over RDMA.

One file service stands behind two servers of each kind; one of them answers calls where they arrive
(``nfsd/v3/procedures`` over ``rpcrdma/rpc/native``, ``rpcrdma/engine/native`` and ``rpcrdma/tcp/stream``), the other
one as general calls (``rpcrdma/rpc/dispatch`` and ``offers``).
Both get the same octets: over TCP in fragments and cuts of the input's choice, over RDMA with chunks of its choice.

What must hold
    Both give the same answer, octet for octet, or both close the connection; both write and invalidate the same.
    What GETATTR, ACCESS and READ say is what the kernel says of the file.
    (SETATTR, WRITE, COMMIT, CREATE and REMOVE change what they answer about. Each server has a file and a directory of
    its own for them, and times and the identity of what is made are left aside.)
    The sanitizer watches the native code; what lies behind a received message in its buffer is poisoned while natively
    answered calls are decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import logging
import os
import socket
import struct
import tempfile
from typing import Any

from nfsd.protocol.nfs3 import NFS_PROGRAM
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.memory import Pool
from rpcrdma.peer import wire
from rpcrdma.peer.requester import Exposed, Peer
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.rdma import RdmaConnection, RdmaServer
from rpcrdma.server.tcp import TcpListener
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from rpcrdma.wire.private_data import PrivateData
from tests.fuzz.iwarp_fakes import Errors
from tests.fuzz.nfs3_calls import COUNTS, NAMING, WRITE, Call, Input, comparable
from tests.support import nfs3_truth
from tests.support.general_calls import GeneralCalls
from tests.unit import vfs_support

DIRECTORIES = ("names a", "names b")
MOST_CALLS = 6
PATIENCE = 60
LINUX = PrivateData(True, 4096, 4096).encode()


class Sanitizer:
    """AddressSanitizer's switch for memory that may not be touched; does nothing where there is none."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self.on = hasattr(library, "__asan_poison_memory_region")
        if self.on:
            # By name in a string: Python would mangle the attribute's.
            self._poison = library["__asan_poison_memory_region"]
            self._restore = library["__asan_unpoison_memory_region"]
            for function in (self._poison, self._restore):
                function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    @contextlib.contextmanager
    def without_tails(self, messages: Any) -> Any:
        """Poison what lies behind each message in its lease."""
        if not self.on:
            yield
            return
        tails = [(lease.address + length, lease.capacity - length) for lease, length, _ in messages]
        for address, length in tails:
            self._poison(address, length)
        try:
            yield
        finally:
            for address, length in tails:
                self._restore(address, length)


class Watched:
    """Takes what has arrived on a connection, and shows it that."""

    def __init__(self, connection: RdmaConnection, sanitizer: Sanitizer) -> None:
        self.take, self.sanitizer = connection.received, sanitizer

    def __call__(self, messages: Any) -> None:
        with self.sanitizer.without_tails(messages):
            self.take(messages)


class Tcp:
    """A client of one of the TCP servers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.socket: socket.socket | None = None

    async def call(self, message: bytes, cuts: list[int], shape: int) -> bytes | None:
        """The record that answers; None when the connection is closed instead."""
        loop = asyncio.get_running_loop()
        if self.socket is None:
            self.socket = socket.socket()
            self.socket.setblocking(False)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(self.socket, self.address)
        octets = self.record(message, cuts if shape & 1 else [])
        edges = [*sorted({cut % (len(octets) + 1) for cut in cuts} if shape & 2 else ()), len(octets)]
        try:
            for start, end in itertools.pairwise([0, *edges]):
                if start < end:
                    await loop.sock_sendall(self.socket, octets[start:end])
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
            mark = int.from_bytes(await self.exactly(4), "big")
            assert mark & 0x80000000
            return await self.exactly(mark & 0x7FFFFFFF)
        except TimeoutError:
            raise AssertionError(f"no answer to {message.hex()}") from None
        except (EOFError, OSError):
            self.close()
            return None

    @staticmethod
    def record(message: bytes, cuts: list[int]) -> bytes:
        """The message as a record, in fragments that end at the cuts (RFC 5531 section 11)."""
        edges = [0, *sorted(cut % (len(message) + 1) for cut in cuts), len(message)]
        pieces = [message[start:end] for start, end in itertools.pairwise(edges)]
        marks = [len(piece) | (0x80000000 if index == len(pieces) - 1 else 0) for index, piece in enumerate(pieces)]
        return b"".join(struct.pack(">I", mark) + piece for mark, piece in zip(marks, pieces, strict=True))

    async def exactly(self, length: int) -> bytes:
        assert self.socket is not None
        data = b""
        async with asyncio.timeout(PATIENCE):
            while len(data) < length:
                more = await asyncio.get_running_loop().sock_recv(self.socket, length - len(data))
                if not more:
                    raise EOFError
                data += more
        return data

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


class Rdma:
    """A client of one of the RDMA servers."""

    def __init__(self, target: Target, server: RdmaServer, address: ListenAddress) -> None:
        self.target, self.server, self.address = target, server, address
        self.peer: Peer | None = None

    async def connected(self) -> Peer:
        if self.peer is None or self.peer.reason is not None:
            self.peer = Peer(self.target.peer_pool.account(64 << 20))
            await self.peer.connect(self.target.provider, self.address, LINUX)
            for connection in self.server.connections:
                if not isinstance(connection.received, Watched):
                    connection.received = Watched(connection, self.target.sanitizer)  # type: ignore[method-assign]
            # The first reply settles the version; only then are calls answered natively.
            self.peer.send(wire.header(1), struct.pack(">10I", 1, 0, 2, NFS_PROGRAM, 3, 0, 0, 0, 0, 0))
            await self.peer.message()
        return self.peer

    async def call(self, call: Call, xid: int, message: bytes, bulk: bytes | None) -> tuple[Any, ...] | None:
        """All that can be seen of the outcome; None when the connection ends instead."""
        peer = await self.connected()
        lists: dict[str, Any] = {}
        memory: list[Exposed] = []
        if call.shape & 4:
            room = COUNTS[call.shape >> 4 & 7]
            memory.append(peer.writable(max(room, 1)))
            edges = [0, *sorted(cut % (room + 1) for cut in call.cuts), room]
            lists["writes"] = [[memory[-1].segment(start, end - start) for start, end in itertools.pairwise(edges)]]
        if bulk is not None:
            memory.append(peer.readable(bulk or b"\0"))
            edges = [0, *sorted(cut % (len(bulk) + 1) for cut in call.cuts), len(bulk)]
            segments = [memory[-1].segment(start, end - start) for start, end in itertools.pairwise(edges)]
            lists["reads"] = [(len(message), segment) for segment in segments]
        if call.shape & 8:
            memory.append(peer.writable(8192))
            lists["reply"] = [memory[-1].segment()]
        handles = [each.handle for each in memory]
        peer.send(wire.header(xid, **lists), message)
        try:
            octets, invalidated = await peer.message()
        except ConnectionError:
            assert peer.reason is not None, f"no answer to {message.hex()}"
            self.peer = None
            return None
        for handle in handles:
            if handle != invalidated:
                peer.endpoint.invalidate(handle)
        header = wire.ReplyHeader.parse(octets)
        return (
            header.xid,
            header.procedure,
            header.error,
            header.credit,
            [[segment.length for segment in each] for each in header.writes],
            None if header.reply is None else [segment.length for segment in header.reply],
            comparable(call, header.payload) if call.changing else header.payload,
            [bytes(each.memory) for each in memory],
            None if invalidated is None else handles.index(invalidated),
        )


class Target:
    """The four servers, and the files behind them."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = {}
        self.sanitizer = Sanitizer()
        self.errors = Errors()
        logging.getLogger().addHandler(self.errors)
        self.loop = asyncio.new_event_loop()
        self.stack = contextlib.ExitStack()
        self.path = self.stack.enter_context(vfs_support.directory_on("memory", ""))
        self.state = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.xid = 100
        self.inputs = 0
        self.loop.run_until_complete(self.start())

    async def start(self) -> None:
        self.serving = vfs_support.serving(self.path, self.state, squash="none")
        self.service, self.root = await self.serving.__aenter__()
        self.pool, self.peer_pool = Pool(256 << 20), Pool(512 << 20)
        self.provider = SoftIwarp(self.pool)
        programs = [Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(self.service, self.service.exports)})]
        natives = [{(NFS_PROGRAM, 3): Nfs3Procedures(self.service)} for _ in range(2)]
        self.native = Dispatcher(programs, natives=natives[0])
        dispatchers = [self.native, GeneralCalls(programs, natives=natives[1])]
        self.listeners = [TcpListener(each, self.pool, asyncio.get_running_loop()) for each in dispatchers]
        self.servers = [RdmaServer(self.provider, self.pool, each) for each in dispatchers]
        self.tcp, self.rdma = [], []
        for listener, server in zip(self.listeners, self.servers, strict=True):
            listener.listen("127.0.0.1", 0)
            self.tcp.append(Tcp(listener.address))
            listening = await server.listen(ListenAddress("127.0.0.1", 0))
            self.rdma.append(Rdma(self, server, listening.address))
        self.nodes = [self.root]
        for name, size, mode in ((b"empty", 0, 0o644), (b"large", 70_000, 0o644), (b"secret", 5000, 0o600)):
            data = bytes(index * 3 & 0xFF for index in range(size))
            self.nodes.append(await vfs_support.write_file(self.service, self.root, name, data, mode=mode))
        self.own = [
            await vfs_support.write_file(self.service, self.root, name, b"x" * 5000, mode=0o666)
            for name in (b"a", b"b")
        ]
        self.directories = []
        for name in DIRECTORIES:
            os.mkdir(os.path.join(self.path, name))
            os.chmod(os.path.join(self.path, name), 0o777)
            node, _ = await self.service.lookup(vfs_support.ROOT, self.root, name.encode())
            await self.service.opening.own_open(node, "")
            self.directories.append(node)
        for name in os.listdir(self.path):
            os.utime(os.path.join(self.path, name), (2_000_000_000, 1_600_000_000))

    def close(self) -> None:
        """Stop the servers and remove the files."""
        self.loop.run_until_complete(self.stop())
        self.loop.close()
        self.stack.close()
        logging.getLogger().removeHandler(self.errors)

    async def stop(self) -> None:
        for client in self.tcp:
            client.close()
        for listener in self.listeners:
            listener.close()
        for server in self.servers:
            await server.close()
        await self.provider.close()
        await self.serving.__aexit__(None, None, None)

    def one(self, data: bytes) -> None:
        """Check one input. Raises AssertionError, or whatever the code under test should not have raised."""
        self.errors.records.clear()
        self.inputs += 1
        if self.inputs % 100 == 0:
            self.shorten()
        self.loop.run_until_complete(self.run(data))
        assert not self.errors.records, self.errors.records
        assert self.pool.leaked == 0

    async def run(self, data: bytes) -> None:
        source = Input(data)
        for _ in range(MOST_CALLS):
            if source.over:
                return
            over_rdma = source.octet() & 1
            call = Call(source)
            if not call.again:
                self.xid += 1
            answered = self.natively()
            await (self.over_rdma(call) if over_rdma else self.over_tcp(call))
            if self.natively() > answered:
                name = f"{'rdma' if over_rdma else 'tcp'} {call.procedure}"
                self.reached[name] = self.reached.get(name, 0) + 1

    def natively(self) -> int:
        """Calls answered natively so far."""
        return sum(row.native_calls for row in self.native.rows.values())

    def handles(self, call: Call) -> list[bytes]:
        """The file that each of both servers is asked about."""
        if call.changing:
            return [node.handle for node in (self.directories if call.procedure in NAMING else self.own)]
        return [self.nodes[call.node % len(self.nodes)].handle] * 2

    def messages(self, call: Call, inline: bool) -> list[bytes | None]:
        """The call for each of both servers; with None if it is not to be made."""
        handles = self.handles(call)
        made = [call.message(self.xid, handle, inline) for handle in handles]
        whole = [message is None or handle in message for handle, message in zip(handles, made, strict=True)]
        # An octet of one handle may happen to be what the damage makes of it; of the other one it is not.
        return made if whole[0] == whole[1] else [None]

    async def over_tcp(self, call: Call) -> None:
        messages = self.messages(call, True)
        if None in messages:
            return
        general = await self.tcp[1].call(messages[1] or b"", [], 0)
        native = await self.tcp[0].call(messages[0] or b"", call.cuts, call.shape)
        if call.changing:
            assert comparable(call, native) == comparable(call, general)
            self.same_files()
        else:
            assert native == general
            self.is_true(call, general)

    def is_true(self, call: Call, reply: bytes | None) -> None:
        """What is said of a file is what the kernel says of it."""
        if call.damage or reply is None:
            return
        node = self.nodes[call.node % len(self.nodes)]
        expected = nfs3_truth.results(node, call.procedure, call.arguments(node.handle, True), call.caller)
        assert expected is None or reply[20:] == bytes(4) + expected

    async def over_rdma(self, call: Call) -> None:
        bulk = call.data if call.procedure == WRITE and call.word & 1 else None
        messages = self.messages(call, bulk is None)
        if None in messages or any(len(message or b"") > 3500 for message in messages):
            return
        outcomes = [
            await client.call(call, self.xid, message or b"", bulk)
            for client, message in zip(reversed(self.rdma), reversed(messages), strict=True)
        ]
        assert outcomes[0] == outcomes[1]
        if call.changing:
            self.same_files()

    def same_files(self) -> None:
        """What was written is the same in both files, and both directories have files of the same names. (A damaged
        offset makes large files, of holes.)"""
        listings = [
            sorted(
                (entry.name, entry.stat().st_mode, entry.stat().st_uid, entry.stat().st_size)
                for entry in os.scandir(each)
            )
            for each in (os.path.join(self.path, name) for name in DIRECTORIES)
        ]
        assert listings[0] == listings[1]
        seen = []
        for name in ("a", "b"):
            with open(os.path.join(self.path, name), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(100_000)
                file.seek(max(size - 10_000, 0))
                seen.append((size, head, file.read(10_000)))
        assert seen[0] == seen[1]
        if seen[0][0] > 100_000:
            self.shorten()

    def shorten(self) -> None:
        for name in ("a", "b"):
            os.truncate(os.path.join(self.path, name), 5000)
            os.chown(os.path.join(self.path, name), 0, 0)
            os.chmod(os.path.join(self.path, name), 0o666)
        for name in DIRECTORIES:
            for entry in os.scandir(os.path.join(self.path, name)):
                os.unlink(entry.path)
