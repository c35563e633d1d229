"""Run in a guest, as root: what the server says of file systems that need a stock kernel; see test_attributes.py.

Quotas of an ext4 with limits set by quotactl(2), refused beyond; directories that fold case. The server runs in this
process, and a client of its own asks it. Usage: file_systems.py WORKDIR
"""

import asyncio
import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nfsd.protocol import nfs4 as p
from nfsd.v4 import attributes
from tests.support.nfs4 import Client4, Failed, mode, serving, values, wanted

QUOTACTL_FD, GETQUOTA, SETQUOTA, BLOCK_LIMITS = 443, 0x800007, 0x800008, 1
DQBLK = struct.Struct("<8QI4x")
USER, HARD, SOFT = 1234, 1 << 20, 512 << 10
QUOTAS = (p.FATTR4_QUOTA_AVAIL_HARD, p.FATTR4_QUOTA_AVAIL_SOFT, p.FATTR4_QUOTA_USED)


def quota(path: Path, command: int, data: bytes = bytes(DQBLK.size)) -> tuple[int, ...]:
    """quotactl_fd(2) for the user; what the kernel answers."""
    buffer = ctypes.create_string_buffer(data, DQBLK.size)
    fd = os.open(path, os.O_RDONLY)
    try:
        done = ctypes.CDLL(None, use_errno=True).syscall(QUOTACTL_FD, fd, command << 8, USER, buffer)
    finally:
        os.close(fd)
    assert done == 0, os.strerror(ctypes.get_errno())
    return DQBLK.unpack(buffer.raw)


@contextmanager
def ext4(work: Path, *features: str, options: str = "") -> Iterator[Path]:
    """An ext4 of its own, mounted."""
    image, point = work / "image", work / "mounted"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", *features, image], check=True)
    point.mkdir()
    subprocess.run(["mount", "-o", f"loop{options}", image, point], check=True)
    try:
        point.chmod(0o777)
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=True)
        point.rmdir()


def fold_case(path: Path) -> None:
    """Have a directory take names in either case."""
    subprocess.run(["chattr", "+F", path], check=True)


async def get(client: Client4, path: str, *numbers: int) -> tuple[int, Any]:
    """The mask of the attributes given, and a decoder of their values."""
    *_, got = await client.run(*client.path(path), (p.OP_GETATTR, wanted(*numbers)))
    given = got.resok4.obj_attributes
    return attributes.mask_of(given.attrmask), values(given)


async def counted_only(work: Path, point: Path) -> None:
    """What is counted, but not enforced, is no quota."""
    quota(point, SETQUOTA, DQBLK.pack(HARD >> 10, SOFT >> 10, 0, 0, 0, 0, 0, 0, BLOCK_LIMITS))
    async with serving(point, state_dir=work) as server:
        client = await Client4(server, 2, uid=USER, gid=USER).connect()
        mask, _ = await get(client, "/0", *QUOTAS)
        assert mask == 0


async def quotas(work: Path) -> None:
    """A user's limits are what the attributes say, and what writes are held to."""
    with ext4(work, "-O", "quota") as point:
        await counted_only(work, point)
    with ext4(work, "-O", "quota", options=",usrquota") as point:
        quota(point, SETQUOTA, DQBLK.pack(HARD >> 10, SOFT >> 10, 0, 0, 0, 0, 0, 0, BLOCK_LIMITS))
        async with serving(point, state_dir=work) as server:
            client = await Client4(server, 2, uid=USER, gid=USER).connect()
            _, d = await get(client, "/0", p.FATTR4_SUPPORTED_ATTRS)
            assert attributes.mask_of([d.uint32() for _ in range(d.uint32())]) >> p.FATTR4_QUOTA_USED & 1
            _, d = await get(client, "/0", *QUOTAS)
            assert [d.uint64() for _ in QUOTAS] == [HARD, SOFT, 0]
            stateid, handle = await client.open("/0", b"f", create=mode(0o644))

            async def write(offset: int) -> None:
                args = p.WRITE4args(stateid, offset, p.stable_how4.FILE_SYNC4, memoryview(b"x" * (256 << 10)))
                await client.on(handle, (p.OP_WRITE, args))

            await write(0)
            used = quota(point, GETQUOTA)[2]
            assert used >= 256 << 10
            for where in ("/0", "/0/f"):
                _, d = await get(client, where, *QUOTAS)
                assert [d.uint64() for _ in QUOTAS] == [HARD - used, SOFT - used, used], where
            root = await Client4(server, 2, name=b"root").connect()
            _, d = await get(root, "/0", p.FATTR4_QUOTA_AVAIL_HARD, p.FATTR4_SPACE_AVAIL)
            assert d.uint64() == d.uint64(), "who has no limit has all there is"
            status: int = p.NFS4_OK
            for turn in range(1, 8):
                try:
                    await write(turn * (256 << 10))
                except Failed as failed:
                    status = failed.status
                    break
            assert status == p.NFS4ERR_DQUOT, status
            _, d = await get(client, "/0", *QUOTAS)
            hard, soft, used = (d.uint64() for _ in QUOTAS)
            assert (soft, used + hard) == (0, HARD)


async def case(work: Path) -> None:
    """Directories that fold case say so, others do not."""
    with ext4(work, "-O", "casefold", "-E", "encoding=utf8") as point:
        (point / "folding").mkdir()
        fold_case(point / "folding")
        (point / "plain").mkdir()
        async with serving(point, state_dir=work) as server:
            client = await Client4(server, 1).connect()
            for where, folds in (("/0", False), ("/0/plain", False), ("/0/folding", True)):
                _, d = await get(client, where, p.FATTR4_CASE_INSENSITIVE, p.FATTR4_CASE_PRESERVING)
                assert (d.boolean(), d.boolean()) == (folds, True), where


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir()
    asyncio.run(quotas(directory))
    asyncio.run(case(directory))
