"""Offsets and sizes at the edges of 63 and 64 bits, and of what files may be.

Each call is answered with a status of its protocol, nothing wraps, and the server goes on: natively (files in memory)
and on the general path (files on a disk).
"""

import asyncio
import logging
import os
import resource
from pathlib import Path

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import COMMIT3args, READ3args, SETATTR3args, WRITE3args, nfs_fh3, nfsstat3, stable_how
from tests.nfs3_client import Nfs3Client, attributes
from tests.support.nfs4 import Client4, LoopbackTransport, mode
from tests.support.nfs4_native import Wire
from tests.unit.nfs_client_support import Rig
from tests.unit.vfs_support import directory_on

EDGES = sorted({(1 << bits) + more for bits in (31, 32, 44, 62, 63, 64) for more in (-2, -1, 0, 1)} - {(1 << 64) + 0})
OFFSETS = [edge for edge in EDGES if edge < 1 << 64]
LENGTHS = [0, 1, 2, 5, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]
LARGEST = (1 << 63) - 1
CONTENT = b"0123456789"


@pytest.fixture(params=["disk", "memory"])
def base(request, tmp_path):
    with directory_on(request.param, tmp_path) as path:
        yield Path(path)


@pytest.fixture
def rig(base):
    rig = Rig(base)
    (rig.export / "f").write_bytes(CONTENT)
    return rig


async def connect3(rig):
    service = rig.daemon.service
    root = nfs_fh3((await service.root(service.exports.exports[0])).handle)
    client = await Nfs3Client.connect("127.0.0.1", rig.ports["tcp"])
    return client, await client.lookup(root, b"f")


async def connect4(rig, minor):
    wire = Wire(*await asyncio.open_connection("127.0.0.1", rig.ports["tcp"]))
    client = await Client4(wire, minor, transport=LoopbackTransport()).connect()
    stateid, handle = await client.open("/export", b"f")
    return wire, client, stateid, handle


def untouched(rig):
    return (rig.export / "f").read_bytes() == CONTENT


def test_nfs3(rig, caplog):
    async def main():
        client, file = await connect3(rig)
        async with client:
            await client.write(file, 0, CONTENT)  # from here on a descriptor is open, as the native path needs it
            await client.read(file, 0, 1)
            for offset in OFFSETS:
                for count in (0, 1, 5, 65536, (1 << 32) - 1):
                    read = (await client.nfs("READ", READ3args(file, offset, count))).resok
                    assert (bytes(read.data), read.eof) == (b"", True)
                    for reach in (offset, (1 << 64) - 1 - offset):
                        assert (await client.nfs("COMMIT", COMMIT3args(file, reach, count))).status == 0
                assert untouched(rig)
                for stable in stable_how:
                    for data in (b"", b"x", b"xyz12"):
                        asked = WRITE3args(file, offset, len(data), stable, memoryview(data))
                        result = await client.nfs("WRITE", asked)
                        if result.status == nfsstat3.NFS3_OK:
                            assert offset + result.resok.count <= LARGEST
                            if result.resok.count:
                                assert (rig.export / "f").stat().st_size == offset + result.resok.count
                                assert result.resok.file_wcc.after.size == offset + result.resok.count
                        else:
                            assert result.status in (nfsstat3.NFS3ERR_FBIG, nfsstat3.NFS3ERR_INVAL), offset
                        os.truncate(rig.export / "f", len(CONTENT))
                result = await client.nfs("SETATTR", SETATTR3args(file, attributes(size=offset), None))
                if result.status == nfsstat3.NFS3_OK:
                    assert (rig.export / "f").stat().st_size == offset <= LARGEST
                else:
                    assert result.status in (nfsstat3.NFS3ERR_FBIG, nfsstat3.NFS3ERR_INVAL)
                os.truncate(rig.export / "f", len(CONTENT))
                assert untouched(rig)
            await client.getattr(file)

    rig.run(main)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.exc_info]


