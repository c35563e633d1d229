"""SEEK, ALLOCATE, DEALLOCATE, READ_PLUS and IO_ADVISE of NFSv4.2, on a disk file system and in memory."""

import asyncio
import os
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import mode, values, wanted
from tests.unit.v42_support import ANONYMOUS, MIB, content, handle_of, place_on, status_on, with_clients

DATA, HOLE = p.data_content4.NFS4_CONTENT_DATA, p.data_content4.NFS4_CONTENT_HOLE
K64 = 1 << 16


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    with place_on(request.param, tmp_path) as path:
        yield path


def sparse(path, *ranges, size):
    """A file with data (letters) in the given ranges and holes elsewhere."""
    with open(path, "wb") as file:
        for number, (start, end) in enumerate(ranges):
            os.pwrite(file.fileno(), bytes([97 + number % 26]) * (end - start), start)
        file.truncate(size)
        os.fsync(file.fileno())


def seek(offset, what, stateid=ANONYMOUS):
    return (p.OP_SEEK, p.SEEK4args(stateid, offset, what))


def read_plus(offset, count, stateid=ANONYMOUS):
    return (p.OP_READ_PLUS, p.READ_PLUS4args(stateid, offset, count))


def told(result):
    """A READ_PLUS result as (offset, length, data or None)…, eof."""
    parts = []
    for part in result.rp_resok4.rpr_contents:
        if part.rpc_content == DATA:
            data = bytes(part.rpc_data.d_data)
            parts.append((part.rpc_data.d_offset, len(data), data))
        else:
            parts.append((part.rpc_hole.di_offset, part.rpc_hole.di_length, None))
    return parts, result.rp_resok4.rpr_eof


def test_seek_finds_data_and_holes(place, tmp_path):
    sparse(f"{place}/f", (0, K64), (4 * K64, 5 * K64), size=8 * K64)

    async def test(server, client):
        handle = await handle_of(client, "f")

        async def found(offset, what):
            [result] = await client.on(handle, seek(offset, what))
            return result.resok4.sr_offset, result.resok4.sr_eof

        assert await found(0, DATA) == (0, False)
        assert await found(0, HOLE) == (K64, False)
        assert await found(K64, DATA) == (4 * K64, False)
        assert await found(K64 + 7, HOLE) == (K64 + 7, False)
        assert (await found(5 * K64, DATA))[1] is True, "no data any more: still OK, with eof"
        for offset in (8 * K64, 9 * K64, 2**63, 2**64 - 1):
            assert await status_on(client, handle, seek(offset, HOLE)) == p.NFS4ERR_NXIO
            assert await status_on(client, handle, seek(offset, DATA)) == p.NFS4ERR_NXIO
        assert await status_on(client, handle, seek(0, 2)) == p.NFS4ERR_UNION_NOTSUPP
        root = await handle_of(client, "")
        assert await status_on(client, root, seek(0, DATA)) == p.NFS4ERR_ISDIR

    with_clients(place, tmp_path, test)


def test_every_file_ends_with_a_hole(place, tmp_path):
    sparse(f"{place}/f", (0, 1), size=1)

    async def test(server, client):
        [result] = await client.on(await handle_of(client, "f"), seek(0, HOLE))
        assert (result.resok4.sr_offset, result.resok4.sr_eof) == (1, True)

    with_clients(place, tmp_path, test)


def test_allocate_reserves_space_and_extends(place, tmp_path):
    async def test(server, client):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        change = wanted(p.FATTR4_CHANGE, p.FATTR4_SIZE, p.FATTR4_SPACE_USED)

        async def look():
            [result] = await client.on(handle, (p.OP_GETATTR, change))
            d = values(result.resok4.obj_attributes)
            return d.uint64(), d.uint64(), d.uint64()

        before = await look()
        await client.on(handle, (p.OP_ALLOCATE, p.ALLOCATE4args(stateid, K64, MIB)))
        after = await look()
        assert after[0] > before[0]
        assert after[1] == K64 + MIB
        assert after[2] >= MIB
        assert os.stat(f"{place}/f").st_size == K64 + MIB
        assert content(f"{place}/f") == bytes(K64 + MIB)
        allocate = p.ALLOCATE4args(stateid, 0, 0)
        assert await status_on(client, handle, (p.OP_ALLOCATE, allocate)) == p.NFS4ERR_INVAL
        for offset, length in ((2**63, 1), (2**64 - 1, 2**64 - 1)):
            allocate = p.ALLOCATE4args(stateid, offset, length)
            assert await status_on(client, handle, (p.OP_ALLOCATE, allocate)) == p.NFS4ERR_INVAL
        allocate = p.ALLOCATE4args(stateid, 0, 2**63)
        assert await status_on(client, handle, (p.OP_ALLOCATE, allocate)) == p.NFS4ERR_FBIG
        root = await handle_of(client, "")
        allocate = p.ALLOCATE4args(ANONYMOUS, 0, 1)
        assert await status_on(client, root, (p.OP_ALLOCATE, allocate)) == p.NFS4ERR_WRONG_TYPE

    with_clients(place, tmp_path, test)


