"""A connection to an NFS server for the questions: NFSv3 calls with any chunks, octet by octet."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from nfsd.conformance.records import Records
from rpcrdma.memory import Account
from rpcrdma.peer.requester import Exposed, Message, Peer
from rpcrdma.peer.wire import NOMSG, Malformed, ReplyHeader, Segment, header, words
from rpcrdma.verbs.interface import ListenAddress, Provider
from rpcrdma.wire.private_data import PrivateData

NFS = 100003
INLINE = 4096
"""What the peer says that it sends and receives."""
LINUX = PrivateData(remote_invalidation=True, send_size=INLINE, receive_size=INLINE).encode()
WITHOUT_R = PrivateData(remote_invalidation=False, send_size=INLINE, receive_size=INLINE).encode()
"""Of a peer whose memory nobody may invalidate: that of a process over a device."""
RECEIVES, RECEIVE = 80, 64 << 10
"""More than that is taken, to see what comes."""
MESSAGES = 300
"""Random ones."""
WAITS_FOR_FIRST = 3.0
"""Seconds. siw's accepting side may notice the first message only when the next one comes."""


class Differs(Exception):
    """The server does not do what the item demands; the text says what it does."""


class Absent(Exception):
    """The server lacks what the item is about, as it may; the text says what."""


Question = Callable[["Target"], Awaitable[None]]
QUESTIONS: dict[str, Question] = {}
"""By item; one question may be about several."""


TRANSPORTS: dict[Question, frozenset[str]] = {}
"""Over which a question can be put."""
INVALIDATED: set[Question] = set()
"""Those that need memory which the server may invalidate."""


def asks(*items: str, over: Iterable[str] = ("rdma",), invalidated: bool = False) -> Callable[[Question], Question]:
    """Name a question: the demands it is about, and the transports (``rdma``, ``tcp``) over which it can be put.
    ``invalidated``: it is about memory that the server may invalidate, which is to be had over the embedded iWARP only
    (:attr:`rpcrdma.verbs.interface.Provider.can_be_invalidated`)."""

    def add(question: Question) -> Question:
        TRANSPORTS[question] = frozenset(over)
        if invalidated:
            INVALIDATED.add(question)
        for item in items:
            assert item not in QUESTIONS, item
            QUESTIONS[item] = question
        return question

    return add


def opaque(data: bytes) -> bytes:
    """XDR variable-length opaque data."""
    return words(len(data)) + data + bytes(-len(data) & 3)


def rpc_call(xid: int, procedure: int, program: int = NFS, version: int = 3) -> bytes:
    """The header of a call by root."""
    return struct.pack(">8I", xid, 0, 2, program, version, procedure, 1, 20) + bytes(28)


def status(rpc: bytes) -> int:
    """The NFS status of a whole RPC reply."""
    if rpc[4:24] != words(1, 0, 0, 0, 0):
        raise Differs(f"the RPC reply is {outcome(rpc)}")
    return int.from_bytes(rpc[24:28], "big")


def behind_attributes(rpc: bytes, at: int) -> int:
    """Behind a post_op_attr."""
    return at + 4 + (84 if rpc[at + 3] else 0)


