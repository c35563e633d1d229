"""COMMIT needs permission to write the file, on the native path and on the general one."""

import asyncio
import os
from pathlib import Path

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import COMMIT3args, nfs_fh3, nfsstat3
from tests.nfs3_client import Nfs3Client
from tests.support.nfs4 import Client4, LoopbackTransport
from tests.support.nfs4_native import Wire
from tests.unit.nfs_client_support import Rig
from tests.unit.vfs_support import directory_on

OWNER, FRIEND, STRANGER = 1001, 1002, 1003
REFUSED = (nfsstat3.NFS3ERR_ACCES, p.NFS4ERR_ACCESS)
READ_ONLY = (nfsstat3.NFS3ERR_ROFS, p.NFS4ERR_ROFS)
DONE = (0, 0)


@pytest.fixture(params=["disk", "memory"])
def base(request, tmp_path):
    with directory_on(request.param, tmp_path) as path:
        yield Path(path)


class Callers:
    """Clients of both versions under any uid."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    async def connect(self) -> None:
        """An NFSv4.1 client, and what the file is called in NFSv3."""
        self.service = self.rig.daemon.service
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.rig.ports["tcp"]))
        self.four = await Client4(wire, 1, transport=LoopbackTransport()).connect()
        self.handle4 = (await self.four.run(*self.four.path("/export/f"), p.OP_GETFH))[-1].resok4.object
        root = nfs_fh3((await self.service.root(self.service.exports.exports[0])).handle)
        async with await self.three(0) as client:
            self.handle3 = await client.lookup(root, b"f")

    async def three(self, uid: int) -> Nfs3Client:
        """An NFSv3 client."""
        return await Nfs3Client.connect("127.0.0.1", self.rig.ports["tcp"], uid=uid, gid=uid)

    async def write(self, uid: int) -> None:
        """WRITE, unstable."""
        async with await self.three(uid) as client:
            await client.write(self.handle3, 0, b"data")

    async def commit(self, uid: int) -> tuple[int, int]:
        """The status of COMMIT in NFSv3 and in NFSv4.1."""
        async with await self.three(uid) as client:
            three = (await client.nfs("COMMIT", COMMIT3args(self.handle3, 0, 0))).status
        self.four.credential = (uid, uid, ())
        there = (p.OP_PUTFH, p.PUTFH4args(self.handle4))
        return three, await self.four.status(there, (p.OP_COMMIT, p.COMMIT4args(0, 0)))


def with_callers(base, test, mode=0o640, **server):
    rig = Rig(base)
    (rig.export / "f").write_bytes(b"")
    os.chown(rig.export / "f", OWNER, FRIEND)
    os.chmod(rig.export / "f", mode)

    async def main():
        callers = Callers(rig)
        await callers.connect()
        await test(callers, rig)

    rig.run(main)


def test_a_stranger_does_not_flush_what_others_write(base):
    async def test(callers, rig):
        for written in (False, True):
            if written:
                await callers.write(OWNER)
            assert await callers.commit(STRANGER) == REFUSED
            assert await callers.commit(FRIEND) == REFUSED  # the group may only read
            assert await callers.commit(OWNER) == DONE
            assert await callers.commit(0) == DONE

    with_callers(base, test)


def test_who_may_write_may_commit(base):
    async def test(callers, rig):
        await callers.write(OWNER)
        assert await callers.commit(FRIEND) == DONE
        os.chmod(rig.export / "f", 0o640)
        assert await callers.commit(FRIEND) == REFUSED
        assert await callers.commit(STRANGER) == REFUSED

    with_callers(base, test, mode=0o660)


def test_who_has_the_file_open_for_writing_may_commit_whatever_the_mode_says(base):
    """NFSv4's WRITE goes on as well; without a COMMIT the client would have to call the data lost."""

    async def test(callers, rig):
        four = callers.four
        four.credential = (FRIEND, FRIEND, ())
        stateid, handle = await four.open("/export", b"f", access=3)
        for mode in (0o660, 0o600):
            os.chmod(rig.export / "f", mode)
            write = p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, b"data")
            for _ in range(2):  # the second finds everything on the disk
                await four.on(handle, (p.OP_WRITE, write))
                assert (await callers.commit(0)) == DONE
                four.credential = (FRIEND, FRIEND, ())
                await four.on(handle, (p.OP_COMMIT, p.COMMIT4args(0, 0)))
            assert await callers.commit(STRANGER) == REFUSED
            four.credential = (FRIEND, FRIEND, ())
        await four.close(stateid, handle)
        assert await callers.commit(FRIEND) == REFUSED

    with_callers(base, test, mode=0o660)


def test_an_owner_keeps_it_whatever_the_mode_says(base):
    """As with WRITE: it may have had permission when it opened the file."""

    async def test(callers, rig):
        await callers.write(OWNER)
        os.chmod(rig.export / "f", 0o400)
        assert await callers.commit(OWNER) == DONE
        assert await callers.commit(STRANGER) == REFUSED

    with_callers(base, test, mode=0o600)


def test_there_is_nothing_to_commit_on_a_read_only_export(base):
    async def test(callers, rig):
        await callers.write(OWNER)
        assert await callers.commit(OWNER) == DONE
        text = (base / "exports.yaml").read_text()
        (base / "exports.yaml").write_text(text.replace("squash: none", "squash: none, access: ro"))
        await rig.daemon.reload()
        assert await callers.commit(OWNER) == READ_ONLY
        assert await callers.commit(STRANGER) == READ_ONLY

    with_callers(base, test)