def operations(stateid, offset, length):
    """One of each operation that takes an offset, with what they have at least in common: READ to IO_ADVISE."""
    short = length & 0xFFFFFFFF
    yield 0, (p.OP_READ, p.READ4args(stateid, offset, short))
    yield 0, (p.OP_COMMIT, p.COMMIT4args(offset, short))
    for stable in p.stable_how4:
        yield 0, (p.OP_WRITE, p.WRITE4args(stateid, offset, stable, b"x" * min(length, 5)))
    yield 2, (p.OP_ALLOCATE, p.ALLOCATE4args(stateid, offset, length))
    yield 2, (p.OP_DEALLOCATE, p.DEALLOCATE4args(stateid, offset, length))
    yield 2, (p.OP_READ_PLUS, p.READ_PLUS4args(stateid, offset, short))
    yield 2, (p.OP_IO_ADVISE, p.IO_ADVISE4args(stateid, offset, length, [1 << p.IO_ADVISE_type4.IO_ADVISE4_WILLNEED]))
    yield 2, (p.OP_IO_ADVISE, p.IO_ADVISE4args(stateid, offset, length, [1 << p.IO_ADVISE_type4.IO_ADVISE4_DONTNEED]))
    for what in p.data_content4:
        yield 2, (p.OP_SEEK, p.SEEK4args(stateid, offset, what))
    owner = p.lock_owner4(0, b"tester")
    yield 0, (p.OP_LOCKT, p.LOCKT4args(p.nfs_lock_type4.WRITE_LT, offset, length, owner))
    size = p.fattr4([1 << p.FATTR4_SIZE], offset.to_bytes(8, "big"))
    yield 0, (p.OP_SETATTR, p.SETATTR4args(stateid, size))


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_nfs4(rig, minor, caplog):
    refusals = {p.NFS4ERR_FBIG, p.NFS4ERR_INVAL, p.NFS4ERR_NXIO, p.NFS4ERR_BAD_RANGE, p.NFS4ERR_NOSPC}
    refusals |= {p.NFS4ERR_UNION_NOTSUPP, p.NFS4ERR_NOTSUPP}
    file = rig.export / "f"

    async def main():
        wire, client, stateid, handle = await connect4(rig, minor)
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        for offset in OFFSETS:
            for length in LENGTHS:
                for since, operation in operations(stateid, offset, length):
                    if since > minor:
                        continue
                    if operation[0] == p.OP_ALLOCATE and offset + length < 1 << 45:
                        continue  # to be had, on a large disk or in a large memory
                    if operation[0] == p.OP_LOCKT:
                        operation[1].owner.clientid = client.clientid
                    result = (await client.raw(*client.in_session(there, operation)))[0]
                    assert result == 0 or result in refusals, (offset, length, operation)
                    size = file.stat().st_size
                    assert size in (len(CONTENT), offset) or offset <= size <= offset + length, operation
                    os.truncate(file, len(CONTENT))
                    assert untouched(rig) or operation[0] == p.OP_DEALLOCATE
        *_, got = await client.run(there, (p.OP_READ, p.READ4args(stateid, 0, 100)))
        assert bytes(got.resok4.data) == CONTENT
        wire.writer.close()

    rig.run(main)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.exc_info]


def test_copies_and_clones(rig, caplog):
    refusals = {p.NFS4ERR_FBIG, p.NFS4ERR_INVAL, p.NFS4ERR_NOTSUPP, p.NFS4ERR_XDEV}
    (rig.export / "g").write_bytes(CONTENT)

    async def main():
        wire, client, to, target = await connect4(rig, 2)
        from_, source = await client.open("/export", b"g")
        both = (p.OP_PUTFH, p.PUTFH4args(source)), p.OP_SAVEFH, (p.OP_PUTFH, p.PUTFH4args(target))
        ranges = [(0, offset, 5) for offset in OFFSETS] + [(offset, 0, 5) for offset in OFFSETS]
        ranges += [(0, 0, count) for count in LENGTHS[3:]] + [(3, LARGEST - 3, 0), (3, LARGEST, 0), (10, 1 << 63, 0)]
        for read_at, write_at, count in ranges:
            for operation in (
                (p.OP_COPY, p.COPY4args(from_, to, read_at, write_at, count, True, True, [])),
                (p.OP_CLONE, p.CLONE4args(from_, to, read_at, write_at, count)),
            ):
                result = (await client.raw(*client.in_session(*both, operation)))[0]
                assert result == 0 or result in refusals, (read_at, write_at, count, operation)
                assert (rig.export / "f").stat().st_size <= max(len(CONTENT), write_at + count)
                os.truncate(rig.export / "f", len(CONTENT))
        assert (rig.export / "f").read_bytes() == CONTENT
        wire.writer.close()

    rig.run(main)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.exc_info]