def test_space_freed_is_that_of_the_last_name(place, tmp_path):
    sparse(f"{place}/f", (0, MIB), size=MIB)

    async def test(server, client):
        handle = await handle_of(client, "f")

        async def freed():
            [result] = await client.on(handle, (p.OP_GETATTR, wanted(p.FATTR4_SPACE_FREED)))
            return values(result.resok4.obj_attributes).uint64()

        assert await freed() == os.stat(f"{place}/f").st_blocks * 512 >= MIB
        os.link(f"{place}/f", f"{place}/g")
        assert await freed() == 0

    with_clients(place, tmp_path, test)


def test_allocate_says_when_the_disk_is_full(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "none", str(place)], check=True)
    try:

        async def test(server, client):
            stateid, handle = await client.open("/0", b"f", create=mode(0o644))
            allocate = p.ALLOCATE4args(stateid, 0, 16 * MIB)
            assert await status_on(client, handle, (p.OP_ALLOCATE, allocate)) == p.NFS4ERR_NOSPC

        with_clients(place, tmp_path, test)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_deallocate_makes_zeros_and_frees_space(place, tmp_path):
    sparse(f"{place}/f", (0, 16 * K64), size=16 * K64)

    async def test(server, client):
        stateid, handle = await client.open("/0", b"f")
        used = os.stat(f"{place}/f").st_blocks
        await client.on(handle, (p.OP_DEALLOCATE, p.DEALLOCATE4args(stateid, K64 + 1, 8 * K64)))
        expected = b"a" * (K64 + 1) + bytes(8 * K64) + b"a" * (7 * K64 - 1)
        assert content(f"{place}/f") == expected
        assert os.stat(f"{place}/f").st_blocks < used
        # to the end and beyond, in the protocol's own words: the size stays
        await client.on(handle, (p.OP_DEALLOCATE, p.DEALLOCATE4args(stateid, 12 * K64, 2**64 - 1 - 12 * K64)))
        assert content(f"{place}/f") == expected[: 12 * K64] + bytes(4 * K64)
        for offset, length in ((0, 0), (2**63, 1), (1, 2**64 - 1)):
            deallocate = p.DEALLOCATE4args(stateid, offset, length)
            assert await status_on(client, handle, (p.OP_DEALLOCATE, deallocate)) == p.NFS4ERR_INVAL

    with_clients(place, tmp_path, test)


def test_space_is_changed_by_writers_only(place, tmp_path):
    sparse(f"{place}/f", (0, K64), size=K64)
    os.chmod(f"{place}/f", 0o644)

    async def test(server, root, alice):
        reading, handle = await root.open("/0", b"f", access=1)
        for number, args in ((p.OP_ALLOCATE, p.ALLOCATE4args), (p.OP_DEALLOCATE, p.DEALLOCATE4args)):
            assert await status_on(root, handle, (number, args(reading, 0, 1))) == p.NFS4ERR_OPENMODE
            assert await status_on(alice, handle, (number, args(ANONYMOUS, 0, 1))) == p.NFS4ERR_ACCESS
        os.chmod(f"{place}/f", 0o666)
        await root.open("/0", b"f", access=1, deny=2, owner=b"denier")
        allocate = (p.OP_ALLOCATE, p.ALLOCATE4args(ANONYMOUS, 0, 1))
        assert await status_on(alice, handle, allocate) == p.NFS4ERR_LOCKED
        assert content(f"{place}/f") == b"a" * K64

    with_clients(place, tmp_path, test, uids=(0, 1001))


