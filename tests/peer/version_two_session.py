"""A session in version Two with a server of its own, from the negotiation to every error, and its transcript:

    python -m tests.peer.version_two_session

Starts ``rdma-nfsd serve`` on loopback, mounts its export over NFSv3 and over NFSv4.1, and prints every RPC-over-RDMA
message in both directions in words. The peer is the synthetic one: no code of the server's engine is on its side.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nfsd.protocol import nfs3
from nfsd.protocol import nfs4 as p
from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Exposed, Peer
from rpcrdma.peer.wire import NOMSG, ReplyHeader, header, header_two, option, words
from rpcrdma.verbs.device import make_provider
from rpcrdma.verbs.interface import ListenAddress, Provider
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from rpcrdma.wire.private_data import PrivateData
from rpcrdma.xdr import pack
from tests.nfs3_client import Nfs3Client, attributes, auth_sys
from tests.peer.describe import describe
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, mode

CONFIG = """
server:
  listen:
    - {url: "rdma://ADDRESS:0", provider: PROVIDER}
    - {url: "rdma://ADDRESS:0", provider: PROVIDER, version_two: false}
    - "tcp://127.0.0.1:0"
  mountd_port: 0
  rpcbind: false
  nfs4: {grace_time: 0}
  state_dir: ./state
exports:
  - {path: ./export, pseudo: /export, squash: none}
"""


@contextlib.contextmanager
def server(base: Path, device: str = "") -> Iterator[dict[str, Any]]:
    """``rdma-nfsd serve`` with two RDMA listeners, the second without version Two; gives the ports, and the process's
    id. ``device`` is the address of an RDMA device that is to be used instead of the embedded iWARP."""
    (base / "export").mkdir()
    config = CONFIG.replace("ADDRESS", device or "127.0.0.1").replace("PROVIDER", "verbs" if device else "softiwarp")
    (base / "exports.yaml").write_text(config)
    process = subprocess.Popen(
        [sys.executable, "-m", "nfsd.cli", "serve", "--config", str(base / "exports.yaml")],
        stdout=subprocess.PIPE,
        stderr=(base / "log").open("ab"),
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("rdma-nfsd ready: "), (base / "log").read_text()
        rdma = re.findall(r"rdma://[^ ]*:(\d+)", line)
        mountd = re.search(r" mountd tcp://127\.0\.0\.1:(\d+)", line)
        assert mountd is not None, line
        assert len(rdma) == 2, line
        tcp = re.search(r" tcp://127\.0\.0\.1:(\d+)", line)
        assert tcp is not None, line
        ports = {"two": int(rdma[0]), "one": int(rdma[1]), "tcp": int(tcp[1]), "mountd": int(mountd[1])}
        yield {**ports, "pid": process.pid}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, (base / "log").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


class Transcript:
    """What is said, and what happened."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.titles: list[tuple[int, str]] = []
        """With the time of each, in nanoseconds."""
        self.quiet: list[tuple[int, int]] = []
        """From when to when what happened was left out."""

    def title(self, text: str) -> None:
        self.lines += ["", f"## {text}"]
        self.titles.append((time.time_ns(), text))

    def message(self, arrow: str, octets: bytes, note: str = "") -> None:
        first, *more = describe(octets)
        self.lines.append(f"{arrow} {first}{note}")
        self.lines += [f"       {line}" for line in more]

    def text(self) -> str:
        """Everything."""
        return numbered("\n".join(self.lines)).strip()


