"""What a capture sees at the interface of every provider, and that calls notice nothing of it."""

from __future__ import annotations

import asyncio
import random

from rpcrdma.capture.events import Event, Kind, Reader
from rpcrdma.capture.recorder import Recorder
from rpcrdma.capture.tap import TapEndpoint
from rpcrdma.hosts import HostLimits
from tests.peer import echo_arguments, echo_results, header, rpc_call, run
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.peer.rig import LINUX

DATA = bytes(range(256)) * 20 + b"odd"


def drain(recorder: Recorder) -> list[Event]:
    reader, found = Reader(), []
    while chunk := recorder.take():
        found += reader.feed(chunk)
    return found


async def echo(peer, xid: int, data: bytes = DATA) -> tuple[list[int], bytes]:
    """Data from a Read chunk of two segments into a Write chunk: the handles, and the call."""
    arguments = echo_arguments([data])
    source, target = peer.readable(data), peer.writable(len(data))
    position = arguments.positions[0]
    cut = len(data) // 2
    reads = [(position, segment) for segment in source.segments(cut, len(data) - cut)]
    call = header(xid, reads=reads, writes=[[target.segment()]]) + rpc_call(xid, arguments.without(0))
    reply = await peer.call(call)
    assert (reply.xid, reply.error) == (xid, 0)
    assert reply.payload == echo_results(arguments, xid, reduced=[0])
    assert target.memory == data
    return [source.handle, target.handle], call


def test_everything_that_one_call_takes_is_seen():
    async def scenario(rig, peer):
        recorder = Recorder(1 << 24)
        await echo(peer, 1)
        rig.server.captures.start(recorder)
        (source, target), call = await echo(peer, 2)
        rig.server.captures.stop(recorder)
        await echo(peer, 3)
        opened, *work = drain(recorder)
        assert opened.kind is Kind.OPENED
        kinds = [(event.kind, event.handle, event.length) for event in work[:-1]]
        cut = len(DATA) // 2
        assert kinds == [
            (Kind.SEND_IN, None, len(call)),
            (Kind.READ_OUT, source, cut),
            (Kind.READ_OUT, source, len(DATA) - cut),
            (Kind.READ_IN, None, cut),
            (Kind.READ_IN, None, len(DATA) - cut),
            (Kind.WRITE_OUT, target, len(DATA)),
        ]
        assert work[0].data == call
        assert work[3].data + work[4].data == work[5].data == DATA
        assert work[-1].kind is Kind.SEND_OUT
        assert int.from_bytes(work[-1].data[:4], "big") == 2
        assert work[-1].handle in (None, source), "what the reply invalidates"

    run(scenario)


def test_captures_come_and_go_while_calls_are_under_way():
    rng = random.Random(5)

    async def scenario(rig, peer):
        captures = rig.server.captures
        recorders: list[Recorder] = []
        seen = 0

        async def turn(xid: int) -> None:
            await echo(peer, xid, DATA * rng.randint(1, 10))

        def toggle() -> None:
            nonlocal seen
            if recorders and rng.random() < 0.5:
                recorder = recorders.pop(rng.randrange(len(recorders)))
                captures.stop(recorder)
                seen += len(drain(recorder))
            elif captures.running < 3:
                recorders.append(Recorder(rng.choice((1000, 1 << 20))))
                captures.start(recorders[-1])

        for xid in range(1, 40):
            waiting = turn(xid)
            # In the middle of a call, at any of its turns of the loop.
            task = asyncio.ensure_future(waiting)
            for _ in range(rng.randint(0, 6)):
                await asyncio.sleep(0)
            toggle()
            await task
        for recorder in recorders:
            captures.stop(recorder)
        assert seen > 50
        assert not isinstance(rig.connection._endpoint, TapEndpoint)

    run(scenario)


def test_beginnings_refusals_and_ends_are_seen():
    async def scenario(rig):
        recorder = Recorder(1 << 20)
        rig.server.captures.start(recorder)
        peer = await rig.peer()
        rig.control.gate = asyncio.Event()
        peer.send(header(1) + rpc_call(1, echo_arguments([b"data"]).octets))
        await rig.until(lambda: rig.control.running)  # or it would give way to the next one
        try:
            await rig.peer()
        except ConnectionRefusedError:
            pass
        else:
            raise AssertionError("one connection only")
        peer.endpoint.close()
        await peer.over()
        await rig.until(lambda: not rig.server.connections)
        ends = (Kind.OPENED, Kind.CLOSED)
        first, refused, closed = (event for event in drain(recorder) if event.kind in ends)
        assert (first.kind, refused.kind, closed.kind) == (Kind.OPENED, Kind.OPENED, Kind.CLOSED)
        assert (first.connection, closed.connection) == (1, 1)
        assert LINUX.hex() in first.data.decode()
        assert '"rejected": false' in first.data.decode()
        assert '"rejected": true' in refused.data.decode()
        assert closed.data != b""

    run(scenario, hosts=HostLimits(host_connections=1))