def test_space_is_not_changed_on_a_read_only_export(place, tmp_path):
    sparse(f"{place}/f", (0, K64), size=K64)

    async def test(server, client):
        handle = await handle_of(client, "f")
        for number, args in ((p.OP_ALLOCATE, p.ALLOCATE4args), (p.OP_DEALLOCATE, p.DEALLOCATE4args)):
            assert await status_on(client, handle, (number, args(ANONYMOUS, 0, 1))) == p.NFS4ERR_ROFS

    with_clients(place, tmp_path, test, read_only=True)


def test_read_plus_tells_data_and_holes(place, tmp_path):
    sparse(f"{place}/f", (0, K64), (4 * K64, 5 * K64), size=8 * K64)

    async def test(server, client):
        handle = await handle_of(client, "f")

        async def get(offset, count):
            [result] = await client.on(handle, read_plus(offset, count))
            return told(result)

        assert await get(0, MIB) == (
            [
                (0, K64, b"a" * K64),
                (K64, 3 * K64, None),
                (4 * K64, K64, b"b" * K64),
                (5 * K64, 3 * K64, None),
            ],
            True,
        )
        assert await get(10, 20) == ([(10, 20, b"a" * 20)], False)
        assert await get(K64, 100) == ([(K64, 3 * K64, None)], False), "a hole is told whole"
        assert await get(8 * K64 - 1, 1) == ([(8 * K64 - 1, 1, None)], True)
        assert await get(0, 0) == ([], False)
        for offset in (8 * K64, 2**63, 2**64 - 1):
            assert await get(offset, 10) == ([], True)

    with_clients(place, tmp_path, test)


def test_read_plus_tells_written_zeros_as_a_hole(place, tmp_path):
    with open(f"{place}/f", "wb") as file:
        file.write(bytes(K64))

    async def test(server, client):
        [result] = await client.on(await handle_of(client, "f"), read_plus(0, K64))
        assert told(result) == ([(0, K64, None)], True)

    with_clients(place, tmp_path, test)


def test_read_plus_tells_no_more_of_a_hole_than_is_locked(place, tmp_path):
    sparse(f"{place}/f", size=8 * K64)

    async def test(server, client):
        stateid, handle = await client.open("/0", b"f")
        new = p.open_to_lock_owner4(0, stateid, 0, p.lock_owner4(client.clientid, b"locker"))
        args = p.LOCK4args(p.nfs_lock_type4.READ_LT, False, 0, K64, p.locker4(True, open_owner=new))
        [locked] = await client.on(handle, (p.OP_LOCK, args))
        [result] = await client.on(handle, read_plus(0, K64, locked.resok4.lock_stateid))
        assert told(result) == ([(0, K64, None)], False)

    with_clients(place, tmp_path, test)


def test_read_plus_goes_on_over_many_small_pieces(tmp_path):
    ranges = [(number * 2 * 4096, number * 2 * 4096 + 4096) for number in range(200)]
    with place_on("memory", tmp_path) as place:
        sparse(f"{place}/f", *ranges, size=400 * 4096)
        expected = content(f"{place}/f")

        async def test(server, client):
            handle, got, eof = await handle_of(client, "f"), b"", False
            while not eof:
                [result] = await client.on(handle, read_plus(len(got), MIB))
                parts, eof = told(result)
                assert parts, "an answer that leads nowhere"
                for offset, length, data in parts:
                    assert offset == len(got)
                    got += bytes(length) if data is None else data
            assert got == expected

        with_clients(place, tmp_path, test)


