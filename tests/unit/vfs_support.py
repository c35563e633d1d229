"""A file service over a directory, for the tests of nfsd.vfs."""

import asyncio
import contextlib
import os
import tempfile

from nfsd.exports import Export, ExportTable
from nfsd.vfs.service import FileService
from nfsd.vfs.types import Credential, SetAttributes
from tests.support.native_files import NativeFiles

ROOT = Credential(0, 0)
ALICE = Credential(1001, 1001)
BOB = Credential(1002, 1002)


@contextlib.asynccontextmanager
async def serving(path, state_dir, **options):
    options.setdefault("squash", "none")
    service = FileService(ExportTable((Export(id=7, path=str(path), pseudo="/x", **options),)), str(state_dir))
    await service.start()
    try:
        yield service, await service.root(service.exports.exports[0])
    finally:
        await service.close()


def run(path, state_dir, scenario, **options):
    """Run ``scenario(service, root)`` over the directory ``path``."""

    async def main():
        async with serving(path, state_dir, **options) as (service, root):
            return await scenario(service, root)

    return asyncio.run(main())


@contextlib.contextmanager
def directory_on(kind, tmp_path):
    """A world-writable directory on a disk file system or in memory."""
    parent = str(tmp_path) if kind == "disk" else "/dev/shm"
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as path:
        os.chmod(path, 0o777)
        yield path


@contextlib.contextmanager
def where_looks_may_wait(mount):
    """Files that are met from now on, until this ends, are taken for some of a file system where every look may wait:
    NFSv3's changes of names in them are the file service's."""
    before = mount.inline, mount.caching
    mount.inline = mount.caching = False
    try:
        yield
    finally:
        mount.inline, mount.caching = before


async def write_file(service, root, name, data=b"", credential=ROOT, mode=0o644):
    node, _, _, _ = await service.create(credential, root, name, SetAttributes(mode=mode))
    if data:
        opened = await service.open(credential, node, read=False, write=True)
        put(service, opened, data)
        opened.release()
    return node


def put(service, opened, data):
    """Have data in a file as if the server had written it, by a call that nobody counts."""
    before = os.fstat(opened.fd).st_ctime_ns
    assert os.pwrite(opened.fd, data, 0) == len(data)
    opened.node.inode.wrote(before, os.fstat(opened.fd).st_ctime_ns)
    service.unstable.add(opened)


async def read_file(service, node, credential=ROOT, offset=0, count=1 << 16):
    return await NativeFiles(service).read_all(credential, node, offset, count)


async def in_turn(directory, call):
    """The reply to a call that finds the turn on the directory taken, and has to wait for it."""
    serial = directory.inode.serial
    await serial.acquire()
    task = asyncio.ensure_future(call)
    for _ in range(10_000):
        if serial.waited_for:
            break
        await asyncio.sleep(0.001)
    serial.release()
    return await task