def numbered(text: str) -> str:
    """With handles and XIDs numbered in the order of their appearance: they are random."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        kind = "#" if found[1] == "xid " else "H"
        number = sum(known.startswith(kind) for known in names.values()) + 1
        value = found[2]
        return found[1] + (names.setdefault(kind + value, f"{kind}{number}") if value != "0x0" else "none")

    return re.sub(r"(xid |rdma_inv_handle |octets of |octets to |invalidates )(0x[0-9a-f]+)", name, text)


class Connection:
    """One connection in version Two whose callbacks are answered; also what Client4 wants of transport and server."""

    max_backchannel_size = 1

    def __init__(self, peer: Peer, transcript: Transcript, end: CallbackEnd, can_be_invalidated: bool = True) -> None:
        self.peer, self.transcript, self.end = peer, transcript, end
        self.can_be_invalidated = can_be_invalidated
        self.open = asyncio.Event()
        """While it is not set, what arrives is left unread."""
        self.open.set()
        self._waiting: dict[int, asyncio.Future[ReplyHeader]] = {}
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            message = await self.peer.message()
            await self.open.wait()
            note = "" if message.invalidated is None else f"; invalidates {message.invalidated:#x}"
            self.transcript.message("server", message.octets, note)
            reply = message.header
            if reply.version == 2 and reply.procedure != 4 and reply.direction == 0:
                answer = await self.end.answer(reply.payload, self)
                self.send(header_two(reply.xid, direction=1, credit=2), answer)
            else:
                self._waiting.pop(reply.xid).set_result(reply)

    def send(self, *parts: bytes) -> None:
        self.transcript.message("client", b"".join(parts))
        self.peer.send(*parts)

    async def exchange(self, *parts: bytes) -> ReplyHeader:
        future = asyncio.get_running_loop().create_future()
        self._waiting[int.from_bytes(parts[0][:4], "big")] = future
        self.send(*parts)
        return await asyncio.wait_for(future, 20)

    def inv_handle(self, memory: Exposed) -> int:
        """The handle to be named in rdma_inv_handle; 0 where the provider's memory cannot be invalidated from afar."""
        return memory.handle if self.can_be_invalidated else 0

    async def call(self, transport: Connection, message: bytes) -> bytes:
        """One short call: Client4's server is the connection itself."""
        reply = await transport.exchange(header_two(int.from_bytes(message[:4], "big")), message)
        assert reply.error == 0
        return reply.payload

    def stop(self) -> None:
        self._reader.cancel()
        self.peer.endpoint.close(abort=True)


