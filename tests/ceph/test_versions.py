"""CephFS by each minor version of NFSv4: what the suite has not, as another client of the cluster sees it."""

import asyncio
import errno
import fcntl
import json

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Failed, mode
from tests.support.served import run
from tests.unit.test_backends_table import seen, told
from tests.unit.test_v4_locks import locking

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900)]


def test_the_documents_table_is_what_it_answers(tmp_path, place):
    assert seen(tmp_path, place.entry(), patience=600) == told("cephfs")


def serve(tmp_path, place, test):
    entry = {"backend": "cephfs", "pseudo": "/data", "squash": "none", "options": place.options}
    run(tmp_path, f"  - {json.dumps(entry)}\n", test)


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_data_and_locks(tmp_path, place, minor):
    async def test(served):
        client = await served.nfs4(minor)
        stateid, handle = await client.open("/data", b"f", create=mode(0o644))
        write = p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"some data")
        [written] = await client.on(handle, (p.OP_WRITE, write))
        assert (written.resok4.count, written.resok4.committed) == (9, p.stable_how4.FILE_SYNC4)
        [read] = await client.on(handle, (p.OP_READ, p.READ4args(stateid, 5, 100)))
        assert (bytes(read.resok4.data), read.resok4.eof) == (b"data", True)
        [locked] = await client.on(handle, locking(client, stateid, 0, 4))
        assert locked.resok4.lock_stateid
        with place.client() as (other, root):
            key, _ = await asyncio.to_thread(other.lookup, None, root, b"f")
            file = await asyncio.to_thread(other.open, None, key, 3)
            with pytest.raises(BlockingIOError):
                await asyncio.to_thread(other.lock, file, fcntl.F_WRLCK, 2, 1, 2)
            await asyncio.to_thread(other.lock, file, fcntl.F_WRLCK, 4, 1, 2)
            await asyncio.to_thread(file.close)
        await client.run(*client.path("/data"), (p.OP_REMOVE, p.REMOVE4args(b"f")))
        with pytest.raises(Failed) as failed:
            await client.run(*client.path("/data/f"))
        assert failed.value.status == p.nfsstat4.NFS4ERR_NOENT

    serve(tmp_path, place, test)


def test_what_version_two_has_added(tmp_path, place):
    async def test(served):
        client = await served.nfs4(2)
        stateid, handle = await client.open("/data", b"f", create=mode(0o644))
        await client.on(handle, (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, b"x" * 8192)))
        attribute = p.SETXATTR4args(p.setxattr_option4.SETXATTR4_EITHER, b"colour", b"blue")
        await client.on(handle, (p.OP_SETXATTR, attribute))
        [found] = await client.on(handle, (p.OP_GETXATTR, p.GETXATTR4args(b"colour")))
        assert bytes(found.gxr_value) == b"blue"
        await client.on(handle, (p.OP_DEALLOCATE, p.DEALLOCATE4args(stateid, 0, 4096)))
        [read] = await client.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 8192)))
        assert bytes(read.resok4.data) == bytes(4096) + b"x" * 4096
        with pytest.raises(Failed) as failed:
            await client.on(handle, (p.OP_ALLOCATE, p.ALLOCATE4args(stateid, 0, 1 << 20)))
        assert failed.value.status == p.nfsstat4.NFS4ERR_NOTSUPP
        with place.client() as (other, root):
            key, _ = await asyncio.to_thread(other.lookup, None, root, b"f")
            assert await asyncio.to_thread(other.get_xattr, None, key, b"user.colour") == b"blue"
            with pytest.raises(OSError) as refused:  # noqa: PT011 (the errno is looked at)
                await asyncio.to_thread(other.get_xattr, None, key, b"user.size")
            assert refused.value.errno == errno.ENODATA

    serve(tmp_path, place, test)
