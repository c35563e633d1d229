"""COMPOUNDs over RDMA: what is answered natively is octet for octet, chunk for chunk what the general path answers."""

import random

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4_native import BothRdma, handle_of, run
from tests.unit import vfs_support
from tests.unit.test_nfs4_native import CACHE_CONSISTENCY, OF_CONTENT, getattr_, lookup, putfh, read, write


@pytest.fixture(params=[1, 2])
def minor(request):
    return request.param


def on(tmp_path, minor, scenario):
    with vfs_support.directory_on("memory", tmp_path) as path:
        return run(path, tmp_path, minor, scenario, BothRdma)


def test_reading_compounds_with_and_without_write_chunks(tmp_path, minor):
    rng = random.Random(minor)

    async def scenario(both):
        (both.path / "a").write_bytes(rng.randbytes(100_000))
        stateid, handle = await both.client.open("/0", b"a")
        root = await handle_of(both)
        for _ in range(80):
            offset, count = rng.choice((0, 1, 4096, 99_990, 200_000)), rng.choice((0, 1, 5, 800, 4096, 5000, 65536))
            compound = rng.choice(
                (
                    [putfh(handle), read(stateid, offset, count)],
                    [putfh(handle), read(stateid, offset, count)],
                    [putfh(handle), read(stateid, offset, count), getattr_()],
                    [putfh(handle), getattr_()],
                    [putfh(root), lookup(b"a"), p.OP_GETFH, getattr_()],
                )
            )
            await both.same(*compound, room=rng.choice((None, count, count, 4096, 1 << 16)), cache=rng.random() < 0.1)
        return both.answered

    assert on(tmp_path, minor, scenario) > 60


def test_reading_compounds_with_a_reply_chunk(tmp_path, minor):
    """What stands behind data that goes into the Reply chunk goes there too; what has no room there is an error."""
    rng = random.Random(minor)

    async def scenario(both):
        (both.path / "a").write_bytes(rng.randbytes(100_000))
        stateid, handle = await both.client.open("/0", b"a")
        for _ in range(80):
            offset, count = rng.choice((0, 1, 4096, 99_990)), rng.choice((1, 3700, 3801, 4096, 4097, 8191, 65536))
            behind = rng.choice(([], [getattr_()], [getattr_(), p.OP_GETFH]))
            reply = rng.choice((count + 4096, count + 4096, *range(count + 100, count + 300, 20)))
            room = rng.choice((None, None, None, count))
            await both.same(putfh(handle), read(stateid, offset, count), *behind, room=room, reply=reply)
        return both.answered, both.servers[0].counters.long_replies

    answered, long_replies = on(tmp_path, minor, scenario)
    assert answered > 60
    assert long_replies > 15


def test_data_behind_a_read_that_found_none(tmp_path, minor):
    """The memory for data that may go to the Reply chunk is no longer the reply's when the file has none there."""

    async def scenario(both):
        (both.path / "a").write_bytes(bytes(range(256)) * 100)
        stateid, handle = await both.client.open("/0", b"a")
        for count in (1, 100, 1000, 8192):
            compound = putfh(handle), read(stateid, 1 << 20, 8192), read(stateid, 3, count), getattr_()
            await both.same(*compound, reply=16_384)
            await both.same(*compound, room=8192, reply=16_384)
        return both.answered

    assert on(tmp_path, minor, scenario) >= 4


def test_data_fetched_from_the_middle_of_a_compound(tmp_path, minor):
    rng = random.Random(minor)

    async def scenario(both):
        opens = []
        for name in (b"a", b"b"):
            (both.path / name.decode()).write_bytes(b"x" * 5000)
            opens.append(await both.client.open("/0", name))
        for _ in range(60):
            data = rng.randbytes(rng.choice((16, 17, 100, 180, 200, 4096, 9000, 65536)))
            written = [[], [getattr_(OF_CONTENT)], [getattr_(OF_CONTENT)], [getattr_(OF_CONTENT), p.OP_GETFH]]
            behind, offset, cache = rng.choice(written), rng.choice((0, 3, 4096)), rng.random() < 0.2
            by_chunk, replies = rng.random() < 0.8 or len(data) > 3000, []
            for which, (stateid, handle) in enumerate(opens):
                operations = (putfh(handle), write(stateid, offset, data), *behind)
                reply = await both.call(which, which, *operations, data=data if by_chunk else b"", cache=cache)
                replies.append([part.replace(handle, b"") if isinstance(part, bytes) else part for part in reply])
            assert replies[0] == replies[1]
            assert (both.path / "a").read_bytes() == (both.path / "b").read_bytes()
        return both.answered

    assert on(tmp_path, minor, scenario) > 20


def test_a_retransmission_may_come_without_its_chunk(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"old")
        stateid, handle = await both.client.open("/0", b"a")
        for size in (64, 128, 1024):
            data = b"%04d" % size * (size // 4)
            compound = putfh(handle), write(stateid, 0, data), getattr_(CACHE_CONSISTENCY)
            answered = both.answered
            first = await both.call(0, 0, *compound, data=data, cache=True)
            assert both.answered == answered + 1
            (both.path / "a").write_bytes(b"meanwhile")
            both.sequences[1] -= 1
            again = await both.call(1, 0, *compound, cache=True)
            assert again[4] == first[4]
            assert (both.path / "a").read_bytes() == b"meanwhile"

    on(tmp_path, 1, scenario)


def test_a_chunk_that_is_no_items(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"old")
        stateid, handle = await both.client.open("/0", b"a")
        # In the middle of a handle, of a stateid; and behind the WRITE, which is carried out before that is seen.
        parts = handle[4:12], stateid.other[:8], p.OP_GETATTR.to_bytes(4, "big") + bytes([0, 0, 0, 2])
        for part, content in zip(parts, (b"old", b"old", b"data"), strict=True):
            compound = putfh(handle), write(stateid, 0, b"data"), getattr_(CACHE_CONSISTENCY)
            answered = both.answered
            await both.same(*compound, data=part)
            assert (both.path / "a").read_bytes() == content
            # That its own arguments are malformed is a WRITE's to say.
            assert (both.answered > answered) == (part == parts[1])

    on(tmp_path, 1, scenario)
