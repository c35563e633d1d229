"""rdma-nfsd mv, rm, mkdir and df, and copies that are continued."""

import errno
import json
import os
import signal
import time
from pathlib import Path

import pytest

from nfsd.cli import main
from nfsd.client import transfer
from nfsd.commands.files import continued_at
from nfsd.commands.places import TEMPORARY
from tests.unit.test_nfs_client_commands import Running, left_over, run, server, version

__all__ = ["server", "version"]
STAGE = 1 << 20


def test_mkdir(server: Running, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["mkdir", "-v", server.url("one"), *server.options(version)]) == 0
    assert main(["mkdir", "-p", "-m", "2751", server.url("a/b/c"), server.url("one"), *server.options(version)]) == 0
    assert (server.export / "a" / "b" / "c").stat().st_mode & 0o7777 == 0o2751
    assert (server.export / "one").is_dir()
    assert main(["mkdir", server.url("one"), server.url("two"), *server.options(version)]) == 1
    out, err = capfd.readouterr()
    assert out == f"made {server.url('one')}\n"
    assert err == f"rdma-nfsd mkdir: {server.url('one')}: File exists\n"
    assert (server.export / "two").is_dir()


def test_rm(server: Running, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    outside = server.export.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    for number in range(40):
        below = server.export / "tree" / f"d{number % 4}"
        below.mkdir(parents=True, exist_ok=True)
        (below / f"f{number}").write_bytes(b"x")
    (server.export / "tree" / "link").symlink_to(outside)
    (server.export / "one").write_bytes(b"1")
    assert main(["rm", server.url("tree"), server.url("none"), server.url("one"), *server.options(version)]) == 1
    err = capfd.readouterr().err
    assert f"{server.url('tree')}: a directory, which is removed with -r only\n" in err
    assert f"{server.url('none')}: No such file or directory\n" in err
    assert not (server.export / "one").exists()
    assert main(["rm", "-f", server.url("none"), *server.options(version)]) == 0
    assert main(["rm", "-rv", server.url("tree"), *server.options(version)]) == 0
    said = capfd.readouterr().out.splitlines()
    assert len(said) == 46
    assert said[-1] == f"removed {server.url('tree')}"
    assert os.listdir(server.export) == []
    assert (outside / "kept").read_bytes() == b"kept"  # the link went, not what it leads to


def test_rm_leaves_an_export_whole(server: Running, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    (server.export / "kept").write_bytes(b"kept")
    assert main(["rm", "-r", server.url(), *server.options(version)]) == 1
    assert "name what is in it" in capfd.readouterr().err
    assert (server.export / "kept").read_bytes() == b"kept"


def test_mv_on_one_server(server: Running, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    (server.export / "file").write_bytes(b"content")
    (server.export / "directory").mkdir()
    number = (server.export / "file").stat().st_ino
    assert main(["mv", server.url("file"), server.url("directory"), *server.options(version)]) == 0
    assert (server.export / "directory" / "file").stat().st_ino == number  # renamed, not copied
    assert main(["mv", "-v", server.url("directory"), server.url("other"), *server.options(version)]) == 0
    assert capfd.readouterr().out == f"{server.url('directory')} -> {server.url('other')}\n"
    (server.export / "second").write_bytes(b"second")
    target = server.url("other/file")
    assert main(["mv", "-n", server.url("second"), target, *server.options(version)]) == 0
    assert (server.export / "other" / "file").read_bytes() == b"content"
    assert main(["mv", server.url("second"), target, *server.options(version)]) == 0
    assert (server.export / "other" / "file").read_bytes() == b"second"
    assert main(["mv", server.url("none"), target, *server.options(version)]) == 1
    assert f"{server.url('none')}: No such file or directory" in capfd.readouterr().err


def test_mv_between_here_and_there(server: Running, tmp_path: Path, version: str) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").write_bytes(b"content")
    (tree / "below" / "file").chmod(0o640)
    os.utime(tree / "below" / "file", (946684800, 946684800))
    assert main(["mv", str(tree), server.url(), *server.options(version)]) == 0
    assert not tree.exists()
    there = server.export / "tree" / "below" / "file"
    assert there.read_bytes() == b"content"
    assert (there.stat().st_mode & 0o777, there.stat().st_mtime) == (0o640, 946684800)
    back = tmp_path / "back"
    assert main(["mv", server.url("tree"), str(back), *server.options(version)]) == 0
    assert (back / "below" / "file").read_bytes() == b"content"
    assert os.listdir(server.export) == []


def test_mv_keeps_what_could_not_be_copied(
    server: Running, tmp_path: Path, version: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(b"content")
    os.mkfifo(tree / "pipe")
    assert main(["mv", str(tree), server.url("there"), *server.options(version)]) == 1
    assert "pipe: neither a regular file" in capfd.readouterr().err
    assert (tree / "file").read_bytes() == b"content"
    assert (server.export / "there" / "file").read_bytes() == b"content"


def test_df(server: Running, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    room = os.statvfs(server.export)
    assert main(["df", "--json", server.url(), *server.options(version)]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["total"] == room.f_blocks * room.f_frsize
    assert told["files"] == room.f_files
    assert told["available"] <= told["free"] <= told["total"]
    assert main(["df", "-h", server.url(), *server.options(version)]) == 0
    header, row = capfd.readouterr().out.splitlines()
    assert header.split() == ["URL", "size", "used", "available", "use"]
    assert row.split()[0] == server.url()
    assert main(["df", "-i", server.url(), server.url("none"), *server.options(version)]) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[0].split() == ["URL", "files", "used", "free", "use"]
    assert "none: No such file or directory" in err


@pytest.fixture
def small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STAGE", STAGE)


def cut_off(directory: Path, length: int, junk: bytes = b"") -> Path:
    """Cut the one incomplete copy there is to so many octets, with ``junk`` at its end: what a crash may leave."""
    (part,) = left_over(directory)
    path = directory / part
    path.write_bytes(path.read_bytes()[: length - len(junk)] + junk)
    return path


@pytest.mark.usefixtures("small_stages")
@pytest.mark.parametrize("way", ["there", "back", "across"])
def test_a_copy_is_continued(
    server: Running, tmp_path: Path, version: str, way: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data = os.urandom(3 * STAGE + 12345)
    source_path = tmp_path / "source" if way == "there" else server.export / "source"
    source_path.write_bytes(data)
    source = str(source_path) if way == "there" else server.url("source")
    target_path = tmp_path / "target" if way == "back" else server.export / "target"
    target = str(target_path) if way == "back" else server.url("target")
    arguments = ["cp", "--continue", "--progress", source, target, *server.options(version)]
    where = tmp_path if way == "back" else server.export

    # A rename that fails leaves the whole copy behind, which is then cut to what a crash in the third stage leaves.
    with monkeypatch.context() as failing:
        broken = OSError(errno.EIO, "cut off")

        async def refuse(*_: object, **__: object) -> None:
            raise broken

        def refuse_here(*_: object) -> None:
            raise broken

        if way == "back":
            failing.setattr("nfsd.commands.files.os.rename", refuse_here)
        else:
            failing.setattr("nfsd.client.filesystem.FileSystem.rename", refuse)
        assert main(arguments) == 1
    assert "the same command goes on with it" in capfd.readouterr().err
    assert not target_path.exists()
    part = cut_off(where, 2 * STAGE + 700_000, b"\0" * 650_000)  # a hole where WRITEs of the last stage were lost
    first = os.stat(part).st_ino
    assert main(arguments) == 0
    assert target_path.read_bytes() == data
    assert os.stat(target_path).st_ino == first
    assert left_over(where) == []
    # Two stages were there: no more than the rest is copied.
    said = capfd.readouterr().err
    assert "1 file, 1.1M in " in said
    # And what is complete is not copied once more.
    assert main(arguments) == 0
    assert os.stat(target_path).st_ino == first


@pytest.mark.usefixtures("small_stages")
def test_another_source_is_not_continued(server: Running, tmp_path: Path, version: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"a" * 3 * STAGE)
    os.utime(source, (946684800, 946684800))
    (server.export / "target").mkdir()  # in the way
    arguments = ["cp", "--continue", str(source), server.url("target/source"), *server.options(version)]
    assert main(arguments) == 0
    (server.export / "target" / "source").rename(server.export / "target" / (TEMPORARY + "0" * 24 + ".part"))
    source.write_bytes(b"b" * 3 * STAGE)
    assert main(arguments) == 0
    assert (server.export / "target" / "source").read_bytes() == b"b" * 3 * STAGE


@pytest.mark.usefixtures("small_stages")
def test_an_incomplete_copy_of_somebody_else_is_not_gone_on_with(
    server: Running, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who may write to the directory could otherwise choose the beginning of our file."""
    source = tmp_path / "source"
    source.write_bytes(b"a" * 3 * STAGE)
    names: list[str] = []
    arguments = ["cp", "--continue", str(source), server.url("target"), *server.options(version)]

    def remember(name: str, facts: object) -> str:
        names.append(TEMPORARY + "0" * 24 + ".part")
        return names[-1]

    monkeypatch.setattr("nfsd.commands.files.unfinished", remember)
    trap = server.export / (TEMPORARY + "0" * 24 + ".part")
    ours = server.export / "ours"
    ours.write_bytes(b"ours" * STAGE)
    for kind in ("another's file", "another name of ours", "a link"):
        if kind == "another's file":
            trap.write_bytes(b"evil" * STAGE)
            os.chown(trap, 12345, -1)
        elif kind == "another name of ours":
            trap.hardlink_to(ours)
        else:
            trap.symlink_to(ours)
        assert main(arguments) == 1
        assert "not one of ours" in capfd.readouterr().err
        assert not (server.export / "target").exists()
        trap.unlink()
    assert ours.read_bytes() == b"ours" * STAGE
    assert names


def test_an_interrupted_copy_is_continued(server: Running, tmp_path: Path, version: str) -> None:
    """As the commands are run: SIGKILL in the middle, then once more."""
    data = os.urandom(24 << 20)
    (server.export / "source").write_bytes(data)
    target = tmp_path / "target"
    command = ["cp", "--continue", server.url("source"), str(target), *server.options(version)]
    process = run(command)
    deadline = time.monotonic() + 60
    while not any((tmp_path / name).stat().st_size for name in left_over(tmp_path)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not target.exists()
    assert len(left_over(tmp_path)) == 1
    assert run(command).wait(60) == 0
    assert target.read_bytes() == data
    assert left_over(tmp_path) == []


def test_where_a_copy_is_good() -> None:
    stage = transfer.STAGE
    assert [continued_at(size) for size in (0, 1, stage, stage + 1, 2 * stage, 5 * stage + 7)] == [
        0, 0, 0, stage, stage, 5 * stage,
    ]  # fmt: skip
