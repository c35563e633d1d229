"""What workers do in CephFS themselves: data, and common changes of names, without a step in Python."""

import asyncio
import errno
import os
import stat
import threading

import pytest

from nfsd.backend_suite.trying import serving
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.vfs.types import SetAttributes
from tests.ceph.test_service import refused, run
from tests.nfs3_client import Nfs3Client, Nfs3Failure
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


def test_nobody_writes_behind_one_who_holds_the_file_open_without_being_asked_again(tmp_path, place):
    """The holder's writes go on, whatever has become of the file. They are not to hide what another client has taken
    away."""

    async def main():
        with place.client() as (client, top):
            await scenario(client, top)

    async def scenario(client, top):
        async with serving(tmp_path, place.entry()) as server, server.connect(("tcp", "4.1")) as fs:
            await fs.write_bytes("f", b"")
            key, _ = client.lookup(None, top, b"f")
            port = next(one.address.port for one in server.daemon.listeners.of("nfs") if one.address.scheme == "tcp")
            mountd = server.daemon.listeners.of("mountd")[0].address.port
            async with await Nfs3Client.connect("127.0.0.1", mountd) as mounting:
                root = await mounting.mount("/tried")
            async with await Nfs3Client.connect("127.0.0.1", port, uid=ALICE.uid, gid=ALICE.gid) as alice:
                handle = await alice.lookup(root, b"f")
                async with fs.open("f", "r+b") as file:
                    for turn in range(20):
                        client.set(None, key, 0o666, None, None, None, None, None)
                        await file.pwrite(b"held", 0)
                        await alice.write(handle, 4, b"kept")
                        client.set(None, key, 0o644, None, None, None, None, None)
                        ours = [file.pwrite(b"held", 100 + 100 * turn + at) for at in range(0, 40, 4)]
                        theirs = [alice.write(handle, 4, b"lost") for _ in range(10)]
                        both = [one for pair in zip(ours, theirs, strict=True) for one in pair]
                        told = await asyncio.gather(*both, return_exceptions=True)
                        refusals = [one.status for one in told if isinstance(one, Nfs3Failure)]
                        assert refusals == [nfsstat3.NFS3ERR_ACCES] * len(theirs)
                        assert await file.pread(4, 4) == b"kept"

    asyncio.run(asyncio.wait_for(main(), 600))


def test_a_mount_is_not_given_back_under_a_worker_that_waits_for_the_cluster(tmp_path, place):
    async def main():
        async with serving(tmp_path, place.entry()) as server, server.connect(("tcp", "3")) as fs:
            service = server.daemon.service
            client = service.roots.get(service.exports.exports[0].id).mount.store.calls.client
            alone = threading.Event()
            place.cluster.pause("mds")
            try:
                making = asyncio.ensure_future(fs.write_bytes("f", b""))
                await asyncio.sleep(1)
                assert not client.end(alone.set)
                assert not alone.is_set()
            finally:
                place.cluster.resume("mds")
            await making
            assert await asyncio.to_thread(alone.wait, 60)
            assert await fs.listdir() == ["f"]

    asyncio.run(asyncio.wait_for(main(), 600))
