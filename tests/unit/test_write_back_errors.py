"""Data that a disk loses after WRITE has answered is never called safe: COMMIT fails, or the write verifier differs.

The disk is a loop device over a tmpfs that is full: it takes what is written and fails when that is written back. Needs
the privilege to mount.
"""

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import nfs_fh3
from tests.nfs3_client import Nfs3Client, Nfs3Failure
from tests.support.nfs4 import Client4, Failed, LoopbackTransport, mode
from tests.support.nfs4_native import Wire
from tests.unit.nfs_client_support import Rig
from tests.unit.test_vfs_mounts import mounted

PIECE = 512 << 10
PIECES = 80


@contextlib.contextmanager
def lying_disk(base: Path, export: Path):
    """A file system with a file ``f`` that has room for all it will be given, on a disk that has not: data is lost when
    it is written back, while all else succeeds, so that nothing but the data's own error tells of it."""
    thin = base / "thin"
    thin.mkdir()
    with mounted(str(thin), "-t", "tmpfs", "-o", "size=16m", "none"):
        with open(thin / "image", "wb") as file:
            file.truncate(128 << 20)
        # An error in a journal would make everything read-only, and the data's error would not be needed.
        options = ["-O", "^has_journal", "-E", "lazy_itable_init=0"]
        subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(thin / "image")], check=True)
        with mounted(str(export), "-o", "loop", str(thin / "image")):
            with open(export / "f", "wb") as file:
                os.posix_fallocate(file.fileno(), 0, PIECE * PIECES)
                os.fchmod(file.fileno(), 0o666)
            subprocess.run(["sync", "-f", str(export)], check=True)
            with open(thin / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))
            yield