def test_read_plus_keeps_to_the_sessions_reply_size(place, tmp_path):
    with open(f"{place}/f", "wb") as file:
        file.write(os.urandom(2 * MIB))

    async def test(server, client):
        [result] = await client.on(await handle_of(client, "f"), read_plus(0, 4 * MIB))
        parts, eof = told(result)
        assert not eof
        assert MIB // 2 < sum(length for _, length, _ in parts) < MIB

    with_clients(place, tmp_path, test)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=5),
    size=st.integers(0, 36 * 4096),
    reads=st.lists(st.tuples(st.integers(0, 40 * 4096), st.integers(0, 20 * 4096)), min_size=1, max_size=6),
)
def test_read_plus_agrees_with_the_file(tmp_path_factory, pieces, size, reads):
    tmp_path = tmp_path_factory.mktemp("state")
    with place_on("memory", tmp_path) as place:
        sparse(f"{place}/f", *((start * 4096 + 5, (start + length) * 4096) for start, length in pieces), size=size)
        expected = content(f"{place}/f")

        async def test(server, client):
            handle = await handle_of(client, "f")
            for offset, count in reads:
                [result] = await client.on(handle, read_plus(offset, count))
                parts, eof = told(result)
                got, position = b"", offset
                for start, length, data in parts:
                    assert start == position
                    got += bytes(length) if data is None else data
                    position += length
                assert got == expected[offset : offset + len(got)]
                assert len(got) >= min(count, max(0, len(expected) - offset))
                assert eof == (offset + max(count, len(got)) >= len(expected))

        with_clients(place, tmp_path, test)


def test_read_plus_gives_its_buffer_back(place, tmp_path):
    sparse(f"{place}/f", (0, MIB), size=2 * MIB)

    async def test(server, client):
        handle = await handle_of(client, "f")
        # 32 MiB is all the connection may have at a time.
        for _ in range(100):
            await client.on(handle, read_plus(0, MIB))
        wrong = p.stateid4(1, b"nobody's own")
        for _ in range(100):
            assert await status_on(client, handle, read_plus(0, MIB, wrong)) == p.NFS4ERR_BAD_STATEID
        assert client.transport._account.in_use == 0

    with_clients(place, tmp_path, test)


def test_hints_are_answered_with_what_is_done(place, tmp_path):
    sparse(f"{place}/f", (0, K64), size=K64)

    async def test(server, client):
        handle = await handle_of(client, "f")

        async def advise(*hints, offset=0, count=0):
            bits = [sum(1 << hint for hint in hints)]
            [result] = await client.on(handle, (p.OP_IO_ADVISE, p.IO_ADVISE4args(ANONYMOUS, offset, count, bits)))
            return list(result.resok4.ior_hints)

        kind = p.IO_ADVISE_type4
        needed, normal = [1 << kind.IO_ADVISE4_WILLNEED], [1 << kind.IO_ADVISE4_NORMAL]
        assert await advise(kind.IO_ADVISE4_WILLNEED, kind.IO_ADVISE4_RANDOM) == needed
        assert await advise(kind.IO_ADVISE4_SEQUENTIAL, kind.IO_ADVISE4_RANDOM) == normal
        assert await advise(kind.IO_ADVISE4_WILLNEED, offset=2**64 - 1, count=2**64 - 1) == needed
        assert await advise(kind.IO_ADVISE4_DONTNEED, kind.IO_ADVISE4_WILLNEED) == needed
        assert await advise(kind.IO_ADVISE4_DONTNEED, offset=2**64 - 1) == [1 << kind.IO_ADVISE4_DONTNEED]
        assert await advise(31) == normal, "an unknown hint is no error"

    with_clients(place, tmp_path, test)


def in_memory(path):
    """Whether the kernel has the beginning of a file in memory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(K64)], 0, os.RWF_NOWAIT) == K64
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def test_hints_move_data_into_memory_and_out(tmp_path):
    with place_on("disk", tmp_path) as place:
        with open(f"{place}/f", "wb") as file:
            file.write(os.urandom(K64))
            file.flush()
            os.fsync(file.fileno())
        if not in_memory(f"{place}/f"):
            pytest.fail("this file system does not tell what is in memory; use another for the tests")

        async def test(server, client):
            handle = await handle_of(client, "f")
            for hint, state in (
                (p.IO_ADVISE_type4.IO_ADVISE4_DONTNEED, False),
                (p.IO_ADVISE_type4.IO_ADVISE4_WILLNEED, True),
                (p.IO_ADVISE_type4.IO_ADVISE4_DONTNEED, False),
            ):
                # Given again until it works: the kernel keeps pages that somebody has in hand at the moment.
                for _ in range(100):
                    await client.on(handle, (p.OP_IO_ADVISE, p.IO_ADVISE4args(ANONYMOUS, 0, 0, [1 << hint])))
                    await asyncio.sleep(0.01)
                    if in_memory(f"{place}/f") is state:
                        break
                else:
                    pytest.fail(f"{hint.name} has no effect")

        with_clients(place, tmp_path, test)
