"""The choice of chunks: whatever the sizes, all octets arrive, thresholds are kept and replies find room."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rpcrdma.client import ChunkChoice
from rpcrdma.engine.choice import Plan, choose
from rpcrdma.rpc.program import RpcReply
from rpcrdma.wire.chunks import encode_call
from rpcrdma.wire.header import RDMA_NOMSG
from rpcrdma.xdr.payload import Payload
from tests.unit.client_support import pattern
from tests.unit.test_client_chunks import CALLS, REPLIES


def plan_size(plan: Plan, smallest: int) -> tuple[int, int]:
    """Octets of the Send and of the smallest reply, from the encoder of chunk lists."""

    def cut(length: int, padding: int) -> list[tuple[int, int, int]]:
        count = max(min(plan.segments, length), 1)
        return [(1, 1, 1)] * (count + bool(padding))

    reads = [(part.position, *segment) for part in plan.reads for segment in cut(len(part.view), part.padding)]
    if plan.procedure == RDMA_NOMSG:
        reads += [(0, *segment) for segment in cut(len(plan.stream), 0)]
    writes = [cut(len(view), padding) for view, padding in plan.writes]
    reply = cut(plan.reply, 0) if plan.reply else None
    fixed = smallest - 12
    inline = 0 if plan.procedure == RDMA_NOMSG else len(plan.stream)
    return fixed + len(encode_call(reads, writes, reply)) + inline, fixed + len(encode_call([], writes, reply))


@settings(max_examples=200, deadline=None)
@given(
    head=st.integers(10, 2000).map(lambda words: 4 * words),
    payloads=st.lists(st.tuples(st.integers(10, 2000), st.integers(0, 9000)), max_size=3),
    into=st.lists(st.integers(0, 9000), max_size=3),
    reply_max=st.integers(24, 9000),
    choice=st.builds(
        ChunkChoice,
        call=st.sampled_from(CALLS),
        reply=st.sampled_from(REPLIES),
        segments=st.integers(1, 8),
        padding=st.booleans(),
    ),
    smallest=st.sampled_from([28, 36]),
    thresholds=st.tuples(st.sampled_from([1024, 4096]), st.sampled_from([1024, 4096])),
)
def test_a_plan_conveys_every_octet_and_keeps_the_thresholds(
    head: int,
    payloads: list[tuple[int, int]],
    into: list[int],
    reply_max: int,
    choice: ChunkChoice,
    smallest: int,
    thresholds: tuple[int, int],
) -> None:
    octets = pattern(head)
    offsets = sorted(4 * offset for offset, _ in payloads if 4 * offset <= head)
    parts = [
        (offset, Payload(memoryview(pattern(size, 9)))) for offset, (_, size) in zip(offsets, payloads, strict=False)
    ]
    message = RpcReply(1, octets, parts)
    send, receive = thresholds
    try:
        plan = choose(
            message, [memoryview(bytearray(size)) for size in into], reply_max, choice, smallest, send, receive
        )
    except ValueError:
        assert choice.call != "auto" or choice.segments > 1 or choice.reply not in ("auto", "inline")
        return
    sent, smallest_reply = plan_size(plan, smallest)
    assert sent <= send
    # What arrives is the call: the stream with every Read chunk inserted at its position.
    whole = bytearray(plan.stream)
    for position, view, _ in plan.reads:
        whole[position:position] = bytes(view) + bytes(-len(view) & 3)
    expected = bytearray()
    at = 0
    for offset, payload in parts:
        expected += octets[at:offset] + payload.view + bytes(-len(payload) & 3)
        at = offset
    assert whole == expected + octets[at:]
    # And every reply finds room.
    if choice.reply == "auto":
        bulk = sum(size + 3 & ~3 for size in into)
        inline = smallest_reply + reply_max + (0 if plan.writes else bulk)
        assert plan.reply >= reply_max + bulk or inline <= receive
        assert not (plan.writes and plan.reply)
