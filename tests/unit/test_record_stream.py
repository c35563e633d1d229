"""Record marking: what comes out for what arrives, in every cut, within bounds; and what leaves."""

import random
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcrdma.memory import Pool
from rpcrdma.rpc.program import RpcReply
from rpcrdma.rpc.replay import join_reply
from rpcrdma.tcp.stream import RecordError, RecordStream
from rpcrdma.xdr import Payload

LAST = 0x80000000


def mark(length: int, last: bool = True) -> bytes:
    return struct.pack(">I", length | (LAST if last else 0))


def record(data: bytes, fragment: int | None = None) -> bytes:
    """A record, in fragments of at most ``fragment`` octets."""
    if not fragment:
        return mark(len(data)) + data
    pieces = [data[i : i + fragment] for i in range(0, len(data), fragment)] or [b""]
    return b"".join(mark(len(p), i == len(pieces) - 1) + p for i, p in enumerate(pieces))


class Ends:
    """A stream under test and its peer."""

    def __init__(self, limit: int = 64 << 20, max_record: int = 1 << 20, max_fragments: int = 100) -> None:
        self.peer, self.own = socket.socketpair()
        for sock in (self.peer, self.own):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self.own.setblocking(False)
        self.pool = Pool(64 << 20)
        self.account = self.pool.account(limit)
        self.stream = RecordStream(self.own.fileno(), self.account, max_record, max_fragments)

    def receive(self, readable: bool = True) -> list[bytes]:
        found = []
        for view, hold in self.stream.receive(readable):
            found.append(bytes(view))
            hold.release()
        return found

    def close(self) -> None:
        self.stream.close()
        self.peer.close()
        self.own.close()
        assert self.pool.in_use == 0


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_many_records_come_out_of_one_wakeup(ends: Ends) -> None:
    messages = [bytes([i]) * (i * 7) for i in range(100)]
    ends.peer.sendall(b"".join(map(record, messages)))
    assert ends.receive() == messages
    assert ends.receive() == []
    assert ends.pool.in_use == 0  # an idle connection holds no memory


