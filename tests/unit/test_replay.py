"""The replay cache: what a retransmission gets, and what is forgotten when."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Annotated

import pytest

from rpcrdma.rpc.dispatch import NO_REPLY, Dispatcher
from rpcrdma.rpc.messages import accept_stat
from rpcrdma.rpc.program import Call, DropCall, Procedure, Program, RpcReply
from rpcrdma.rpc.replay import ENTRY_COST, HOST_COST, Peer, ReplayCache, join_reply, make_key
from rpcrdma.xdr import DDP, Payload, opaque, struct, uint32
from tests.rfc.plugin import covers
from tests.unit.rpc_support import NONE, FakeTransport, Replies, auth_sys, call

PEER = Peer(FakeTransport())


def octets_for(entries: int, hosts: int = 1) -> int:
    """The memory in which there is room for so many replies of 28 octets."""
    wanted = entries * (ENTRY_COST + 28) + hosts * HOST_COST
    octets = wanted
    while ReplayCache(max_bytes=octets).room < wanted:
        octets += 16
    return octets


@struct
class blob:
    data: Annotated[bytes | memoryview | Payload, opaque(1 << 20), DDP]


class Counter:
    """A procedure that must not be executed twice: it counts."""

    def __init__(self, cache: ReplayCache | None = None) -> None:
        self.count = 0
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        rows = {
            0: Procedure("COUNT", self.handle, None, uint32, replay=True),
            1: Procedure("STORE", self.handle, blob, uint32, replay=True),
        }
        self.dispatcher = Dispatcher([Program(400000, "count", {3: rows})], cache)

    async def handle(self, _: Call, __: object) -> int:
        self.count += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.count

    def send(self, transport: FakeTransport, message: memoryview, replies: Replies | None = None) -> Replies:
        replies = replies or Replies()
        self.dispatcher.dispatch(transport, message, (), [], replies)
        return replies


def count_of(replies: Replies, index: int = -1) -> int:
    _, results = replies.header(index)
    return results.uint32()


@covers("RFC 8267 6.3 any-port")
def test_a_retransmission_gets_the_first_reply_on_any_connection_of_that_client() -> None:
    counter = Counter()
    assert count_of(counter.send(over_rdma(700), call(0))) == 1
    assert count_of(counter.send(over_rdma(701), call(0))) == 1
    assert counter.count == 1
    assert counter.dispatcher.replay.hits == 1


def over_rdma(port: int) -> FakeTransport:
    transport = FakeTransport()
    transport.netid, transport.peer_port = "rdma", port
    return transport


def test_on_tcp_another_port_is_another_client() -> None:
    counter = Counter()
    assert count_of(counter.send(FakeTransport(), call(0))) == 1
    other = FakeTransport()
    other.peer_port = 701
    assert count_of(counter.send(other, call(0))) == 2
    assert count_of(counter.send(FakeTransport(), call(0))) == 1


@pytest.mark.parametrize("transport", [FakeTransport, lambda: over_rdma(700)], ids=["tcp", "rdma"])
@pytest.mark.parametrize("at", [0, 255, 256, 1000, 65_535, 99_999])
def test_arguments_that_differ_anywhere_are_another_call(transport: Callable[[], FakeTransport], at: int) -> None:
    counter = Counter()
    octets = bytearray(100_000)
    for expected in (1, 2):
        arguments = len(octets).to_bytes(4, "big") + bytes(octets)
        for _ in range(2):
            assert count_of(counter.send(transport(), call(1, arguments))) == expected
        octets[at] = 1


def test_of_a_long_call_over_tcp_both_ends_tell_and_over_rdma_every_octet() -> None:
    counter = Counter()
    for transport, places in ((over_rdma(700), (0, 65_536, 500_000, 999_999)), (FakeTransport(), (0, 65_000, 999_999))):
        octets = bytearray(1_000_000)
        executed = counter.count
        for at in places:
            octets[at] ^= 1
            for _ in range(2):
                counter.send(transport, call(1, len(octets).to_bytes(4, "big") + bytes(octets)))
        assert counter.count == executed + len(places)
        # Lengths are told apart where the ends are alike.
        keys = {
            make_key(Peer(transport), 1, (400000, 3, 0), call(0, bytes(length)), 40, ())
            for length in (900_000, 900_004)
        }
        assert len(keys) == 2


@pytest.mark.parametrize("transport", [FakeTransport, lambda: over_rdma(700)], ids=["tcp", "rdma"])
def test_another_caller_is_another_call(transport: Callable[[], FakeTransport]) -> None:
    counter = Counter()
    callers = [NONE, auth_sys(0), auth_sys(4242), auth_sys(0, 1), auth_sys(0, gids=(5,)), auth_sys(machine=b"other")]
    for _ in range(2):
        for number, credential in enumerate(callers, 1):
            assert count_of(counter.send(transport(), call(0, credential=credential))) == number


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        ("192.0.2.2", call(0)),
        ("192.0.2.1", call(0, xid=2)),
        ("192.0.2.1", call(0, bytes(4))),
        ("192.0.2.1", call(1, bytes(4))),
    ],
)
def test_anything_else_is_another_call(peer: str, message: memoryview) -> None:
    counter = Counter()
    counter.send(FakeTransport(), call(0))
    assert count_of(counter.send(FakeTransport(peer), message)) == 2


def test_arguments_that_differ_only_in_content_are_another_call() -> None:
    counter = Counter()
    counter.send(FakeTransport(), call(1, b"\0\0\0\4abcd"))
    assert count_of(counter.send(FakeTransport(), call(1, b"\0\0\0\4abce"))) == 2


def test_a_new_stamp_in_the_credential_makes_no_difference() -> None:
    counter = Counter()
    for stamp in (1, 2):
        assert count_of(counter.send(FakeTransport(), call(0, credential=auth_sys(stamp=stamp)))) == 1


def test_retransmission_while_executing() -> None:
    async def main() -> None:
        counter = Counter()
        counter.gate = asyncio.Event()
        first, second = FakeTransport(), FakeTransport()
        on_first = counter.send(first, call(0))
        assert on_first.all == []
        assert counter.send(first, call(0)).all == [NO_REPLY]  # the reply is on its way
        first.closed = True  # the connection died: the client asks on a new one
        on_second = counter.send(second, call(0))
        assert on_second.all == []
        assert counter.send(second, call(0)).all == [NO_REPLY]
        counter.gate.set()
        await counter.dispatcher.drain(5)
        assert count_of(on_first) == count_of(on_second) == 1
        assert len(on_second.all) == 1
        assert count_of(counter.send(second, call(0))) == 1
        assert counter.count == 1

    asyncio.run(main())


def test_what_failed_inside_is_tried_again_and_those_who_waited_are_told() -> None:
    async def main() -> None:
        counter = Counter()
        counter.gate = asyncio.Event()
        counter.error = RuntimeError("bug")
        first = counter.send(FakeTransport(), call(0))
        second = counter.send(FakeTransport(), call(0))
        counter.gate.set()
        await counter.dispatcher.drain(5)
        for replies in (first, second):
            assert replies.header()[0].body.rbody.areply.reply_data.stat == accept_stat.SYSTEM_ERR  # type: ignore[union-attr]
        assert len(counter.dispatcher.replay) == 0
        counter.error = DropCall()
        assert counter.send(FakeTransport(), call(0)).all == [None]
        counter.error = None
        assert count_of(counter.send(FakeTransport(), call(0))) == 3

    asyncio.run(main())


def test_bounds_forget_the_oldest_but_never_what_is_executing() -> None:
    async def main() -> None:
        cache = ReplayCache(max_bytes=octets_for(3))
        counter = Counter(cache)
        gate = counter.gate = asyncio.Event()
        waiting = counter.send(FakeTransport(), call(0, xid=0))
        counter.gate = None
        for xid in range(1, 11):
            counter.send(FakeTransport(), call(0, xid=xid))
        assert len(cache) == 4
        assert cache.size == 3 * (ENTRY_COST + 28) + HOST_COST
        assert counter.send(FakeTransport(), call(0, xid=0)).all == []
        assert count_of(counter.send(FakeTransport(), call(0, xid=10))) == 11
        assert counter.count == 11
        counter.send(FakeTransport(), call(0, xid=1))
        assert counter.count == 12
        gate.set()
        await counter.dispatcher.drain(5)
        assert count_of(waiting) == 12

    asyncio.run(main())


def test_one_host_does_not_push_out_what_another_has_done() -> None:
    cache = ReplayCache(max_bytes=octets_for(100, hosts=2))
    counter = Counter(cache)
    for xid in range(10):
        counter.send(FakeTransport("192.0.2.7"), call(0, xid=xid))
    for xid in range(1000):
        counter.send(FakeTransport(), call(0, xid=xid))
    assert cache.size <= cache.max_bytes
    executed = counter.count
    for xid in range(10):
        assert count_of(counter.send(FakeTransport("192.0.2.7"), call(0, xid=xid))) == xid + 1
    assert counter.count == executed
    assert len(cache) == 100


def test_of_hosts_that_hold_much_the_one_that_calls_makes_the_room() -> None:
    cache = ReplayCache(max_bytes=octets_for(100, hosts=2))
    counter = Counter(cache)
    for host in ("192.0.2.7", "192.0.2.8"):
        for xid in range(50):
            counter.send(FakeTransport(host), call(0, xid=xid))
    counter.send(FakeTransport("192.0.2.8"), call(0, xid=50))
    assert count_of(counter.send(FakeTransport("192.0.2.7"), call(0, xid=0))) == 1
    assert counter.count == 101
    counter.send(FakeTransport("192.0.2.8"), call(0, xid=0))
    assert counter.count == 102


def test_addresses_of_one_ipv6_network_have_one_share() -> None:
    cache = ReplayCache(max_bytes=octets_for(100, hosts=2))
    counter = Counter(cache)
    counter.send(FakeTransport("2001:db8:1::7"), call(0, xid=7))
    for number in range(1000):
        counter.send(FakeTransport(f"2001:db8:2:0:{number:x}::1"), call(0))
    assert cache.hosts == 2
    assert count_of(counter.send(FakeTransport("2001:db8:1::7"), call(0, xid=7))) == 1


def test_thousands_of_hosts_cost_no_more_than_their_entries() -> None:
    clock = [0.0]
    cache = ReplayCache(max_bytes=octets_for(100, hosts=100), clock=lambda: clock[0])
    counter = Counter(cache)
    for number in range(20_000):
        clock[0] += 0.001
        counter.send(FakeTransport(f"10.0.{number >> 8}.{number & 255}"), call(0))
        assert cache.hosts <= 300
    assert len(cache) == 100
    # What has expired goes while others call, and its hosts with it.
    clock[0] += 1000.0
    for xid in range(200):
        counter.send(FakeTransport(), call(0, xid=xid))
    assert cache.hosts == 1


def test_a_host_that_holds_little_keeps_it_whoever_else_comes() -> None:
    cache = ReplayCache(max_bytes=octets_for(1000, hosts=21))
    counter = Counter(cache)
    counter.send(FakeTransport("192.0.2.200"), call(0, xid=99))
    for number in range(50_000):  # 20 hosts, who have 50 entries each in the end
        counter.send(FakeTransport(f"192.0.2.{number % 20}"), call(0, xid=number))
    assert count_of(counter.send(FakeTransport("192.0.2.200"), call(0, xid=99))) == 1


def test_a_call_again_after_its_reply_has_expired_is_executed_and_kept_anew() -> None:
    clock = [0.0]
    cache = ReplayCache(max_bytes=octets_for(4), ttl=120, clock=lambda: clock[0])
    counter = Counter(cache)
    counter.send(FakeTransport(), call(0))
    clock[0] = 121.0
    assert count_of(counter.send(FakeTransport(), call(0))) == 2
    for xid in range(2, 5):
        counter.send(FakeTransport(), call(0, xid=xid))
    assert count_of(counter.send(FakeTransport(), call(0))) == 2
    assert cache.size == 4 * (ENTRY_COST + 28) + HOST_COST


def test_each_reply_is_found_until_its_turn_to_go_has_come() -> None:
    """However the replies lie in the table: some stand where others would stand first, and move when those go."""
    most = 120
    cache = ReplayCache(max_bytes=octets_for(most))
    transport = FakeTransport()
    kept: deque[bytes] = deque(maxlen=most)
    gone: deque[bytes] = deque(maxlen=most)
    for number in range(5000):
        key = make_key(PEER, number, (400000, 3, 0), call(0), 40, ())
        entry = cache.begin(key, transport)
        assert entry is not None
        gone += [kept[0]] if len(kept) == most else []
        kept.append(key)
        cache.finish(entry, RpcReply(number, number.to_bytes(28, "big"), []))
        if number % 50 == 0:
            for key in kept:
                found = cache.look_up(key)
                assert found is not None
                assert found.key == key
                assert int.from_bytes(found.reply, "big") == int.from_bytes(key[:4], "big")
            assert not any(cache.look_up(key) for key in gone)
    assert len(cache) == most


def test_the_bound_in_octets() -> None:
    cache = ReplayCache(max_bytes=octets_for(5))
    counter = Counter(cache)
    for xid in range(20):
        counter.send(FakeTransport(), call(0, xid=xid))
        assert cache.size <= cache.max_bytes
    assert len(cache) == 5


def test_replies_expire_since_xids_are_used_anew() -> None:
    clock = [0.0]
    cache = ReplayCache(ttl=120, clock=lambda: clock[0])
    counter = Counter(cache)
    counter.send(FakeTransport(), call(0))
    clock[0] = 119.0
    assert count_of(counter.send(FakeTransport(), call(0))) == 1
    clock[0] = 121.0
    assert count_of(counter.send(FakeTransport(), call(0))) == 2
    assert cache.size == ENTRY_COST + 28 + HOST_COST
    clock[0] = 500.0
    counter.send(FakeTransport(), call(0, xid=9))
    assert len(cache) == 1


@pytest.mark.parametrize("length", [0, 1, 5, 200, 255, 256, 257, 3000])
@pytest.mark.parametrize("before", [0, 4, 252, 256, 300])
@pytest.mark.parametrize("after", [0, 8, 400])
def test_the_key_does_not_depend_on_how_arguments_were_cut_into_chunks(length: int, before: int, after: int) -> None:
    def octets(size: int, seed: int) -> bytes:
        return bytes((i * 7 + seed) & 0xFF for i in range(size))

    head, first, second, tail = bytes(call(7)) + octets(before, 1), octets(length, 2), octets(9, 3), octets(after, 4)
    one = first + bytes(-length & 3)
    whole = memoryview(head + one + second + bytes(3) + tail)
    row = (100003, 3, 7)
    expected = make_key(PEER, 1, row, whole, 40, ())
    reduced = memoryview(head + tail)
    chunks = [(len(head), memoryview(first)), (len(head) + len(one), memoryview(second))]
    assert make_key(PEER, 1, row, reduced, 40, chunks) == expected
    chunks = [(len(head), memoryview(one)), (len(head) + len(one), memoryview(second))]
    assert make_key(PEER, 1, row, reduced, 40, chunks) == expected


def test_a_reply_with_payloads_is_kept_in_one_piece() -> None:
    reply = RpcReply(
        1,
        b"headtail",
        [(4, Payload(memoryview(b"12345"))), (8, Payload(memoryview(b""))), (8, Payload(memoryview(b"6")))],
    )
    assert join_reply(reply) == b"head12345\0\0\0tail6\0\0\0"
    assert len(reply) == len(join_reply(reply))


def test_a_kept_reply_is_given_again_as_it_was_with_its_payloads_apart() -> None:
    """So that they go into Write chunks again."""
    cache = ReplayCache()
    entry = cache.begin(make_key(PEER, 1, (400000, 3, 1), call(1), 40, ()), FakeTransport())
    assert entry is not None
    payloads = [(4, Payload(memoryview(b"12345"))), (8, Payload(memoryview(b""))), (8, Payload(memoryview(b"6")))]
    cache.finish(entry, RpcReply(1, b"headtail", payloads))
    kept = cache.look_up(entry.key)
    assert kept is not None
    again = kept.recall()
    assert (again.xid, bytes(again.head)) == (1, b"headtail")
    assert [(offset, bytes(payload.view)) for offset, payload in again.payloads] == [(4, b"12345"), (8, b""), (8, b"6")]
    assert join_reply(again) == kept.reply == b"head12345\0\0\0tail6\0\0\0"


def test_of_a_kept_reply_only_what_is_eligible_goes_into_write_chunks_again() -> None:
    """A long listing is spliced in, and was not in a Write chunk the first time either (RFC 8267 does not list it)."""
    cache = ReplayCache()
    entry = cache.begin(make_key(PEER, 1, (400000, 3, 1), call(1), 40, ()), FakeTransport())
    assert entry is not None
    payloads = [(4, Payload(memoryview(b"12345678"), eligible=False)), (8, Payload(memoryview(b"9")))]
    cache.finish(entry, RpcReply(1, b"headtailrest", payloads))
    again = entry.recall()
    assert bytes(again.head) == b"head12345678tailrest"
    assert [(offset, bytes(payload.view), payload.eligible) for offset, payload in again.payloads] == [(16, b"9", True)]
    assert join_reply(again) == b"head12345678tail9\0\0\0rest"


def test_a_reply_that_is_not_kept_is_given_to_who_waits_with_its_payloads_apart() -> None:
    cache = ReplayCache()
    key = make_key(PEER, 1, (400000, 3, 1), call(1), 40, ())
    entry = cache.begin(key, FakeTransport())
    assert entry is not None
    given: list[RpcReply | None] = []
    assert cache.join(key, FakeTransport(), given.append)
    cache.abandon(entry, RpcReply(1, b"headtail", [(4, Payload(memoryview(b"12345")))]))
    (again,) = given
    assert again is not None
    assert (again.xid, bytes(again.head)) == (1, b"headtail")
    assert [(offset, bytes(payload.view)) for offset, payload in again.payloads] == [(4, b"12345")]
    assert cache.look_up(key) is None


def test_a_key_is_of_a_call() -> None:
    for octets in (b"", bytes(31), bytes(28) + b"\xff\xff\xff\xff" + bytes(100)):
        with pytest.raises(ValueError, match="header"):
            make_key(PEER, 1, (400000, 3, 1), memoryview(octets), 0, ())
