"""Data that a client believes to be on the disk is there, even if another caller's fsync got the error.

The kernel tells each descriptor of an error of write-back once. A fsync that began before a change may end after it.
"""

import asyncio
import contextlib
import errno

import pytest

from nfsd.protocol.nfs3 import SETATTR3args, nfs_fh3, nfsstat3, stable_how
from tests.nfs3_client import Nfs3Client, Nfs3Failure, attributes
from tests.unit.nfs_client_support import Rig
from tests.unit.test_waiting_calls import stalled


async def until(condition):
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it does not happen")


async def write(client, file):
    await client.write(file, 4, b"stable", stable_how.FILE_SYNC)


async def truncate(client, file):
    result = await client.nfs("SETATTR", SETATTR3args(file, attributes(size=3), None))
    if result.status != nfsstat3.NFS3_OK:
        raise Nfs3Failure("SETATTR", result.status)


@pytest.mark.parametrize(
    ("change", "asks"), [(write, "before"), (write, "after"), (truncate, "before")], ids=["write", "late-write", "size"]
)
def test_a_stable_change_fails_with_the_fsync_that_was_told_of_it(tmp_path, change, asks):
    rig = Rig(tmp_path)

    async def main():
        service = rig.daemon.service
        directory = await service.root(service.exports.exports[0])
        root = nfs_fh3(directory.handle)
        first, second = [await Nfs3Client.connect("127.0.0.1", rig.ports["tcp"]) for _ in range(2)]
        file = await first.create(root, b"f")
        inode = (await service.resolve(file.data)).inode
        await first.write(file, 0, b"data")
        begun = []  # fsyncs that end when and as the test says
        inode.sync.join(begun.append)
        committing = asyncio.ensure_future(first.commit(file))
        await until(lambda: inode.sync.waiting)
        inode.sync.join(begun.append)
        begun[0](0)
        await until(lambda: len(begun) == 2)  # the COMMIT's
        async with contextlib.AsyncExitStack() as stack:
            if asks == "after":  # what is written is on its way to the file when the fsync ends
                await stack.enter_async_context(stalled(service, directory, tmp_path))
            changing = asyncio.ensure_future(change(second, file))
            await until(lambda: inode.serial.busy if asks == "after" else inode.sync.waiting)
            begun[1](errno.EIO)  # of either's data; the next one finds nothing left that could fail
        for call in (committing, changing):
            with pytest.raises(Nfs3Failure) as failure:
                await asyncio.wait_for(call, 30)
            assert failure.value.status is nfsstat3.NFS3ERR_IO
        await change(second, file)  # it is over
        for client in (first, second):
            await client.close()

    rig.run(main)
