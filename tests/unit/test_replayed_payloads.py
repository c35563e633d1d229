"""A COMPOUND's reply that is sent again goes where the retransmission's chunks want it.

RFC 8166 sections 3.4.6 and 4.3.2, RFC 8267 section 6, RFC 8881 section 2.10.6.1; draft-cel version Two, "Transport
Errors".
"""

import random

import pytest

from nfsd.protocol import nfs4 as p
from rpcrdma.peer import wire
from rpcrdma.peer.requester import Peer
from rpcrdma.verbs.interface import ListenAddress
from tests.peer.rig import LINUX
from tests.support.nfs4_native import BothRdma, comparable, handle_of, run
from tests.unit import vfs_support
from tests.unit.test_nfs4_native import getattr_, putfh, read

TARGET = "t" * 201
CANT_REPLY, ERROR = wire.CANT_REPLY, wire.ERROR


def on(tmp_path, scenario, minor=1):
    with vfs_support.directory_on("memory", tmp_path) as path:
        return run(path, tmp_path, minor, scenario, BothRdma)


class Caller:
    """Sends messages in one version, with Write chunks of any lengths, to one of the servers."""

    @classmethod
    async def to(cls, both, version, which):
        """On a connection of its own, since each has one version."""
        self = cls()
        self.version = version
        self.peer = Peer(both.peer_pool.account(64 << 20))
        address = ListenAddress("127.0.0.1", both.servers[which].port)
        both.peers.append(await self.peer.connect(both.provider, address, LINUX))
        return self

    async def call(self, message, *rooms, reply=None):
        """The reply's header, and what is in the chunks. A room is a chunk, or several segments of one; None is the
        empty chunk."""
        memories, chunks = [], []
        for room in rooms:
            segments = () if room is None else (room,) if isinstance(room, int) else room
            memory = self.peer.writable(max(sum(segments), 1))
            memories.append(memory)
            chunks.append(memory.segments(*segments))
        lists = {"writes": chunks}
        if reply is not None:
            self.long_reply = self.peer.writable(reply)
            lists["reply"] = [self.long_reply.segment()]
        header = wire.header if self.version == 1 else wire.header_two
        found = await self.peer.call(header(int.from_bytes(message[:4], "big"), **lists), message)
        assert (found.xid, found.version) == (int.from_bytes(message[:4], "big"), self.version)
        lengths = [[segment.length for segment in chunk] for chunk in found.writes]
        data = [bytes(memory.memory[: sum(used)]) for memory, used in zip(memories, lengths, strict=False)]
        return found, lengths, data


def again(message, xid=None):
    """The retransmission, perhaps with another XID (RFC 8881 section 2.10.6.1.3.1)."""
    return message if xid is None else xid.to_bytes(4, "big") + message[4:]


async def prepared(both):
    """A file, a symlink, and what reads both in one COMPOUND: data, symlink, data of no octets, data."""
    content = random.Random(5).randbytes(1000)
    (both.path / "a").write_bytes(content)
    (both.path / "l").symlink_to(TARGET)
    stateid, handle = await both.client.open("/0", b"a")
    link = await handle_of(both, b"l")
    operations = [
        putfh(handle), read(stateid, 0, 601), putfh(link), p.OP_READLINK, putfh(handle), read(stateid, 5000, 10),
        read(stateid, 3, 303), getattr_(),
    ]  # fmt: skip
    return content, operations


