"""What workers do in CephFS themselves: data, and common changes of names, without a step in Python."""

import asyncio
import errno
import os
import stat

import pytest

from nfsd.backend_suite.trying import serving
from nfsd.vfs.types import SetAttributes
from tests.ceph.test_service import refused, run
from tests.unit.vfs_support import ALICE, BOB, ROOT

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900)]


def noting(calls):
    """The names of functions that the store's threads run from now on."""
    run_as_before, seen = calls.run, []

    async def noted(function, *arguments):
        seen.append(function.__name__)
        return await run_as_before(function, *arguments)

    calls.run = noted
    return seen


def test_data_takes_no_thread_of_the_stores(tmp_path, place):
    data = os.urandom(150_000)

    async def scenario(tried):
        node = await tried.made(b"f", mode=0o666)
        await tried.files.write_all(ALICE, node, 0, data)
        seen = noting(tried.store.calls)
        await asyncio.gather(
            *(tried.files.write_all(ALICE, node, at, data[at : at + 1000][::-1]) for at in range(0, len(data), 1000))
        )
        expected = b"".join(data[at : at + 1000][::-1] for at in range(0, len(data), 1000))
        assert await tried.content(node, ALICE) == expected
        assert await tried.files.read(ALICE, node, 140_000, 20_000) == (expected[140_000:], True)
        assert seen in ([], ["look", "look", "make"])  # the file may be opened once more, for reading

    run(tmp_path, place, scenario)


def test_a_permission_that_another_client_takes_away_is_gone_before_the_next_write(tmp_path, place):
    async def scenario(tried):
        node = await tried.made(b"f", ROOT, mode=0o666)
        await tried.files.write_all(ALICE, node, 0, b"kept")
        with place.client() as (client, root):
            key, _ = client.lookup(None, root, b"f")
            client.set(None, key, 0o644, None, None, None, None, None)
            writes = [tried.files.write_all(ALICE, node, at, b"lost") for at in range(8)]
            for write in asyncio.as_completed(writes):
                assert await refused(write) == errno.EACCES
            assert await tried.content(node) == b"kept"
            client.set(None, key, 0o666, None, None, None, None, None)
            await tried.files.write_all(ALICE, node, 0, b"more")
            assert await tried.content(node) == b"more"

    run(tmp_path, place, scenario)


def test_a_write_takes_set_id_bits_away_unless_it_is_roots(tmp_path, place):
    async def scenario(tried):
        for mode, left in ((0o6777, 0o777), (0o4767, 0o767)):
            node = await tried.made(b"%o" % mode, BOB, mode=0o777)
            await tried.service.set_attributes(ROOT, node, SetAttributes(mode=mode))
            await tried.files.write_all(ROOT, node, 0, b"1")
            assert stat.S_IMODE((await tried.service.attributes(node)).mode) == mode
            await tried.files.write_all(ALICE, node, 0, b"2")
            assert stat.S_IMODE((await tried.service.attributes(node)).mode) == left

    run(tmp_path, place, scenario)


@pytest.mark.parametrize("way", [("tcp", "3"), ("rdma", "3")], ids="-".join)
def test_names_take_no_thread_of_the_stores_but_to_be_synchronised(tmp_path, place, way):
    async def main():
        async with serving(tmp_path, place.entry()) as server, server.connect(way) as fs:
            service = server.daemon.service
            await fs.mkdir("d")
            await fs.listdir("d")
            store = service.roots.get(service.exports.exports[0].id).mount.store
            seen = noting(store.calls)
            names = [f"d/{number}" for number in range(20)]
            await asyncio.gather(*(fs.write_bytes(name, b"") for name in names))
            assert (await fs.stat(names[7])).st_size == 0
            assert not await fs.exists("d/none")
            await asyncio.gather(*(fs.remove(name) for name in names))
            assert not {"make", "remove", "_remove", "lookup"} & set(seen)
            assert 0 < seen.count("sync") < 2 * len(names)  # those that wait share one
            del store.calls.run
            assert await fs.listdir("d") == []
            await fs.write_bytes("d/.snapshot", b"1")
            for name, number in (("d/.snap", errno.EEXIST), ("d/" + "x" * 256, errno.ENAMETOOLONG)):
                with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is looked at)
                    await fs.write_bytes(name, b"")
                assert caught.value.errno in (number, errno.EISDIR)
            for name, number in (("d", errno.EISDIR), ("d/none", errno.ENOENT), ("d/.snap", errno.EROFS)):
                with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is looked at)
                    await fs.remove(name)
                assert caught.value.errno == number
            with pytest.raises(NotADirectoryError):
                await fs.rmdir("d/.snapshot")

    asyncio.run(asyncio.wait_for(main(), 600))
