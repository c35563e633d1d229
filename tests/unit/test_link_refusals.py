"""If the kernel refuses a LINK, the reply names that very error, natively, in every version."""

import asyncio
import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import NFS_PROGRAM, LINK3args, diropargs3, nfs_fh3, nfsstat3
from tests.nfs3_client import Nfs3Client
from tests.support.nfs4 import Client4, LoopbackTransport
from tests.support.nfs4_native import Wire
from tests.unit.nfs_client_support import Rig

MOST_LINKS = 65000
"""ext4's; a file system that allows more would take too long to fill."""
LINK = (NFS_PROGRAM, 3, 15)
COMPOUND = (NFS_PROGRAM, 4, 1)


@contextlib.contextmanager
def immutable(path: Path) -> Iterator[None]:
    """Nobody may give the file another name (chattr(1))."""
    done = subprocess.run(["chattr", "+i", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file can be made immutable here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


@contextlib.contextmanager
def full_of_names(path: Path) -> Iterator[None]:
    """The file has as many names as its file system allows."""
    most = os.pathconf(path, "PC_LINK_MAX")
    if most > MOST_LINKS:
        pytest.skip(f"this file system allows {most} links to a file")
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as names:
        for number in range(most - path.stat().st_nlink):
            os.link(path, f"{names}/{number}")
        with pytest.raises(OSError, match=os.strerror(errno.EMLINK)):
            os.link(path, f"{names}/more")
        yield


@pytest.mark.parametrize(
    ("refusing", "in3", "in4"),
    [
        (immutable, nfsstat3.NFS3ERR_PERM, p.NFS4ERR_PERM),
        (full_of_names, nfsstat3.NFS3ERR_MLINK, p.NFS4ERR_MLINK),
    ],
)
def test_link_tells_what_the_kernel_says(tmp_path, refusing, in3, in4):
    rig = Rig(tmp_path)
    file = rig.export / "f"
    file.write_bytes(b"")

    def answered(procedure: tuple[int, int, int]) -> int:
        """How many calls of it have been answered natively."""
        return rig.daemon.dispatchers["nfs"].rows[procedure].native_calls

    async def main():
        service = rig.daemon.service
        root = await service.root(service.exports.exports[0])
        async with await Nfs3Client.connect("127.0.0.1", rig.ports["tcp"], uid=0, gid=0) as client:
            here = nfs_fh3(root.handle)
            handle = await client.lookup(here, b"f")
            before = answered(LINK)
            refused = await client.nfs("LINK", LINK3args(handle, diropargs3(here, b"g")))
            assert answered(LINK) == before + 1
        assert refused.status == in3
        assert refused.resfail.file_attributes.nlink == file.stat().st_nlink
        assert refused.resfail.linkdir_wcc.after.nlink == rig.export.stat().st_nlink
        for minor in (0, 1, 2):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", rig.ports["tcp"]))
            four = await Client4(wire, minor, name=b"%d" % minor, transport=LoopbackTransport()).connect()
            putfh = [(p.OP_PUTFH, p.PUTFH4args(one)) for one in (handle.data, root.handle)]
            before = answered(COMPOUND)
            assert await four.status(putfh[0], p.OP_SAVEFH, putfh[1], (p.OP_LINK, p.LINK4args(b"g"))) == in4
            assert answered(COMPOUND) == before + 1
            wire.writer.close()
        assert os.listdir(rig.export) == ["f"]

    with refusing(file):
        rig.run(main)