@pytest.mark.parametrize("minor", [0, 1])
def test_locks(rig, minor, caplog):
    """A range is what it says: where it ends within 64 bits it is had, and conflicts with what it touches alone."""

    async def main():
        wire, client, stateid, handle = await connect4(rig, minor)
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        other = p.lock_owner4(client.clientid, b"another")
        for offset in OFFSETS:
            for length in LENGTHS:
                test = (p.OP_LOCKT, p.LOCKT4args(p.nfs_lock_type4.WRITE_LT, offset, length, other))
                status = await client.status(there, test)
                legal = length and (length == (1 << 64) - 1 or offset + length <= 1 << 64)
                assert status == (0 if legal else p.NFS4ERR_INVAL), (offset, length)
        if minor:
            for offset in OFFSETS:
                fresh = p.open_to_lock_owner4(0, stateid, 0, p.lock_owner4(0, b"o%d" % offset))
                asked = p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, offset, 1, p.locker4(True, open_owner=fresh))
                [locked] = await client.on(handle, (p.OP_LOCK, asked))
                for where, held in ((offset, True), (offset - 1, False), (offset + 1, False)):
                    if where < 1 << 64:
                        test = (p.OP_LOCKT, p.LOCKT4args(p.nfs_lock_type4.WRITE_LT, where, 1, other))
                        assert await client.status(there, test) == (p.NFS4ERR_DENIED if held else 0), (offset, where)
                unlock = p.LOCKU4args(p.nfs_lock_type4.WRITE_LT, 0, locked.resok4.lock_stateid, offset, 1)
                await client.on(handle, (p.OP_LOCKU, unlock))
        wire.writer.close()

    rig.run(main)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.exc_info]


def test_what_the_server_itself_may_not_make_so_long(rig, caplog):
    """A limit of the process (RLIMIT_FSIZE) is told as FBIG; the signal that comes with it (SIGXFSZ) ends nobody."""
    limit = 1 << 20

    async def main():
        client, file = await connect3(rig)
        wire, four, stateid, handle = await connect4(rig, 2)
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        await client.write(file, 0, CONTENT)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            for name in (b"one", b"two"):
                done = await client.write(file, limit - 3, b"x" * 10)
                assert done.count == 3
                for offset in (limit, limit + 1, 10 * limit):
                    for stable in stable_how:
                        asked = WRITE3args(file, offset, 1, stable, memoryview(b"x"))
                        assert (await client.nfs("WRITE", asked)).status == nfsstat3.NFS3ERR_FBIG
                        asked = (p.OP_WRITE, p.WRITE4args(stateid, offset, p.stable_how4(stable), b"x"))
                        assert await four.status(there, asked) == p.NFS4ERR_FBIG
                asked = SETATTR3args(file, attributes(size=limit + 1), None)
                assert (await client.nfs("SETATTR", asked)).status == nfsstat3.NFS3ERR_FBIG
                asked = (p.OP_ALLOCATE, p.ALLOCATE4args(stateid, 0, limit + 1))
                assert await four.status(there, asked) == p.NFS4ERR_FBIG
                size = mode(0o600, size=limit + 1)
                creation = (p.OP_OPEN, four.open_args(name, create=size))
                assert await four.status(*four.path("/export"), creation) == p.NFS4ERR_FBIG
                assert (rig.export / "f").stat().st_size == limit
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert (await client.write(file, limit, b"x")).count == 1
        await client.close()
        wire.writer.close()

    rig.run(main)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.exc_info]