@pytest.mark.parametrize("which", [0, 1], ids=["native", "general"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_reply_sent_again_is_reduced_anew(tmp_path, version, which):
    async def scenario(both):
        content, operations = await prepared(both)
        caller = await Caller.to(both, version, which)
        items = [content[:601], TARGET.encode(), b"", content[3:306]]
        message = both.message(which, *operations, cache=True)
        first, lengths, data = await caller.call(message, 1000, (100, 200), 8, 1000)
        assert data == items
        assert lengths == [[601], [100, 101], [0], [303]]
        # The file is another one meanwhile: only what was kept can be the answer.
        (both.path / "a").write_bytes(bytes(2000))
        for number, rooms in enumerate(
            [(1000, (100, 200), 8, 1000), ((200, 401), 201, 0, 303), (601, 201, 1, 400, 50)]
        ):
            found, lengths, data = await caller.call(again(message, None if number else 7777), *rooms)
            assert data[:4] == items
            assert [sum(used) for used in lengths] == [601, 201, 0, 303, 0][: len(rooms)]
            assert found.payload[4:] == first.payload[4:]
        # Without chunks, or with the empty one, it comes inline, and is the whole of it.
        whole, lengths, data = await caller.call(message)
        assert all(item in whole.payload for item in items)
        found, lengths, data = await caller.call(message, None, 201, None, 303)
        assert (lengths, data[1], data[3]) == ([[], [201], [], [303]], items[1], items[3])
        assert items[0] in found.payload
        assert items[1] not in found.payload
        # In the Reply chunk is what is in no chunk of its own.
        found, lengths, data = await caller.call(message, 601, reply=4096)
        assert (lengths, data) == ([[601]], [items[0]])
        # And the slot goes on.
        message = both.message(which, *operations[:2], cache=True)
        found, lengths, data = await caller.call(message, 1000)
        assert data == [bytes(601)]

    on(tmp_path, scenario)


@pytest.mark.parametrize("which", [0, 1], ids=["native", "general"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_reply_without_room_comes_when_there_is_some(tmp_path, version, which):
    """Version Two says what is missing and has the same XID again; version One says so with ERR_CHUNK, and the client
    may send the request again in its slot."""

    async def scenario(both):
        content, operations = await prepared(both)
        caller = await Caller.to(both, version, which)
        await caller.call(both.message(which, putfh(await handle_of(both))))  # settles the version
        message = both.message(which, *operations, cache=True)
        found, _, _ = await caller.call(message, 601, 200)
        assert found.procedure == ERROR
        if version == 2:
            assert (found.error, found.shortage) == (CANT_REPLY, (1, 2, 201))
        (both.path / "a").write_bytes(bytes(2000))
        found, lengths, data = await caller.call(message, 601, 201)
        assert (found.procedure, lengths) == (wire.MSG, [[601], [201]])
        assert data == [content[:601], TARGET.encode()]

    on(tmp_path, scenario)


def test_what_is_kept_is_the_same_for_a_connection_without_rdma(tmp_path):
    async def scenario(both):
        content, operations = await prepared(both)
        caller = await Caller.to(both, 1, 1)
        message = both.message(1, *operations, cache=True)
        await caller.call(message, 1000, 300)
        client = both.client
        over_loopback = await both.server.call(client.transport, message)
        inline, _, _ = await caller.call(message)
        assert comparable(over_loopback) == comparable(inline.payload)
        assert content[:601] in over_loopback

    on(tmp_path, scenario)


def test_kept_replies_have_their_bound(tmp_path):
    """ca_maxresponsesize_cached counts the reply as XDR has it, wherever its items went (RFC 8881 section 18.36.3)."""

    async def scenario(both):
        (both.path / "a").write_bytes(bytes(100_000))
        stateid, handle = await both.client.open("/0", b"a")
        cached = both.session.fore.maxresponsesize_cached
        caller = await Caller.to(both, 1, 1)
        message = both.message(1, putfh(handle), read(stateid, 0, 100_000), cache=True)
        _, _, (data,) = await caller.call(message, 100_000)
        slot = both.session.slots[2]
        assert cached - 300 < len(data) < len(slot.reply) <= cached, "a short READ"
        _, _, again = await caller.call(message, 100_000)
        assert again == [data]
        # Not asked for, it is not kept.
        message = both.message(1, putfh(handle), read(stateid, 0, 10))
        await caller.call(message, 10)
        assert slot.reply is None

    on(tmp_path, scenario)


@pytest.mark.parametrize("which", [0, 1], ids=["native", "general"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_long_listing_between_items_takes_no_write_chunk(tmp_path, version, which):
    """It is no DDP-eligible item (RFC 8267): the Write chunks are those of the data around it."""

    async def scenario(both):
        content = random.Random(5).randbytes(1000)
        (both.path / "a").write_bytes(content)
        (both.path / "many").mkdir()
        names = [b"name %04d" % number + b"-" * 200 for number in range(300)]
        for name in names:
            (both.path / "many" / name.decode()).touch()
        stateid, handle = await both.client.open("/0", b"a")
        many = await handle_of(both, b"many")
        listing = (p.OP_READDIR, p.READDIR4args(0, bytes(8), 1 << 20, 1 << 20, [1 << p.FATTR4_FILEID]))
        operations = [putfh(handle), read(stateid, 0, 601), putfh(many), listing, putfh(handle), read(stateid, 3, 303)]
        caller = await Caller.to(both, version, which)
        found, lengths, data = await caller.call(both.message(which, *operations), 1000, 500, 4096, reply=200_000)
        assert (lengths, data) == ([[601], [303], [0]], [content[:601], content[3:306], b""])
        reply = bytes(caller.long_reply.memory[: sum(segment.length for segment in found.reply)])
        assert len(reply) > 300 * 220
        assert all(name in reply for name in names)
        # Put together again it is what a connection without RDMA gets.
        at = reply.index((601).to_bytes(4, "big")) + 4, reply.rindex((303).to_bytes(4, "big")) + 4
        whole = reply[: at[0]] + content[:601] + bytes(3) + reply[at[0] : at[1]] + content[3:306] + bytes(1)
        status, results = both.client.parse(whole + reply[at[1] :])
        assert status == 0
        assert [entry.name for entry in results[4][1].resok4.reply.entries] == [
            entry.name for entry in (await both.client.on(many, listing))[0].resok4.reply.entries
        ]

    on(tmp_path, scenario)
