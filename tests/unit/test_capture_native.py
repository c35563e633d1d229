"""Calls that are answered natively stay so while they are captured, and are seen as if they were not."""

from __future__ import annotations

import pytest

from rpcrdma.capture.events import Kind
from rpcrdma.capture.recorder import Recorder
from tests.unit import vfs_support
from tests.unit.rdma_native_support import GETATTR, READ, WRITE, handle, run
from tests.unit.test_capture_providers import drain
from tests.unit.test_rdma_native_reads import tail

DATA = bytes(range(250)) * 400


def shape(recorder: Recorder) -> list[tuple[Kind, int, bytes]]:
    """What was seen, without what is random: transport headers with their handles and XIDs, and file times."""
    return [
        (event.kind, event.length, b"" if event.kind in (Kind.OPENED, Kind.SEND_IN, Kind.SEND_OUT) else event.data)
        for event in drain(recorder)
    ]


@pytest.mark.parametrize("how", ["inline", "chunks"])
def test_native_and_general_answers_look_the_same(tmp_path, how):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"", mode=0o666)
        data = DATA if how == "chunks" else b"ten octets"
        chunked = {"data": data, "cuts": (40_000,)} if how == "chunks" else {}
        room = {"room": len(data), "cuts": (50_000,)} if how == "chunks" else {}
        write = handle(node) + tail(len(data)) + (b"" if how == "chunks" else data + b"\0\0")
        await both.call(0, WRITE, write, **chunked)  # the file is open in the server now
        recorders = [Recorder(1 << 24) for _ in both.servers]
        for server, recorder in zip(both.servers, recorders, strict=True):
            server.captures.start(recorder)
        before = [both.answered(procedure) for procedure in (WRITE, READ, GETATTR)]
        for which in (0, 1):
            await both.call(which, WRITE, write, **chunked)
            await both.call(which, READ, handle(node) + bytes(8) + len(data).to_bytes(4, "big"), **room)
            await both.call(which, GETATTR, handle(node))
        after = [both.answered(procedure) for procedure in (WRITE, READ, GETATTR)]
        assert [new - old for old, new in zip(before, after, strict=True)] == [1, 1, 1], "natively, while captured"
        native, general = map(shape, recorders)
        # The two servers are at different ports.
        assert native[1:] == general[1:]
        read = [seen for seen in native if seen[0] in (Kind.READ_IN, Kind.WRITE_OUT)]
        pieces = [DATA[:40_000], DATA[40_000:], DATA[:50_000], DATA[50_000:]]
        assert [data for _, _, data in read] == (pieces if how == "chunks" else [])
        assert [kind for kind, *_ in native].count(Kind.SEND_OUT) == 3

    run("tmpfs", tmp_path, scenario)


@pytest.mark.parametrize("version", [1, 2])
def test_a_reply_in_the_reply_chunk_is_seen_piece_by_piece(tmp_path, version):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", DATA, mode=0o666)
        for which in (0, 1):
            await both.shaped(which, READ, handle(node) + bytes(8) + (4).to_bytes(4, "big"), version=version)
        recorders = [Recorder(1 << 24) for _ in both.servers]
        for server, recorder in zip(both.servers, recorders, strict=True):
            server.captures.start(recorder)
        before = both.answered(READ)
        for which in (0, 1):
            arguments = handle(node) + bytes(8) + (50_001).to_bytes(4, "big")
            await both.shaped(which, READ, arguments, version=version, reply=[60, 30_000, 30_000])
        assert both.answered(READ) == before + 1
        streams = []
        for recorder in recorders:
            written = [data for kind, _, data in shape(recorder) if kind == Kind.WRITE_OUT]
            streams.append(b"".join(written)[4:])
        assert streams[0] == streams[1]
        assert streams[0].endswith(DATA[:50_001] + bytes(3))

    run("memory", tmp_path, scenario)
