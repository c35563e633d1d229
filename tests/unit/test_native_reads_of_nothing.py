"""READs that find nothing, before others in the same COMPOUND: each READ's data is its file's, and nobody else's."""

import os

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import mode
from tests.support.nfs4_native import Both, BothRdma, run
from tests.unit import vfs_support

EACH = 100


def read(state, offset, count):
    return p.OP_READ, p.READ4args(stateid=state, offset=offset, count=count)


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("cold", [False, True])
def test_a_read_behind_one_of_nothing_gets_its_own_data(kind, cold, tmp_path):
    async def scenario(both):
        state, handle = await both.client.open("/0", b"a", create=mode(0o644), access=3)
        data = os.urandom(70000)
        with open(both.path / "a", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        other = os.urandom(1 << 20)
        with open(both.path / "b", "wb") as file:
            file.write(other)
        state_b, handle_b = await both.client.open("/0", b"b", access=1)
        for _ in range(4):
            # What others read passes through the same buffers.
            whole = both.message(2, (p.OP_PUTFH, p.PUTFH4args(object=handle_b)), read(state_b, 0, 1 << 20))
            assert other[:60000] in await both.native.call(None, whole)
        for first, count in ((1 << 20, EACH), (1 << 20, 69000), (1 << 16, EACH)):
            operations = [
                (p.OP_PUTFH, p.PUTFH4args(object=handle)),
                read(state, len(data), first),
                read(state, 0, count),
            ]
            if cold:
                with open(both.path / "a", "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert data[:count] in await both.same(*operations)

    with vfs_support.directory_on(kind, tmp_path) as path:
        run(path, tmp_path, 1, scenario, Both)


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("cold", [False, True])
def test_a_write_chunk_serves_the_read_that_it_is_for(kind, cold, tmp_path):
    async def scenario(both):
        state, handle = await both.client.open("/0", b"a", create=mode(0o644), access=3)
        data = os.urandom(70000)
        with open(both.path / "a", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        for first, count in ((1 << 16, EACH), (EACH, 1 << 16)):
            operations = [
                (p.OP_PUTFH, p.PUTFH4args(object=handle)),
                read(state, len(data), first),
                read(state, 0, count),
            ]
            if cold:
                with open(both.path / "a", "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            await both.same(*operations, room=1 << 17)
            await both.same(*operations)

    with vfs_support.directory_on(kind, tmp_path) as path:
        run(path, tmp_path, 1, scenario, BothRdma)