class Link:
    """One connection."""

    _xids = itertools.count(random.SystemRandom().randrange(1 << 30))

    def __init__(self, peer: Peer, root: bytes, patience: float) -> None:
        self.peer, self.root, self.patience = peer, root, patience
        self.xid = 0
        """The last one."""
        self.grant = 0
        """Credits that the last message granted."""
        self.least = 1 << 32
        """The fewest there ever were."""

    def next_xid(self) -> int:
        """One that no connection of this run has used: a call whose memory was refused makes its own suspect."""
        self.xid = next(self._xids)
        return self.xid

    async def wake(self) -> None:
        """NULL calls until one is answered."""
        sent = 0
        while True:
            self.send_null()
            sent += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAITS_FOR_FIRST):
                    for _ in range(sent):
                        await self.reply()
                    return
            if sent > 5:
                raise ConnectionError("no answer to NULL")

    def send_null(self, credit: int = 32) -> int:
        """A NULL call, whose answer nobody waits for; returns its XID."""
        self.next_xid()
        self.peer.send(header(self.xid, credit=credit), rpc_call(self.xid, 0))
        return self.xid

    async def message(self) -> Message:
        """The next message, whatever it is."""
        message = await self.peer.message()
        self.grant = int.from_bytes(message.octets[8:12], "big")
        self.least = min(self.least, self.grant)
        return message

    async def reply(self) -> ReplyHeader:
        """The next message; Differs if it is none that a server may send."""
        message = await self.message()
        try:
            return message.header
        except Malformed as error:
            raise Differs(f"{error}: {message.octets[:64].hex()}") from error

    async def call(
        self,
        procedure: int,
        arguments: bytes,
        *,
        data: bytes | Sequence[Segment] | None = None,
        position: int | None = None,
        xid: int | None = None,
        program: int = NFS,
        version: int = 3,
        long: int = 0,
        **more: Any,
    ) -> ReplyHeader:
        """One RPC. ``data`` goes into a Read chunk at ``position``, the end of the arguments unless told otherwise;
        ``long``: as a Long Call in so many segments. ``more`` is the header's."""
        if xid is None:
            xid = self.next_xid()
        rpc = rpc_call(xid, procedure, program, version) + arguments
        if isinstance(data, bytes):
            data = [self.peer.readable(data).segment()]
        reads = [(len(rpc) if position is None else position, part) for part in data or ()]
        if long:
            size = -(-len(rpc) // long) + 3 & ~3
            area = self.peer.readable(rpc)
            lengths = [min(size, max(0, len(rpc) - start)) for start in range(0, size * long, size)]
            reads = [(0, part) for part in area.segments(*lengths)] + reads
            self.peer.send(header(xid, procedure=NOMSG, reads=reads, **more))
        else:
            self.peer.send(header(xid, reads=reads, **more), rpc)
        found = await self.reply()
        if found.xid != xid:
            raise Differs(f"the answer has the XID {found.xid:#x}, not {xid:#x}")
        return found

    async def raw(self, *parts: bytes) -> ReplyHeader:
        """The answer to any octets."""
        self.peer.send(*parts)
        return await self.reply()

    async def _answer(self, *parts: bytes, null: Callable[[int], bytes] = header) -> ReplyHeader | None:
        """The answer to any octets, if there is one; the connection must outlive them. ``null`` makes the header of
        the NULL behind them."""
        self.peer.send(*parts)
        xid = self.next_xid()
        self.peer.send(null(xid), rpc_call(xid, 0))
        answered = False
        answer = None
        with contextlib.suppress(TimeoutError):
            while answer is None or not answered:
                # A server of several threads may answer the NULL first.
                async with asyncio.timeout(self.patience if answered else None):
                    found = await self.reply()
                if found.xid == xid:
                    answered = True
                else:
                    answer = found
        return answer

    async def discards(self, *parts: bytes, null: Callable[[int], bytes] = header) -> None:
        """Differs if the server answers these octets, or the connection does not outlive them."""
        found = await self._answer(*parts, null=null)
        if found is not None:
            raise Differs(f"it is answered with {name(found)}")

    async def refuses(self, *parts: bytes, code: int = 2) -> ReplyHeader:
        """Differs unless the answer is RDMA_ERROR with this code, and the connection goes on."""
        found = await self._answer(*parts)
        if found is None:
            raise Differs("it is discarded without an answer")
        if found.error != code:
            raise Differs(f"it is answered with {name(found)}")
        return found

    # NFSv3

    async def create(self, file: bytes) -> bytes:
        """The handle of a file of this name, which is made empty."""
        how = words(0, 1, 0o644, 0, 0, 1, 0, 0, 0, 0)
        found = await self.call(8, opaque(self.root) + opaque(file) + how)
        check(found, "CREATE")
        length = int.from_bytes(found.payload[32:36], "big")
        return found.payload[36 : 36 + length]

    async def write(self, handle: bytes, content: bytes, **more: Any) -> ReplyHeader:
        """WRITE by a Read chunk, unless ``more`` says where the data is."""
        arguments = opaque(handle) + struct.pack(">QIII", 0, len(content), 2, len(content))
        return await self.call(7, arguments, **{"data": content, **more})

    async def filled(self, file: bytes, data: bytes) -> bytes:
        """The handle of a file with this content."""
        handle = await self.create(file)
        check(await self.write(handle, data), "WRITE")
        return handle

    async def read(self, handle: bytes, count: int, **more: Any) -> ReplyHeader:
        """READ from the start."""
        return await self.call(6, opaque(handle) + struct.pack(">QI", 0, count), **more)

    async def content(self, handle: bytes, count: int) -> bytes:
        """What READ returns in a Write chunk."""
        target = self.peer.writable(count)
        found = await self.read(handle, count, writes=[[target.segment()]])
        check(found, "READ")
        return bytes(target.memory[: found.writes[0][0].length])


def check(found: ReplyHeader, what: str) -> None:
    """Differs unless it is a success."""
    if name(found) != "success":
        raise Differs(f"{what}: {name(found)}")


def name(found: ReplyHeader) -> str:
    """An answer in a word or two."""
    if found.procedure == 4:
        return {1: f"ERR_VERS {found.versions}", 2: "ERR_CHUNK"}.get(found.error, f"error {found.error}")
    if found.procedure == 1:
        return "RDMA_NOMSG"
    return outcome(found.payload)


def outcome(rpc: bytes) -> str:
    """An RPC reply in a word or two."""
    if rpc[4:12] != words(1, 0):
        return f"an RPC reply that begins with {rpc[:24].hex()}"
    accepted = int.from_bytes(rpc[20:24], "big")
    if accepted:
        return {1: "PROG_UNAVAIL", 2: "PROG_MISMATCH", 3: "PROC_UNAVAIL", 4: "GARBAGE_ARGS"}.get(accepted, "SYSTEM_ERR")
    state = int.from_bytes(rpc[24:28], "big") if len(rpc) > 24 else 0
    return f"NFS status {state}" if state else "success"


class Exchanger(Protocol):
    """A connection for whole RPC messages."""

    async def exchange(self, message: bytes) -> bytes:
        """The answer to a message. Raises ConnectionError, Differs."""


class Inline:
    """The same over RDMA: messages that need no chunks."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def exchange(self, message: bytes) -> bytes:
        """The answer to a message. Raises ConnectionError, Differs."""
        found = await self._link.raw(header(int.from_bytes(message[:4], "big")), message)
        if found.error:
            raise Differs(f"it is answered with {name(found)}")
        return found.payload


class Target:
    """The server that is asked."""

    def __init__(
        self,
        provider: Provider,
        account: Account,
        address: ListenAddress,
        root: bytes,
        path: Sequence[bytes] = (),
        patience: float = 0.0,
        transport: str = "rdma",
        seed: int = 1,
        messages: int = MESSAGES,
    ) -> None:
        """``root`` is NFSv3's handle of a directory in which everything may be done; ``path`` leads there from NFSv4's
        root. ``patience``: seconds after which a message is known to be discarded; a server that answers messages in
        their order needs none. ``seed`` and ``messages`` are of the random ones."""
        self.seed, self.messages = seed, messages
        self.patience = patience
        self.provider, self.account, self.address, self.root = provider, account, address, root
        self.path = path
        self.transport = transport
        self.peers: list[Peer | Records] = []

    async def link(self, private_data: bytes | None = None, *, wake: bool = True) -> Link:
        """A new connection that has been used for a NULL of version One, unless told otherwise."""
        if private_data is None:
            private_data = LINUX if self.provider.can_be_invalidated else WITHOUT_R
        peer = Peer(self.account, RECEIVE)
        await peer.connect(self.provider, self.address, private_data, receives=RECEIVES, initiator_depth=4)
        self.peers.append(peer)
        link = Link(peer, self.root, self.patience)
        if wake:
            await link.wake()
        return link

    async def exchanger(self) -> Exchanger:
        """A new connection for whole RPC messages, over whatever transport it is."""
        if self.transport == "rdma":
            return Inline(await self.link())
        return await self.records()

    async def records(self) -> Records:
        """A new connection over TCP."""
        records = await Records.connect(self.address.host, self.address.port)
        self.peers.append(records)
        return records

    async def leave(self) -> None:
        """End all connections."""
        for peer in self.peers:
            if isinstance(peer, Records):
                peer.close()
            elif peer.reason is None:
                peer.endpoint.close(abort=True)
                await peer.over()
        self.peers.clear()


def lengths(chunk: Sequence[Segment]) -> list[int]:
    """Of a chunk's segments."""
    return [part.length for part in chunk]


def untouched(area: Exposed, what: str) -> None:
    """Differs if the server has written to it."""
    if set(area.memory) != {0xEE}:
        raise Differs(f"{what} has been written to")


def expect(found: object, wanted: object, what: str) -> None:
    """Differs unless they are the same."""
    if isinstance(found, bytes) and isinstance(wanted, bytes) and len(found) == len(wanted) > 32:
        at = next((at for at in range(len(found)) if found[at] != wanted[at]), 0)
        found, wanted, what = found[at : at + 16], wanted[at : at + 16], f"{what}, from octet {at} on"
    if found != wanted:
        raise Differs(f"{what}: {found!r:.80}, not {wanted!r:.80}")