class Nfs3:
    """NFSv3 over TCP."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def connect(self, name: bytes) -> None:
        self._client = await Nfs3Client.connect("127.0.0.1", self._rig.ports["tcp"])
        service = self._rig.daemon.service
        root = nfs_fh3((await service.root(service.exports.exports[0])).handle)
        try:
            self._handle = await self._client.lookup(root, name)
        except Nfs3Failure:
            self._handle = await self._client.create(root, name)

    async def write(self, offset: int, data: bytes) -> bytes:
        return (await self._client.write(self._handle, offset, data)).verf

    async def done(self) -> None:
        """Nothing is open in NFSv3."""

    async def commit(self) -> bytes | None:
        try:
            return (await self._client.commit(self._handle)).verf
        except Nfs3Failure:
            return None

    async def close(self) -> None:
        await self._client.close()


class Nfs4:
    """NFSv4.2 over TCP."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def connect(self, name: bytes) -> None:
        self._wire = Wire(*await asyncio.open_connection("127.0.0.1", self._rig.ports["tcp"]))
        self._client = await Client4(self._wire, 2, transport=LoopbackTransport()).connect()
        self._stateid, self._handle = await self._client.open("/export", name, create=mode(0o666))

    async def write(self, offset: int, data: bytes) -> bytes:
        args = p.WRITE4args(self._stateid, offset, p.stable_how4.UNSTABLE4, data)
        [written] = await self._client.on(self._handle, (p.OP_WRITE, args))
        assert written.resok4.count == len(data)
        return written.resok4.writeverf

    async def done(self) -> None:
        """CLOSE: whoever has not committed before may do so afterwards."""
        await self._client.close(self._stateid, self._handle)

    async def commit(self) -> bytes | None:
        try:
            [committed] = await self._client.on(self._handle, (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        except Failed:
            return None
        return committed.resok4.writeverf

    async def close(self) -> None:
        self._wire.writer.close()


async def idle(service) -> None:
    """What nobody uses is closed, as it is after some seconds."""
    for _ in range(400):
        service.sweep()
        await asyncio.sleep(0.01)
        if not open_for_writing(service):
            return
    pytest.fail("a descriptor that nobody uses stays open")


def open_for_writing(service) -> list[int]:
    return [one.fd for one in service.open_files._all_opens if one.fd >= 0 and one.writable]


def somebody_else_hears_of_it(path: Path) -> None:
    """Local processes synchronise the file: of what write-back has failed they are told, and nobody who opens the file
    from then on is, just as if the kernel had forgotten the file in between."""
    for _ in range(8):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            continue  # of the data, and then of what the kernel keeps of where it is
        finally:
            os.close(descriptor)
        return
    pytest.fail("this disk fails for another reason than a lack of room")


@pytest.fixture(params=[Nfs3, Nfs4], ids=["v3", "v4"])
def peer(request):
    return request.param


def on_a_lying_disk(tmp_path, peer, test):
    """Run ``test(client, rig)`` with a client that has written 40 MiB; ``told``: the verifiers it was given."""
    rig = Rig(tmp_path)

    async def main():
        client = peer(rig)
        await client.connect(b"f")
        try:
            rng = os.urandom(PIECE)
            told = [await client.write(number * PIECE, rng) for number in range(PIECES)]
            await test(client, rig, told)
        finally:
            await client.close()

    with lying_disk(tmp_path, rig.export):
        rig.run(main)


async def is_told(client, told):
    verifier = await client.commit()
    assert verifier is None or verifier not in told, "COMMIT vouches for data that is lost"


def test_an_error_after_the_descriptor_was_idle(tmp_path, peer):
    async def test(client, rig, told):
        await client.done()
        await idle(rig.daemon.service)
        somebody_else_hears_of_it(rig.export / "f")
        await is_told(client, told)

    on_a_lying_disk(tmp_path, peer, test)


def test_an_error_that_somebody_else_was_told_before_the_descriptor_closed(tmp_path, peer):
    async def test(client, rig, told):
        somebody_else_hears_of_it(rig.export / "f")
        await client.done()
        await idle(rig.daemon.service)
        await is_told(client, told)

    on_a_lying_disk(tmp_path, peer, test)


def test_an_error_after_others_needed_the_descriptors(tmp_path, peer):
    async def test(client, rig, told):
        service = rig.daemon.service
        await client.done()
        service.shares.bound(2, 2)
        reader = Nfs3(rig)
        for number in range(4):
            await reader.connect(b"other%d" % number)
            await reader.close()
        for _ in range(400):
            if len(open_for_writing(service)) <= 2:
                break
            await asyncio.sleep(0.01)
        somebody_else_hears_of_it(rig.export / "f")
        await is_told(client, told)

    on_a_lying_disk(tmp_path, peer, test)


def test_an_error_after_the_permissions_changed(tmp_path, peer):
    async def test(client, rig, told):
        os.chmod(rig.export / "f", 0o644)  # what is open is not used again
        somebody_else_hears_of_it(rig.export / "f")
        await client.write(0, b"")
        await is_told(client, told)

    on_a_lying_disk(tmp_path, peer, test)


def test_an_error_after_the_export_was_gone_for_a_while(tmp_path, peer):
    async def test(client, rig, told):
        service = rig.daemon.service
        exports = service.exports.exports
        await client.done()
        await service.take_exports(())
        await idle(service)
        somebody_else_hears_of_it(rig.export / "f")
        await service.take_exports(exports)
        await is_told(client, told)

    on_a_lying_disk(tmp_path, peer, test)


def test_an_error_of_a_copy(tmp_path):
    """COPY is unstable, too."""

    async def main():
        client = Nfs4(rig)
        await client.connect(b"f")
        wire, source = client._client, rig.export / "source"
        reading, from_ = await wire.open("/export", b"source", access=1)
        copy = p.COPY4args(reading, client._stateid, 0, 0, source.stat().st_size, True, True, [])
        source_there, there = (p.OP_PUTFH, p.PUTFH4args(from_)), (p.OP_PUTFH, p.PUTFH4args(client._handle))
        *_, copied = await wire.run(source_there, p.OP_SAVEFH, there, (p.OP_COPY, copy))
        assert copied.cr_resok4.cr_response.wr_count == source.stat().st_size
        await client.done()
        await idle(rig.daemon.service)
        somebody_else_hears_of_it(rig.export / "f")
        await is_told(client, [copied.cr_resok4.cr_response.wr_writeverf])
        await client.close()

    rig = Rig(tmp_path)
    with lying_disk(tmp_path, rig.export):
        # What the disk still has in memory of it can be read, whatever becomes of it on the disk.
        (rig.export / "source").write_bytes(os.urandom(4 << 20))
        rig.run(main)