@pytest.mark.parametrize("size", [0, 1, 3, 32764, 32765, 65532, 65536, 65537, 1 << 20])
@pytest.mark.parametrize("fragment", [None, 11000])
def test_sizes_around_the_read_buffer(ends: Ends, size: int, fragment: int | None) -> None:
    data = random.Random(size).randbytes(size)
    ends.peer.sendall(record(b"before") + record(data, fragment) + record(b"after"))
    found: list[bytes] = []
    while len(found) < 3:
        found += ends.receive()
    assert found == [b"before", data, b"after"]
    assert not ends.stream.partial


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_of_any_records_gives_the_same_records(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32), label="seed")
    rng = random.Random(seed)
    sizes = data.draw(st.lists(st.sampled_from([0, 4, 40, 100, 3000, 40000, 70000, 200000]), max_size=8), label="sizes")
    messages = [rng.randbytes(size) for size in sizes]
    stream = b"".join(record(m, rng.choice([None, None, 1 + len(m) // 3, 9999])) for m in messages)
    ends, held, found, at = Ends(), [], [], 0
    while at < len(stream):
        step = rng.choice([1, 2, 3, 5, 50, 4096, 65536, 150000])
        ends.peer.sendall(stream[at : at + step])
        at += step
        for view, hold in ends.stream.receive():
            found.append(bytes(view))
            held.append((view, hold))
    for _ in messages:  # what was more than a turn's
        for view, hold in ends.stream.receive():
            found.append(bytes(view))
            held.append((view, hold))
    for (view, hold), message in zip(held, messages, strict=True):
        assert bytes(view) == message  # still there: later reads went elsewhere
        hold.release()
    assert found == messages
    ends.close()


def test_a_record_beyond_the_bound_is_refused_before_anything_is_allocated() -> None:
    ends = Ends(max_record=1000)
    ends.peer.sendall(record(bytes(1000)))
    assert ends.receive() == [bytes(1000)]
    ends.peer.sendall(mark(0x7FFFFFFF))
    with pytest.raises(RecordError):
        ends.receive()
    assert ends.pool.mapped <= 8 << 20
    ends.close()


def test_fragments_together_are_bounded() -> None:
    ends = Ends(max_record=1000)
    ends.peer.sendall(mark(600, last=False) + bytes(600))
    assert ends.receive() == []
    ends.peer.sendall(mark(401))
    with pytest.raises(RecordError):
        ends.receive()
    ends.close()


@pytest.mark.parametrize("length", [0, 1])
def test_the_number_of_fragments_is_bounded(length: int) -> None:
    ends = Ends(max_fragments=5)
    ends.peer.sendall((mark(length, last=False) + bytes(length)) * 5)
    assert ends.receive() == []
    ends.peer.sendall(mark(0, last=False))
    with pytest.raises(RecordError):
        ends.receive()
    ends.close()


def test_partial_says_whether_something_is_under_way(ends: Ends) -> None:
    assert not ends.stream.partial
    for octet in record(b"abc")[:-1]:
        ends.peer.sendall(bytes([octet]))
        assert ends.receive() == []
        assert ends.stream.partial
    ends.peer.sendall(b"c")
    assert ends.receive() == [b"abc"]
    assert not ends.stream.partial


def test_a_large_record_is_under_way_in_its_own_buffer_if_the_peer_has_sent_one_before(ends: Ends) -> None:
    ends.peer.sendall(record(b"first"))
    assert ends.receive() == [b"first"]
    ends.peer.sendall(mark(100000) + bytes(10))
    assert ends.receive() == []
    assert ends.stream.partial
    assert ends.stream.missing == 99990
    assert ends.pool.in_use == 131072


def test_a_promise_costs_nothing_but_what_has_arrived_does(ends: Ends) -> None:
    ends.peer.sendall(mark(1 << 20) + bytes(10))
    assert ends.receive() == []
    assert ends.pool.in_use == 65536  # the read buffer
    for arrived, held in [(30_000, 65536), (60_000, 1 << 18), (250_000, 1 << 18), (300_000, 1 << 20)]:
        ends.peer.sendall(bytes(arrived - (1 << 20) - 4 + ends.stream.missing + 4))
        assert ends.receive() == []
        assert ends.stream.missing == (1 << 20) - arrived
        assert ends.pool.in_use <= held, arrived
    ends.peer.sendall(bytes(ends.stream.missing))
    assert ends.receive() == [bytes(1 << 20)]


@pytest.mark.parametrize("fragment", [None, 40_000, 200_000])
@pytest.mark.parametrize("chunk", [997, 70_000, 1 << 20])
def test_a_large_record_arrives_as_it_was_sent_whatever_its_buffers(fragment: int | None, chunk: int) -> None:
    """The first one of a peer in buffers that grow, a later one in a buffer of its own."""
    ends = Ends()
    messages = [random.Random(seed).randbytes(700_001 + seed) for seed in range(3)]
    octets = b"".join(record(message, fragment) for message in messages)
    found = []
    for at in range(0, len(octets), chunk):
        ends.peer.sendall(octets[at : at + chunk])
        found += ends.receive()
        while ends.stream.unfinished:
            found += ends.receive()
    assert found == messages
    ends.close()


def test_memory_that_was_given_is_used_or_returned(ends: Ends) -> None:
    ends.stream.give(ends.account.lease(65536))
    ends.stream.give(ends.account.lease(65536))
    assert ends.pool.in_use == 65536
    ends.receive(readable=False)
    assert ends.pool.in_use == 0
    blocker = [ends.account.lease(4 << 20) for _ in range(16)]
    ends.peer.sendall(record(b"x"))
    assert ends.receive() == []
    assert ends.stream.starved == 65536
    blocker.pop().release()
    ends.stream.give(ends.account.lease(65536))
    blocker.append(ends.account.lease(1 << 20))
    assert ends.receive() == [b"x"]
    for lease in blocker:
        lease.release()


def test_short_memory_loses_nothing() -> None:
    ends = Ends(limit=196608)
    blocker = ends.account.lease(131072)
    message = random.Random(1).randbytes(100000)
    ends.peer.sendall(record(b"first") + record(message) + record(b"last"))
    assert ends.receive() == [b"first"]
    assert ends.stream.starved == 100000
    assert ends.receive(readable=False) == []
    assert ends.stream.starved
    blocker.release()
    found = ends.receive(readable=False)
    assert not ends.stream.starved
    while len(found) < 2:
        found += ends.receive()
    assert found == [message, b"last"]
    ends.close()


def test_no_read_buffer_means_starved() -> None:
    ends = Ends(limit=65536)
    blocker = ends.account.lease(65536)
    ends.peer.sendall(record(b"x"))
    assert ends.receive() == []
    assert ends.stream.starved == 65536
    blocker.release()
    assert ends.receive() == [b"x"]
    ends.close()


def test_end_of_stream(ends: Ends) -> None:
    ends.peer.sendall(record(b"bye"))
    ends.peer.shutdown(socket.SHUT_WR)
    assert ends.receive() == [b"bye"]
    assert ends.receive() == []
    assert ends.stream.eof


class Hold:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


def reply(head: bytes, *payloads: tuple[int, bytes]) -> tuple[RpcReply, list[Hold]]:
    holds = [Hold() for _ in payloads]
    made = [(at, Payload(memoryview(data), hold)) for (at, data), hold in zip(payloads, holds, strict=True)]
    return RpcReply(1, head, made), holds


@pytest.mark.parametrize(
    "payloads",
    [
        (),
        ((4, b"12345"),),
        ((0, b"12345"),),
        ((12, b"1234567"),),
        ((4, b""),),
        ((4, b"1"), (4, b"22"), (8, b"333"), (12, b"4444")),
    ],
)
def test_a_reply_is_one_record_with_payloads_and_padding(ends: Ends, payloads: tuple[tuple[int, bytes], ...]) -> None:
    made, holds = reply(b"headbodytail", *payloads)
    expected = record(join_reply(made))
    ends.stream.queue(made)
    assert ends.stream.queued == len(expected)
    assert [hold.released for hold in holds] == [0] * len(holds)
    assert ends.stream.flush()
    assert ends.peer.recv(1000) == expected
    assert [hold.released for hold in holds] == [1] * len(holds)
    assert ends.stream.queued == 0
    assert ends.stream.sent_octets == len(expected)


def test_replies_leave_in_order_though_the_peer_takes_little_at_a_time(ends: Ends) -> None:
    ends.own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    rng = random.Random(5)
    expected, holds, got, queued = b"", [], b"", 0
    for index in range(300):
        made, of_one = reply(rng.randbytes(24), (4, rng.randbytes(rng.choice([0, 3, 500, 20000]))))
        expected += record(join_reply(made))
        holds += of_one
        ends.stream.queue(made)
        queued += 1
        if index % 7 == 0:
            ends.stream.flush()
            got += ends.peer.recv(rng.choice([1, 100, 5000]))
    assert sum(hold.released for hold in holds) < queued
    while not ends.stream.flush():
        got += ends.peer.recv(65536)
    while len(got) < len(expected):
        got += ends.peer.recv(65536)
    assert got == expected
    assert [hold.released for hold in holds] == [1] * queued


def test_closing_releases_what_has_not_left(ends: Ends) -> None:
    ends.own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    holds = []
    for _ in range(5):
        made, of_one = reply(b"head", (4, bytes(100000)))
        holds += of_one
        ends.stream.queue(made)
    assert not ends.stream.flush()
    ends.stream.close()
    assert [hold.released for hold in holds] == [1] * 5


def test_a_reply_that_cannot_be_queued_is_released_and_leaves_nothing_behind(ends: Ends) -> None:
    made, (hold,) = reply(b"head", (400, b"data"))
    with pytest.raises(ValueError, match="offset"):
        ends.stream.queue(made)
    assert hold.released == 1
    good, _ = reply(b"good")
    ends.stream.queue(good)
    ends.stream.flush()
    assert ends.peer.recv(100) == record(b"good")


def test_a_reply_that_cannot_be_queued_leaves_nothing_behind_though_the_queue_moves(ends: Ends) -> None:
    ends.own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    expected, got = b"", b""
    for index in range(32):  # two pieces each: the queue's first room is used up
        made, _ = reply(b"first") if index < 20 else reply(bytes(100_000))
        expected += record(join_reply(made))
        ends.stream.queue(made)
    assert not ends.stream.flush()
    assert ends.stream.sent_octets > 20 * 9
    queued = ends.stream.queued
    bad, _ = reply(b"head", (400, b"data"))
    with pytest.raises(ValueError, match="offset"):
        ends.stream.queue(bad)
    assert ends.stream.queued == queued
    while not ends.stream.flush():
        got += ends.peer.recv(65536)
    while len(got) < len(expected):
        got += ends.peer.recv(65536)
    ends.peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.peer.recv(1)
    assert got == expected


def test_a_peer_that_is_gone_is_an_error(ends: Ends) -> None:
    ends.peer.close()
    made, (hold,) = reply(b"head", (4, b"data"))
    ends.stream.queue(made)
    with pytest.raises(BrokenPipeError):
        ends.stream.flush()
    ends.stream.close()
    assert hold.released == 1


def test_records_that_came_before_a_reset_come_out() -> None:
    """They fill the read buffer, so that the error comes with the next system call of the same wake-up."""
    listener = socket.create_server(("127.0.0.1", 0))
    peer = socket.create_connection(listener.getsockname())
    own, _ = listener.accept()
    own.setblocking(False)
    pool = Pool(64 << 20)
    stream = RecordStream(own.fileno(), pool.account(64 << 20))
    with listener, peer, own:
        peer.sendall(record(bytes(60)) * 1024)
        while len(own.recv(1 << 20, socket.MSG_PEEK)) < 1 << 16:
            pass
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        records = stream.receive()
        for _, hold in records:
            hold.release()
        assert len(records) == 1024
        assert (stream.eof, stream.severed) == (True, True)
        stream.queue(reply(b"nobody gets it")[0])
        assert stream.flush(), "nothing is kept for a connection that is broken"
        stream.close()
    assert pool.in_use == 0


def test_no_more_records_come_out_at_once_than_were_asked_for(ends: Ends) -> None:
    stream = RecordStream(ends.own.fileno(), ends.account, most_records=100)
    messages = [bytes([i % 256]) * (i % 3) for i in range(1050)]
    ends.peer.sendall(b"".join(map(record, messages)))
    came, most = [], 0
    readable = True
    while readable or stream.unfinished:
        records = stream.receive(readable)
        readable, most = False, max(most, len(records))
        for view, hold in records:
            came.append(bytes(view))
            hold.release()
    assert came == messages
    assert most == 100
    stream.close()
