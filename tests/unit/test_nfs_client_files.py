"""Programs use files through nfsd.client: NFSv3 and NFSv4.1 against the whole daemon."""

import asyncio
import errno
import os
import stat as modes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nfsd.client import NOW, Changes, FileSystem, NfsClientError, connect
from nfsd.client.url import parse
from rpcrdma.client import auth_sys
from rpcrdma.rpc.dispatch import Dispatcher
from tests.unit.nfs_client_support import MORE_WAYS, WAYS, Rig


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(str(part) for part in way if part))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    return Rig(tmp_path, *request.param)


def pattern(size: int) -> bytes:
    """Octets in which every place is recognized."""
    return b"".join(number.to_bytes(4, "big") for number in range(-(-size // 4)))[:size]


def test_what_is_written_is_read_again_and_is_on_the_server(rig: Rig) -> None:
    data = pattern(5_000_001)

    async def test() -> None:
        async with rig.connect() as fs:
            assert fs.version == rig.options.nfs_version
            assert await fs.write_bytes("file", data) == len(data)
            assert (rig.export / "file").read_bytes() == data
            assert await fs.read_bytes("/file") == data
            assert (await fs.stat("file")).st_size == len(data)

    rig.run(test)


@pytest.mark.parametrize("way", MORE_WAYS, ids=str)
def test_the_other_versions_on_rdma(tmp_path: Path, way: tuple[str, str, int | None]) -> None:
    rig = Rig(tmp_path, *way)
    data = pattern(3_000_001)

    async def test() -> None:
        server = await rig.server()
        assert server.connection.rdma_version == (way[2] or 2)
        fs, path = await server.locate(rig.url("file").names)
        await fs.write_bytes(path, data)
        assert (rig.export / "file").read_bytes() == data
        assert await fs.read_bytes(path) == data
        assert len(await fs.listdir(path.rpartition("/")[0])) == 1
        await server.close()

    rig.run(test)


@pytest.mark.parametrize("version", [1, 2])
def test_data_of_nfsv3_comes_by_write_chunks(tmp_path: Path, version: int) -> None:
    """READ's data is DDP-eligible (RFC 8267 section 3): it goes where it is wanted, not into a Reply chunk."""
    rig = Rig(tmp_path, "rdma", "3", version)
    data = pattern(300_001)

    async def test() -> None:
        async with rig.connect() as fs:
            for size in (2_000, 3_000, 4_000, 300_001):
                (rig.export / f"file{size}").write_bytes(data[:size])
                assert await fs.read_bytes(f"file{size}") == data[:size]
            (counters,) = rig.daemon.listeners.rdma_counters().values()
            assert counters["long_replies"] == 0
            assert counters["writes"] >= 3
            assert counters["write_bytes"] >= 307_001

    rig.run(test)


@contextmanager
def without(dispatcher: Dispatcher, version: int) -> Iterator[None]:
    """A server that does not have one version of NFS."""
    gone = dispatcher._versions[100003].pop(version)
    rows = {key: row for key, row in dispatcher.rows.items() if key[:2] == (100003, version)}
    native = dispatcher._natives
    for key in rows:
        del dispatcher.rows[key]
    dispatcher._natives = {key: value for key, value in native.items() if key != (100003, version)}
    yield
    dispatcher._versions[100003][version] = gone
    dispatcher.rows.update(rows)
    dispatcher._natives = native


def test_a_server_without_one_of_the_versions(tmp_path: Path) -> None:
    """PROG_MISMATCH: version 3 from a server that has no 4, unless one is insisted on."""
    rig = Rig(tmp_path)

    async def test() -> None:
        dispatcher = rig.daemon.dispatchers["nfs"]
        with without(dispatcher, 4):
            async with rig.connect(nfs_version=None) as fs:
                assert fs.version == "3"
            with pytest.raises(NfsClientError, match=r"no NFSv4.1 \(it has version 3\); try --nfs-version 3"):
                await rig.connect(nfs_version="4.1")
        with without(dispatcher, 3):
            async with rig.connect(nfs_version=None) as fs:
                assert fs.version == "4.1"
            with pytest.raises(NfsClientError, match=r"no NFSv3 \(it has version 4\); try --nfs-version 4.1"):
                await rig.connect(nfs_version="3")

    rig.run(test)


def test_parts_of_a_file(rig: Rig) -> None:
    data = pattern(2_500_000)

    async def test() -> None:
        (rig.export / "file").write_bytes(data)
        async with rig.connect(size=65536) as fs:
            async with fs.open("file") as file:
                buffer = bytearray(1_000_000)
                assert await file.preadinto(buffer, 777_777) == len(buffer)
                assert buffer == data[777_777:1_777_777]
                assert await file.pread(100, 2_499_990) == data[-10:]
                assert await file.pread(100, 3_000_000) == b""
                assert [await file.read(10), await file.read(10)] == [data[:10], data[10:20]]
                file.seek(2_400_000)
                assert await file.read() == data[2_400_000:]
                assert file.tell() == len(data)
                pieces = [bytes(piece) async for piece in file.stream(65_530)]
                assert b"".join(pieces) == data[65_530:]
                with pytest.raises(OSError, match="reading only") as caught:
                    await file.write(b"x")
                assert caught.value.errno == errno.EBADF
            async with fs.open("file", "r+") as file:
                await file.pwrite(b"in the middle", 1_000_000)
                await file.truncate(1_000_020)
            changed = data[:1_000_000] + b"in the middle" + data[1_000_013:1_000_020]
            assert (rig.export / "file").read_bytes() == changed
            async with fs.open("file", "a") as file:
                await file.write(b"the end")
            assert (rig.export / "file").read_bytes() == changed + b"the end"
            async with fs.open("file", "w") as file:
                await file.write(b"anew")
            assert (rig.export / "file").read_bytes() == b"anew"

    rig.run(test)


def test_a_stream_that_is_left_early_disturbs_nothing(rig: Rig) -> None:
    data = pattern(4_000_000)

    async def test() -> None:
        (rig.export / "file").write_bytes(data)
        async with rig.connect(size=65536) as fs, fs.open("file") as file:
            for _ in range(20):
                stream = file.stream()
                async for piece in stream:
                    assert bytes(piece) == data[:65536]
                    break
                await stream.aclose()  # type: ignore[attr-defined]
            assert await file.read() == data
            assert fs.backend.caller.connection.reconnections == 0  # type: ignore[attr-defined]

    rig.run(test)


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_a_referral_is_a_name_without_attributes(tmp_path: Path, transport: str) -> None:
    rig = Rig(tmp_path, transport)

    async def test() -> None:
        with (tmp_path / "exports.yaml").open("a") as file:
            file.write("  - {pseudo: /away, referral: ['other:/data']}\n")
        assert await rig.daemon.reload()
        async with connect(parse(f"{transport}://127.0.0.1:{rig.ports[transport]}/"), rig.options) as fs:
            found = {entry.name: entry.stat is not None async for entry in fs.scandir()}
            assert found == {"export": True, "away": False}
            with pytest.raises(OSError, match="remote") as refused:
                await fs.stat("away")
            assert refused.value.errno == errno.EREMOTE

    rig.run(test)


def test_many_files_at_once(rig: Rig) -> None:
    async def one(fs: FileSystem, number: int) -> None:
        name = f"file-{number}"
        data = pattern(30_000 + number)
        await fs.write_bytes(name, data)
        assert await fs.read_bytes(name) == data

    async def test() -> None:
        async with rig.connect(slots=4) as fs:
            await asyncio.gather(*(one(fs, number) for number in range(40)))
            assert len(await fs.listdir()) == 40

    rig.run(test)


def test_directories_of_any_size_and_depth(rig: Rig) -> None:
    async def test() -> None:
        async with rig.connect() as fs:
            await fs.makedirs("a/b/c/d")
            await fs.makedirs("a/b")
            for number in range(500):
                (rig.export / "a" / f"name-{number:04} {'x' * 60}").touch()
            names = await fs.listdir("a")
            assert names == sorted(["b", *(f"name-{number:04} {'x' * 60}" for number in range(500))])
            seen = {entry.name: entry async for entry in fs.scandir("a")}
            assert seen["b"].is_dir()
            assert not seen["b"].is_file()
            assert all(entry.is_file() for name, entry in seen.items() if name != "b")
            walked = [(path, len(below), len(others)) async for path, below, others in fs.walk()]
            assert walked == [("", 1, 0), ("a", 1, 500), ("a/b", 1, 0), ("a/b/c", 1, 0), ("a/b/c/d", 0, 0)]
            await fs.rmtree("a/b")
            assert not (rig.export / "a" / "b").exists()

    rig.run(test)


def test_names_of_all_kinds(rig: Rig) -> None:
    names = ["ä ö", "a\nb", "x" * 255, os.fsdecode(b"\xff\xfe"), "%2F", "..."]

    async def test() -> None:
        async with rig.connect() as fs:
            for name in names:
                await fs.write_bytes(name, name.encode("utf-8", "surrogateescape"))
            assert await fs.listdir() == sorted(names)
            for name in names:
                assert await fs.read_bytes(name) == os.fsencode(name)
            with pytest.raises(OSError, match="name too long") as caught:
                await fs.write_bytes("x" * 256, b"")
            assert caught.value.errno == errno.ENAMETOOLONG
            with pytest.raises(ValueError, match="NUL"):
                await fs.stat("a\0b")

    rig.run(test)


def test_renaming_linking_and_removing(rig: Rig) -> None:
    async def test() -> None:
        async with rig.connect() as fs:
            await fs.mkdir("one")
            await fs.mkdir("two")
            await fs.write_bytes("one/file", b"content")
            await fs.write_bytes("two/file", b"other")
            await fs.rename("one/file", "two/file")
            assert (rig.export / "two" / "file").read_bytes() == b"content"
            await fs.link("two/file", "one/again")
            assert (await fs.stat("one/again")).st_nlink == 2
            await fs.remove("two/file")
            await fs.rename("one", "three")
            assert await fs.listdir() == ["three", "two"]
            assert await fs.read_bytes("three/again") == b"content"
            with pytest.raises(IsADirectoryError):
                await fs.remove("two")
            with pytest.raises(NotADirectoryError):
                await fs.rmdir("three/again")
            with pytest.raises(OSError, match="not empty"):
                await fs.rmdir("three")
            await fs.rmdir("two")
            assert await fs.listdir() == ["three"]

    rig.run(test)


def test_symbolic_links_are_followed_by_the_client(rig: Rig) -> None:
    async def test() -> None:
        async with rig.connect() as fs:
            await fs.makedirs("a/b")
            await fs.write_bytes("a/b/file", b"content")
            await fs.symlink("b/file", "a/short")
            await fs.symlink("../a/b/../short", "a/long")
            await fs.symlink("b", "a/directory")
            await fs.symlink("/etc/passwd", "absolute")
            await fs.symlink("../../export", "above")
            await fs.symlink("loop", "loop")
            assert await fs.readlink("a/long") == "../a/b/../short"
            for path in ("a/short", "a/long", "a/directory/file", "a/directory/../b/file", "a/../a/./b//file"):
                assert await fs.read_bytes(path) == b"content", path
            assert await fs.listdir("a/directory") == ["file"]
            assert modes.S_ISLNK((await fs.lstat("a/long")).st_mode)
            assert modes.S_ISREG((await fs.stat("a/long")).st_mode)
            for path, number in (("absolute", errno.EXDEV), ("above", errno.EXDEV), ("..", errno.EXDEV)):
                with pytest.raises(OSError, match=path.replace(".", "[.]")) as caught:
                    await fs.stat(path)
                assert caught.value.errno == number
            with pytest.raises(OSError, match="Too many levels"):
                await fs.read_bytes("loop")

    rig.run(test)


def test_errors_are_those_of_the_os_module(rig: Rig) -> None:
    async def test() -> None:
        (rig.export / "file").write_bytes(b"x")
        async with rig.connect() as fs:
            with pytest.raises(FileNotFoundError, match="nowhere/file") as caught:
                await fs.read_bytes("nowhere/file")
            assert caught.value.__notes__[0].endswith("_NOENT") or "ERR_NOENT" in caught.value.__notes__[0]
            with pytest.raises(NotADirectoryError):
                await fs.stat("file/below")
            with pytest.raises(NotADirectoryError):
                await fs.listdir("file")
            with pytest.raises(IsADirectoryError):
                await fs.read_bytes("")
            with pytest.raises(FileExistsError):
                await fs.mkdir("file")
            with pytest.raises(FileExistsError):
                await fs.mkdir("file", exist_ok=True)
            with pytest.raises(FileExistsError):
                await fs.open("file", "x")
            with pytest.raises(ValueError, match="mode"):
                fs.open("file", "rw")
            assert not await fs.exists("nothing")
        with pytest.raises(FileNotFoundError):
            await rig.connect("nothing")
        with pytest.raises(NotADirectoryError):
            await rig.connect("file")

    rig.run(test)


def test_attributes_are_set_and_told(rig: Rig) -> None:
    async def test() -> None:
        async with rig.connect() as fs:
            await fs.write_bytes("file", b"content")
            made = (rig.export / "file").stat()
            assert modes.S_IMODE(made.st_mode) == 0o666  # this process's umask is the daemon's, which is 0
            await fs.chmod("file", 0o4751)
            await fs.utime("file", ns=(1_000_000_000_123_456_789, 86_400_000_000_001))
            await fs.chown("file", *((1234, 2345) if os.geteuid() == 0 else (os.getuid(), os.getgid())))
            await fs.chmod("file", 0o4751)
            now, there = await fs.stat("file"), (rig.export / "file").stat()
            for name in ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_ctime_ns"):
                assert getattr(now, name) == getattr(there, name), name
            assert (now.st_atime_ns, now.st_mtime_ns) == (1_000_000_000_123_456_789, 86_400_000_000_001)
            assert (there.st_atime_ns, there.st_mtime_ns) == (now.st_atime_ns, now.st_mtime_ns)
            await fs.change("file", Changes(mtime_ns=NOW))
            assert (await fs.stat("file")).st_mtime_ns > there.st_mtime_ns + 10**18

    rig.run(test)


def test_a_new_file_has_its_permissions_whichever_way_it_is_made(rig: Rig) -> None:
    async def test() -> None:
        async with rig.connect() as fs:
            for name, kind in (("written", "w"), ("exclusive", "x"), ("appended", "a")):
                async with fs.open(name, kind, permissions=0o640) as file:
                    await file.write(b"x")
                    assert modes.S_IMODE((await file.stat()).st_mode) == 0o640
                assert modes.S_IMODE((rig.export / name).stat().st_mode) == 0o640

    rig.run(test)


def test_what_the_caller_may_not_do_is_a_permission_error(rig: Rig) -> None:
    """Calls have the ids of the connection's credential; a server without privileges acts as itself."""

    async def test() -> None:
        (rig.export / "locked").mkdir()
        (rig.export / "locked").chmod(0)
        async with rig.connect() as fs:
            fs.backend.caller.connection.credential = auth_sys(12345, 12345)  # type: ignore[attr-defined]
            with pytest.raises(PermissionError, match="locked"):
                await fs.listdir("locked")
            with pytest.raises(PermissionError, match="locked/new"):
                await fs.write_bytes("locked/new", b"")

    rig.run(test)