class Nfs3:
    """NFSv3 calls on a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        credential = auth_sys(os.getuid(), os.getgid()).body
        self._credential = struct.pack(">II", 1, len(credential)) + bytes(credential) + bytes(8)
        self._xid = 0x30000000

    def encode(self, procedure: int, arguments: bytes, xid: int | None = None) -> tuple[int, bytes]:
        if xid is None:
            self._xid += 1
            xid = self._xid
        return xid, struct.pack(">6I", xid, 0, 2, 100003, 3, procedure) + self._credential + arguments

    async def call(self, procedure: int, arguments: bytes = b"", xid: int | None = None, **chunks: Any) -> ReplyHeader:
        xid, message = self.encode(procedure, arguments, xid)
        return await self.connection.exchange(header_two(xid, **chunks), message)


async def session(ports: dict[str, Any], device: str = "") -> Transcript:
    """Everything in order, over the embedded iWARP or the device of this address. Fails when the server does not do
    what the draft says."""
    transcript = Transcript()
    pool = Pool(256 << 20)
    provider: Provider = make_provider(pool) if device else SoftIwarp(pool)
    # Whoever cannot be invalidated must not say so in private data (RFC 8797 section 4.1).
    private = PrivateData(provider.can_be_invalidated, 4096, 4096).encode()
    host = device or "127.0.0.1"
    connections: list[Connection] = []

    async def connect(listener: str) -> Connection:
        peer = Peer(pool.account(32 << 20))
        await peer.connect(provider, ListenAddress(host, ports[listener]), private, initiator_depth=4)
        connection = Connection(peer, transcript, CallbackEnd(), provider.can_be_invalidated)
        connections.append(connection)
        return connection

    try:
        async with await Nfs3Client.connect("127.0.0.1", ports["mountd"]) as mountd:
            root = await mountd.mount("/export")
        await _not_supported(transcript, await connect("one"))
        first = await connect("two")
        await _nfs3(transcript, first, root)
        await _nfs4(transcript, first, await connect("two"))
        await _errors(transcript, first, root)
    finally:
        for connection in connections:
            connection.stop()
        await provider.close()
    return transcript


async def _not_supported(transcript: Transcript, connection: Connection) -> None:
    transcript.title("Negotiation with a listener that has version Two switched off")
    nfs = Nfs3(connection)
    refused = await nfs.call(0)
    assert (refused.error, refused.versions) == (1, (1, 1))
    xid, message = nfs.encode(0, b"")
    assert (await connection.exchange(header(xid), message)).version == 1


async def _nfs3(transcript: Transcript, connection: Connection, root: nfs3.nfs_fh3) -> None:
    transcript.title("Negotiation: the first message, NFSv3's NULL, is answered in version Two")
    nfs, peer = Nfs3(connection), connection.peer
    assert (await nfs.call(0)).version == 2

    then = ", which the reply invalidates" if connection.can_be_invalidated else ""
    transcript.title(f"NFSv3: CREATE, then a WRITE of 100000 octets from a Read chunk{then}")
    how = nfs3.createhow3(nfs3.createmode3.GUARDED, obj_attributes=attributes(mode=0o644))
    where = nfs3.diropargs3(root, b"file")
    created = await nfs.call(8, pack(nfs3.CREATE3args, nfs3.CREATE3args(where, how)))
    assert created.payload[24:28] == bytes(4)
    length = int.from_bytes(created.payload[32:36], "big")
    handle = nfs3.nfs_fh3(created.payload[36 : 36 + length])
    data = bytes(number % 251 for number in range(100000))
    source = peer.readable(data)
    whole = pack(nfs3.WRITE3args, nfs3.WRITE3args(handle, 0, len(data), nfs3.stable_how.FILE_SYNC, memoryview(b"")))
    arguments = whole[:-4] + struct.pack(">I", len(data))
    position = len(nfs.encode(7, arguments, 0)[1])
    reads = [(position, source.segment())]
    written = await nfs.call(7, arguments, reads=reads, inv_handle=connection.inv_handle(source))
    assert (written.payload[24:28], written.inv_handle) == (bytes(4), connection.inv_handle(source))

    transcript.title("NFSv3: READ into a Write chunk, which is not to be invalidated")
    target = peer.writable(len(data))
    reading = pack(nfs3.READ3args, nfs3.READ3args(handle, 0, len(data)))
    got = await nfs.call(6, reading, writes=[[target.segment()]])
    assert target.memory == data
    assert got.inv_handle == 0

    transcript.title("The same READ with too small a chunk; then again with what the error asks for, and the same XID")
    small = peer.writable(60000)
    refused = await nfs.call(
        6, reading, 0x77, writes=[small.segments(40000, 20000)], inv_handle=connection.inv_handle(small)
    )
    assert refused.shortage == (1, 2, 60000)
    larger = peer.writable(100000)
    got = await nfs.call(
        6, reading, 0x77, writes=[larger.segments(40000, 60000)], inv_handle=connection.inv_handle(larger)
    )
    assert got.error == 0
    assert larger.memory == data

    transcript.title("NFSv3: a Long Call and a Long Reply (READDIRPLUS of 60 names)")
    for number in range(60):
        where = nfs3.diropargs3(root, b"a name of some length, number %d" % number)
        await _quietly(transcript, nfs.call(8, pack(nfs3.CREATE3args, nfs3.CREATE3args(where, how))))
    listing = pack(nfs3.READDIRPLUS3args, nfs3.READDIRPLUS3args(root, 0, bytes(8), 8192, 32768))
    xid, message = nfs.encode(17, listing)
    body: Exposed = peer.readable(message)
    area = peer.writable(40000)
    chunks: dict[str, Any] = {"reads": [(0, body.segment())], "reply": [area.segment()]}
    chunks["inv_handle"] = connection.inv_handle(area)
    listed = await connection.exchange(header_two(xid, procedure=NOMSG, **chunks))
    assert listed.procedure == NOMSG
    assert b"number 59" in bytes(area.memory)


async def _quietly(transcript: Transcript, waiting: Any) -> None:
    """Leave it out of the transcript."""
    kept, begun = list(transcript.lines), time.time_ns()
    await waiting
    transcript.lines = kept
    transcript.quiet.append((begun, time.time_ns()))


async def _nfs4(transcript: Transcript, one: Connection, other: Connection) -> None:
    transcript.title("NFSv4.1: two clients; one waits for the other's lock, and is called back when it is free")
    clients = [Client4(link, 1, transport=link, name=name) for link, name in ((one, b"one"), (other, b"two"))]
    opened = []
    access = p.OPEN4_SHARE_ACCESS_BOTH | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG
    for client in clients:
        await client.connect()
        opened.append(await client.open("/export", b"locked", access=access, create=mode(0o666)))
    locked = []
    for client, (stateid, handle) in zip(clients, opened, strict=True):
        owner = p.lock_owner4(client.clientid, b"owner")
        locker = p.locker4(True, p.open_to_lock_owner4(0, stateid, 0, owner))
        args = p.LOCK4args(p.nfs_lock_type4.WRITEW_LT, False, 0, 10, locker)
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        locked.append(await client.raw(*client.in_session(there, (p.OP_LOCK, args))))
    assert [status for status, _ in locked] == [p.NFS4_OK, p.NFS4ERR_DENIED]
    stateid = locked[0][1][-1][1].resok4.lock_stateid
    unlock = p.LOCKU4args(p.nfs_lock_type4.WRITE_LT, 0, stateid, 0, 10)
    other.open.clear()  # LOCKU's reply and the callback come on two connections: read them in this order
    await clients[0].on(opened[0][1], (p.OP_LOCKU, unlock))
    other.open.set()
    await other.end.arrival(1)
    assert other.end.operations == [p.OP_CB_NOTIFY_LOCK]
    await clients[1].run(p.OP_PUTROOTFH)  # the callback's reply has been sent by then


async def _errors(transcript: Transcript, connection: Connection, root: nfs3.nfs_fh3) -> None:
    nfs = Nfs3(connection)
    transcript.title("RDMA2_ERR_VERS: the connection has settled on version Two")
    xid, message = nfs.encode(0, b"")
    refused = await connection.exchange(header(xid), message)
    assert (refused.version, refused.error, refused.versions) == (1, 1, (1, 2))
    refused = await connection.exchange(words(0x81, 3, 32, 0) + bytes(40))
    assert (refused.version, refused.error, refused.versions) == (3, 1, (1, 2))
    transcript.title("RDMA2_ERR_BAD_XDR: the Write list has no end")
    refused = await connection.exchange(words(0x82, 2, 32, 0, 0, 0, 0, 1, 0xFFFFFFFF, 0))
    assert refused.error == 2
    transcript.title("RDMA2_ERR_CANT_REPLY: a listing, and no Reply chunk")
    listing = pack(nfs3.READDIRPLUS3args, nfs3.READDIRPLUS3args(root, 0, bytes(8), 8192, 32768))
    refused = await nfs.call(17, listing)
    assert refused.shortage is not None
    assert refused.shortage[:2] == (1, 0)
    transcript.title("RDMA2_ERR_INVAL_PROC: version One's RDMA_DONE is unknown here")
    assert (await connection.exchange(words(0x84, 2, 32, 3, 0, 0, 0))).error == 4
    transcript.title("RDMA2_ERR_INVAL_OPTION: no extension is registered")
    assert (await connection.exchange(option(0x85, 1, b"anything there?"))).error == 5
    transcript.title("After all that, the connection is as good as before")
    assert (await nfs.call(0)).error == 0


def comparable(text: str) -> list[str]:
    """A transcript without the sizes of NFSv4's messages, in which names of the host are."""
    return [re.sub(r"\d+ octets inline", "octets inline", line.rstrip()) for line in text.strip().splitlines()]


def main() -> None:
    """Print the transcript."""
    with tempfile.TemporaryDirectory() as directory, server(Path(directory)) as ports:
        print(asyncio.run(session(ports)).text())


if __name__ == "__main__":
    main()
