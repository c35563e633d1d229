"""NFSv3's READLINK, READ, WRITE and COMMIT, at the server, in memory and on a disk."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.exports import Export
from nfsd.protocol.nfs3 import (
    NFS_PROGRAM,
    COMMIT3args,
    READ3args,
    READLINK3args,
    WRITE3args,
    nfs_fh3,
    nfsstat3,
    stable_how,
)
from nfsd.v3.request import Limits
from nfsd.vfs import flushes
from nfsd.vfs.types import FileType
from tests.nfs3_client import auth_sys
from tests.support.nfs3_server import Server, running
from tests.unit.test_vfs_mounts import command
from tests.unit.test_waiting_calls import stalled
from tests.unit.vfs_support import directory_on

PAST_THE_KERNELS_OFFSETS = (1 << 63) + 5
CONTENT = b"0123456789"


@pytest.fixture(params=["memory", "disk"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with directory_on(request.param, tmp_path) as path:
        yield Path(path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 64 KiB."""
    path = tmp_path / "small"
    path.mkdir()
    if not command("mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "none", str(path)):
        pytest.skip("no file system can be mounted")
    try:
        yield path
    finally:
        command("umount", "-l", str(path))


def verifier_of(server: Server) -> bytes:
    """The write verifier of the file system that is exported."""
    return server.service.nodes.recent[server.root.data].write_back.verifier


def serve(
    directory: Path,
    test: Callable[[Server], Awaitable[None]],
    limits: Limits | None = None,
    more: tuple[Export, ...] = (),
    **settings: object,
) -> None:
    """Run a test against a server of the directory."""
    state = directory.parent / f"{directory.name}.state"
    state.mkdir(mode=0o700, exist_ok=True)

    async def main() -> None:
        async with running(directory, state, limits, more, **settings) as server:
            await test(server)

    try:
        asyncio.run(main())
    finally:
        for left in state.iterdir():
            left.unlink()
        state.rmdir()


async def add(server: Server, data: bytes = b"", kind: FileType = FileType.REG) -> nfs_fh3:
    """A file of this kind, ``file``, which anybody may use."""
    path = server.directory / "file"
    match kind:
        case FileType.REG:
            path.write_bytes(data)
        case FileType.DIR:
            path.mkdir()
        case FileType.LNK:
            path.symlink_to(os.fsdecode(data) or "nowhere")
        case FileType.FIFO:
            os.mkfifo(path)
    if kind is not FileType.LNK:
        path.chmod(0o777)
    return await server.client.lookup(server.root, b"file")


def content(server: Server) -> bytes:
    return (server.directory / "file").read_bytes()


async def write(
    server: Server, handle: nfs_fh3, data: bytes, offset: int = 0, stable: stable_how = stable_how.FILE_SYNC
) -> Any:
    return await server.client.nfs("WRITE", WRITE3args(handle, offset, len(data), stable, memoryview(data)))


async def read(server: Server, handle: nfs_fh3, offset: int, count: int) -> Any:
    return await server.client.nfs("READ", READ3args(handle, offset, count))


async def commit(server: Server, handle: nfs_fh3, offset: int = 0, count: int = 0) -> Any:
    return await server.client.nfs("COMMIT", COMMIT3args(handle, offset, count))


def test_read_gives_the_data_and_says_where_the_file_ends(directory: Path) -> None:
    expected = [
        (0, 4, b"0123", False),
        (0, 10, b"0123456789", True),
        (0, 11, b"0123456789", True),
        (7, 3, b"789", True),
        (7, 2, b"78", False),
        (10, 5, b"", True),
        (PAST_THE_KERNELS_OFFSETS, 5, b"", True),
        ((1 << 63) - 1, 0xFFFFFFFF, b"", True),
        (0, 0, b"", False),
        (10, 0, b"", True),
    ]

    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        for offset, count, data, eof in expected:
            resok = (await read(server, handle, offset, count)).resok
            assert (bytes(resok.data), resok.count, resok.eof) == (data, len(data), eof)
            assert resok.file_attributes == await server.client.getattr(handle)
            assert resok.file_attributes.size == 10

    serve(directory, test)


def test_read_of_an_empty_file_is_at_its_end(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server)
        for count in (0, 4096):
            resok = (await read(server, handle, 0, count)).resok
            assert (resok.count, resok.eof) == (0, True)

    serve(directory, test)


def test_read_is_bounded_by_what_fsinfo_announced(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        resok = (await read(server, handle, 0, 0xFFFFFFFF)).resok
        assert (bytes(resok.data), resok.eof) == (b"01234567", False)

    serve(directory, test, Limits(read_max=8))


@pytest.mark.parametrize("kind", [FileType.DIR, FileType.LNK, FileType.FIFO])
def test_only_regular_files_have_data(kind: FileType, directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, kind=kind)
        for value, attributes in (
            (await read(server, handle, 0, 5), lambda failed: failed.file_attributes),
            (await write(server, handle, b"x"), lambda failed: failed.file_wcc.after),
            (await commit(server, handle), lambda failed: failed.file_wcc.after),
        ):
            assert value.status == nfsstat3.NFS3ERR_INVAL
            assert attributes(value.resfail).type == int(kind)

    serve(directory, test)


def test_a_read_that_fails_tells_why(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        await read(server, handle, 0, 5)
        (opened,) = server.service.nodes.recent[handle.data].inode.opens.values()
        broken = os.open("/proc/self/mem", os.O_RDONLY)  # nothing is mapped at 0
        os.dup2(broken, opened.fd)
        os.close(broken)
        value = await read(server, handle, 0, 5)
        assert value.status == nfsstat3.NFS3ERR_IO
        assert value.resfail.file_attributes.size == 10
        assert (await server.client.getattr(handle)).size == 10

    serve(directory, test)


@pytest.mark.parametrize("stable", list(stable_how))
def test_write_stores_data_and_says_how_stably(stable: stable_how, directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        os.utime(directory / "file", (1, 2))
        before = await server.client.getattr(handle)
        resok = (await write(server, handle, b"abc", 9, stable)).resok
        assert (resok.count, resok.committed, resok.verf) == (3, stable, verifier_of(server))
        wcc = resok.file_wcc
        assert (wcc.before.size, wcc.before.mtime, wcc.before.ctime) == (10, before.mtime, before.ctime)
        assert wcc.after == await server.client.getattr(handle)
        assert (wcc.after.size, wcc.after.mtime == before.mtime) == (12, False)
        assert content(server) == b"012345678abc"

    serve(directory, test)


def test_write_of_nothing_succeeds_and_changes_nothing(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        before = await server.client.getattr(handle)
        resok = (await write(server, handle, b"", 100)).resok
        assert (resok.count, resok.committed) == (0, stable_how.FILE_SYNC)
        assert resok.file_wcc.after == before == await server.client.getattr(handle)
        if server.client.acts_as_callers:
            (directory / "file").chmod(0o600)
            server.client.credential = auth_sys(1234, 1234)
            assert (await write(server, handle, b"")).status == nfsstat3.NFS3ERR_ACCES

    serve(directory, test)


def test_write_with_counts_that_disagree_writes_nothing(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        for count in (0, 2, 4, 0xFFFFFFFF):
            arguments = WRITE3args(handle, 0, count, stable_how.UNSTABLE, memoryview(b"abc"))
            value = await server.client.nfs("WRITE", arguments)
            assert value.status == nfsstat3.NFS3ERR_INVAL
            assert content(server) == CONTENT
            assert (value.resfail.file_wcc.before, value.resfail.file_wcc.after.size) == (None, 10)

    serve(directory, test)


def test_write_is_cut_to_what_fsinfo_announced(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server)
        assert (await write(server, handle, CONTENT)).resok.count == 4
        assert content(server) == b"0123"

    serve(directory, test, Limits(write_max=4))


def test_write_past_the_kernels_offsets_is_too_big(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server)
        for offset in ((1 << 63) - 1, 1 << 63, (1 << 64) - 1):
            value = await write(server, handle, b"x", offset)
            assert value.status == nfsstat3.NFS3ERR_FBIG
            assert content(server) == b""

    serve(directory, test)


@pytest.mark.parametrize("stable", [stable_how.UNSTABLE, stable_how.FILE_SYNC])
def test_a_full_file_system(stable: stable_how, small: Path) -> None:
    """What fits is written and told; then nothing is, and why."""

    async def test(server: Server) -> None:
        handle = await add(server)
        data = os.urandom(100_000)
        done = (await write(server, handle, data, 0, stable)).resok.count
        assert 0 < done <= 64 << 10
        assert content(server) == data[:done]
        value = await write(server, handle, data, done, stable)
        assert value.status == nfsstat3.NFS3ERR_NOSPC
        assert (value.resfail.file_wcc.before, value.resfail.file_wcc.after.size) == (None, done)
        assert bytes((await read(server, handle, 0, 100)).resok.data) == data[:100]

    serve(small, test)


def test_writes_answer_the_verifier_from_before_and_commits_the_one_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data lost while a call is under way shows as a verifier that differs between the WRITE and the COMMIT."""
    (tmp_path / "export").mkdir(mode=0o777)

    async def test(server: Server) -> None:
        service = server.service
        handle = await add(server)
        first = (await write(server, handle, b"abc", stable=stable_how.UNSTABLE)).resok.verf
        root = service.nodes.recent[server.root.data]
        async with stalled(service, root, tmp_path):
            writing = asyncio.ensure_future(write(server, handle, b"def", stable=stable_how.UNSTABLE))
            async with asyncio.timeout(30):
                while not server.dispatcher.held:  # noqa: ASYNC110 (the server's doing)
                    await asyncio.sleep(0.001)
            root.write_back.verifier = b"lost1..."
        assert (await writing).resok.verf == first
        monkeypatch.setattr(flushes, "on_fsync", lambda _: setattr(root.write_back, "verifier", b"lost2..."))
        assert (await commit(server, handle)).resok.verf == b"lost2..."

    serve(tmp_path / "export", test)


def test_commit_flushes_and_gives_both_attributes(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        for offset, count in ((0, 0), (4096, 8192), ((1 << 64) - 1, 1)):
            resok = (await commit(server, handle, offset, count)).resok
            assert resok.verf == verifier_of(server)
            now = await server.client.getattr(handle)
            assert (resok.file_wcc.before.size, resok.file_wcc.before.ctime) == (10, now.ctime)
            assert resok.file_wcc.after == now

    serve(directory, test)


def test_commit_reports_data_that_was_lost(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir(mode=0o777)

    async def test(server: Server) -> None:
        handle = await add(server)
        await write(server, handle, b"abc", stable=stable_how.UNSTABLE)

        sync = (await server.service.resolve(handle.data)).inode.sync
        begun: list[Callable[[int], None]] = []  # fsyncs that end when and as the test says
        sync.join(begun.append)
        committing = asyncio.ensure_future(commit(server, handle))
        async with asyncio.timeout(30):
            while not sync.waiting:  # noqa: ASYNC110 (the server's doing)
                await asyncio.sleep(0.001)
            sync.join(begun.append)
            begun[0](0)
            while len(begun) == 1:  # noqa: ASYNC110 (likewise)
                await asyncio.sleep(0.001)
        begun[1](errno.EIO)  # of what the COMMIT waits for
        value = await committing
        assert value.status == nfsstat3.NFS3ERR_IO
        assert value.resfail.file_wcc.after == await server.client.getattr(handle)

    serve(tmp_path / "export", test)


def test_read_only_exports_refuse_write_and_commit_but_not_read(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        assert (await write(server, handle, b"x")).status == nfsstat3.NFS3ERR_ROFS
        assert (await commit(server, handle)).status == nfsstat3.NFS3ERR_ROFS
        assert bytes((await read(server, handle, 0, 5)).resok.data) == b"01234"
        assert content(server) == CONTENT

    serve(directory, test, read_only=True)


def test_what_is_transferred_is_counted(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, CONTENT)
        await read(server, handle, 3, 100)
        await write(server, handle, b"abcd")
        exports = server.service.exports
        tally = exports.tally(exports.exports[0], "127.0.0.1")
        assert (tally.read, tally.written) == (7, 4)
        rows = server.dispatcher.rows
        assert [rows[NFS_PROGRAM, 3, number].calls for number in (6, 7)] == [1, 1]

    serve(directory, test)


def test_readlink_gives_the_text_whatever_its_octets(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server, b"../\xff\xfe/x", FileType.LNK)
        resok = (await server.client.nfs("READLINK", READLINK3args(handle))).resok
        assert bytes(resok.data) == b"../\xff\xfe/x"
        assert resok.symlink_attributes.type == 5

    serve(directory, test)


def test_readlink_of_another_type_is_invalid(directory: Path) -> None:
    async def test(server: Server) -> None:
        handle = await add(server)
        value = await server.client.nfs("READLINK", READLINK3args(handle))
        assert value.status == nfsstat3.NFS3ERR_INVAL
        assert value.resfail.symlink_attributes.type == 1

    serve(directory, test)
