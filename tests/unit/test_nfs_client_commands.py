"""rdma-nfsd ls, stat, cat and cp: what they print, what they leave behind, how they end."""

import asyncio
import json
import os
import re
import signal
import socket
import stat as modes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.cli import main
from nfsd.commands import format as words
from nfsd.commands.ls import columns
from nfsd.commands.places import TEMPORARY
from tests.unit.nfs_client_support import Rig


class Running:
    """A daemon on a loop and a thread of its own, so that commands can be run as they are."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.export = rig.export
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.on_loop(rig.start())

    def on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        self.on_loop(self.rig.daemon.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, path: str = "", version: str = "4.1") -> str:
        return f"tcp://127.0.0.1:{self.rig.ports['tcp']}/export/{path}"

    def options(self, version: str) -> list[str]:
        return ["--nfs-version", version, "--mount-port", str(self.rig.ports["mountd"])]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    mask = os.umask(0o022)
    running = Running(Rig(tmp_path))
    os.umask(0o022)  # the daemon's is 0, and it is in this process
    try:
        yield running
    finally:
        running.stop()
        os.umask(mask)


@pytest.fixture(params=["3", "4.1"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def left_over(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.startswith(TEMPORARY)]


def test_ls(server: Running, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("b", "a", ".hidden", "B"):
        (server.export / name).write_bytes(b"x" * 1500)
    (server.export / "sub").mkdir()
    (server.export / "sub" / "below").touch()
    (server.export / "link").symlink_to("sub")
    os.utime(server.export / "a", (946684800, 946684800))
    (server.export / "a").chmod(0o4711)
    assert main(["ls", server.url(), *server.options(version)]) == 0
    listed = capfd.readouterr().out.split("\n")
    assert listed in (["B", "a", "b", "link", "sub", ""], ["a", "b", "B", "link", "sub", ""])  # as the locale has it
    assert main(["ls", "-a1r", server.url(), *server.options(version)]) == 0
    assert {".", ".hidden"} < set(capfd.readouterr().out.split("\n"))
    assert main(["ls", "-l", server.url(), *server.options(version)]) == 0
    lines = capfd.readouterr().out.split("\n")
    assert lines[0].startswith("total ")
    by_name = {line.split()[8]: line for line in lines[1:] if line}
    user = words.user(str(os.getuid()))
    assert re.fullmatch(rf"-rws--x--x 1 {user} +\S+ +1500 Jan  1  2000 a", by_name["a"])
    assert re.fullmatch(rf"drwx.{{6}} 2 {user} +\S+ +\d+ [A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d sub", by_name["sub"])
    assert by_name["link"].endswith(" link -> sub")
    assert main(["ls", "-R", server.url(), *server.options(version)]) == 0
    out = capfd.readouterr().out
    assert f"\n\n{server.url()}sub:\nbelow\n" in out
    assert out.startswith(server.url())
    assert main(["ls", "-ldhn", server.url(), server.url("b"), *server.options(version)]) == 0
    out = capfd.readouterr().out
    assert f" {os.getuid()} " in out
    assert " 1.5K " in out
    assert len(out.splitlines()) == 2
    assert main(["ls", server.url("a"), server.url("sub"), server.url("nothing"), *server.options(version)]) == 1
    out, err = capfd.readouterr()
    assert out == f"{server.url('a')}\n\n{server.url('sub')}:\nbelow\n"
    assert err == f"rdma-nfsd ls: {server.url('nothing')}: No such file or directory\n"


def test_stat(server: Running, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    (server.export / "file").write_bytes(b"x" * 1500)
    (server.export / "link").symlink_to("file")
    there = (server.export / "file").stat()
    urls = [server.url("file"), server.url("link")]
    assert main(["stat", *urls, *server.options(version)]) == 0
    out = capfd.readouterr().out
    assert re.search(rf"^  File: {server.url('file')}\n  Size: 1500 .* regular file$", out, re.M)
    assert f"Inode: {there.st_ino}" in out
    assert f"Access: (0644/-rw-r--r--)  Uid: ({there.st_uid:5}/" in out
    assert f"File: {server.url('link')} -> file\n" in out
    assert f"\nModify: {words.exact(there.st_mtime_ns)}\n" in out
    assert main(["stat", "--json", *urls, *server.options(version)]) == 0
    first, second = (json.loads(line) for line in capfd.readouterr().out.splitlines())
    assert (first["size"], first["mode"], first["inode"]) == (1500, 0o644, there.st_ino)
    assert (first["type"], first["mtime_ns"], first["nfs"]) == ("regular file", there.st_mtime_ns, version)
    assert (second["type"], second["target"]) == ("symbolic link", "file")
    assert main(["stat", "-L", "--json", urls[1], *server.options(version)]) == 0
    assert json.loads(capfd.readouterr().out)["inode"] == there.st_ino


def run(arguments: list[str], **how: Any) -> subprocess.Popen[bytes]:
    """A command of its own, which can be interrupted though the tests may have been started in a shell's background."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    interruptible = ["env", "--default-signal=INT", sys.executable]
    return subprocess.Popen([*interruptible, "-m", "nfsd.cli", *arguments], env=environment, **how)


def test_cat(server: Running, version: str) -> None:
    one, two = os.urandom(3_000_000), b"the end"
    (server.export / "one").write_bytes(one)
    (server.export / "two").write_bytes(two)
    urls = [server.url(name) for name in ("one", "none", "two")]
    process = run(["cat", *urls, *server.options(version)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert out == one + two
    assert err.decode() == f"rdma-nfsd cat: {urls[1]}: No such file or directory\n"
    assert process.returncode == 1


def test_cat_ends_quietly_when_nobody_reads_on(server: Running) -> None:
    (server.export / "file").write_bytes(bytes(20_000_000))
    process = run(["cat", server.url("file")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(10) == bytes(10)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_cp_there_and_back(server: Running, version: str, tmp_path: Path) -> None:
    data = os.urandom(5_000_003)
    here = tmp_path / "here"
    here.mkdir()
    (here / "file").write_bytes(data)
    (here / "file").chmod(0o751)
    os.utime(here / "file", ns=(10**18 + 1, 10**18 + 2))
    options = server.options(version)
    assert main(["cp", str(here / "file"), server.url("copy"), *options]) == 0
    assert (server.export / "copy").read_bytes() == data
    assert modes.S_IMODE((server.export / "copy").stat().st_mode) == 0o751
    assert main(["cp", "-p", str(here / "file"), server.url(), *options]) == 0
    assert (server.export / "file").stat().st_mtime_ns == 10**18 + 2
    assert main(["cp", "-p", server.url("file"), server.url("copy"), str(here), *options]) == 0
    assert (here / "copy").read_bytes() == data
    assert modes.S_IMODE((here / "copy").stat().st_mode) == 0o751
    assert (here / "file").stat().st_mtime_ns == 10**18 + 2
    assert main(["cp", server.url("file"), server.url("again"), *options]) == 0
    assert (server.export / "again").read_bytes() == data
    assert left_over(server.export) == left_over(here) == []


def test_cp_of_trees(server: Running, version: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(12):
        (tree / f"directory-{number % 3}" / "deep").mkdir(parents=True, exist_ok=True)
        (tree / f"directory-{number % 3}" / f"file-{number}").write_bytes(os.urandom(number * 1000))
    (tree / "directory-1" / "link").symlink_to("../directory-0/file-0")
    (tree / "empty").mkdir()
    (tree / "empty").chmod(0o500)
    (tree / os.fsdecode(b"\xff odd % name")).touch()
    options = server.options(version)
    assert main(["cp", "-r", str(tree), server.url(), *options]) == 0
    assert same(tree, server.export / "tree")
    assert main(["cp", "-rp", server.url("tree"), str(tmp_path / "back"), *options]) == 0
    assert same(tree, tmp_path / "back")
    assert main(["cp", "-r", server.url("tree"), server.url("tree-2"), *options]) == 0
    assert same(tree, server.export / "tree-2")


def same(one: Path, other: Path) -> bool:
    def facts(top: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in [top, *top.rglob("*")]:
            what = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[str(path.relative_to(top))] = (what.st_mode, content)
        return found

    assert facts(one) == facts(other)
    return True


def test_cp_replaces_whole_files_and_follows_what_the_command_line_names(server: Running, tmp_path: Path) -> None:
    (server.export / "file").write_bytes(b"new")
    (server.export / "target").write_bytes(b"old and longer")
    os.link(server.export / "target", server.export / "second name")
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    assert main(["cp", server.url("file"), server.url("target")]) == 0
    assert (server.export / "target").read_bytes() == b"new"
    assert (server.export / "second name").read_bytes() == b"old and longer"
    assert main(["cp", server.url("file"), str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert main(["cp", "-n", server.url("second name"), str(tmp_path / "real")]) == 0
    assert (tmp_path / "real").read_bytes() == b"new"


def test_cp_says_what_it_does_not_do(server: Running, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (server.export / "directory").mkdir()
    (server.export / "file").write_bytes(b"x")
    os.mkfifo(server.export / "fifo")
    (tmp_path / "local").write_bytes(b"x")
    here = str(tmp_path / "here")

    def complaint(status: int, *arguments: str) -> str:
        assert main(["cp", *arguments]) == status
        return capfd.readouterr().err

    assert "copied with -r only" in complaint(1, server.url("directory"), here)
    assert "neither a regular file" in complaint(1, server.url("fifo"), here)
    assert "No such file" in complaint(1, server.url("nothing"), here)
    assert "a directory is needed" in complaint(1, server.url("file"), server.url("directory"), here)
    assert "same file" in complaint(1, server.url("file"), server.url("directory/../file"))
    (server.export / "directory" / "sub").mkdir()
    assert "into itself" in complaint(1, "-r", server.url("directory"), server.url("directory/sub"))
    assert sorted(path.name for path in (server.export / "directory").rglob("*")) == ["directory", "sub", "sub"]
    assert "no directory" in complaint(1, "-r", server.url("directory"), server.url("file"))
    assert "none of these is a URL" in complaint(2, here, here)
    assert "local" in complaint(2, server.url("file"), str(tmp_path / "local"), here)
    assert "the scheme is rdma, tcp or tls" in complaint(2, "http://host/file", here)
    assert not Path(here).exists()
    # What can be copied is, and the status says that something was not.
    assert "nothing" in complaint(1, server.url("file"), server.url("nothing"), str(tmp_path))
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_copy_names_the_place_that_is_at_fault(
    server: Running, version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the command line has it: not the source where the target is refused, and no temporary name."""
    (server.export / "tree").mkdir()
    (server.export / "tree" / "file").write_bytes(b"x")
    (tmp_path / "local").write_bytes(b"x")
    local, missing = str(tmp_path / "local"), server.url("missing/file")
    there, nowhere = server.url("tree/file"), str(tmp_path / "missing" / "file")

    def complaint(command: str, *arguments: str) -> str:
        assert main([command, *server.options(version), *arguments]) == 1
        return capfd.readouterr().err.strip()

    said = "No such file or directory"
    assert complaint("cp", local, missing) == f"rdma-nfsd cp: {missing}: {said}"
    assert complaint("cp", there, missing) == f"rdma-nfsd cp: {missing}: {said}"
    assert complaint("cp", there, nowhere) == f"rdma-nfsd cp: {nowhere}: {said}"
    assert complaint("cp", "-r", server.url("tree"), missing) == f"rdma-nfsd cp: {missing}: {said}"
    assert complaint("cp", missing, local) == f"rdma-nfsd cp: {missing}: {said}"
    assert complaint("mv", there, missing) == f"rdma-nfsd mv: {there} -> {missing}: {said}"


def test_a_copy_that_is_interrupted_leaves_nothing(server: Running) -> None:
    """Neither a part under the target's name nor a temporary file."""
    (server.export / "file").write_bytes(b"old")
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = run(["cp", "/dev/stdin", server.url("file")], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(bytes(3_000_000))
        process.stdin.flush()
        while not left_over(server.export):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        try:
            assert process.wait(60) == status  # though nothing more comes to be copied, and no end of it
        finally:
            process.stdin.close()
        assert left_over(server.export) == []
        assert (server.export / "file").read_bytes() == b"old"
        assert process.stderr is not None
        process.stderr.close()


def test_a_server_that_is_not_there_is_said_with_the_remedy(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert main(["ls", f"tcp://127.0.0.1:{port}/x"]) == 1
        said = capfd.readouterr().err
        assert f"tcp://127.0.0.1:{port}: connection refused; is the server running" in said
        assert "2049" in said


def test_without_mountd_version_three_says_what_it_needs(server: Running, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        assert main(["ls", server.url(), "--nfs-version", "3", "--mount-port", port]) == 1
    assert f"no mountd at TCP port {port}" in (said := capfd.readouterr().err)
    assert "--mount-port" in said
    port = str(server.rig.ports["rdma"])
    assert main(["ls", server.url(), "--nfs-version", "3", "--mount-port", port]) == 1
    assert f"no mountd at TCP port {port}" in capfd.readouterr().err


def test_a_port_of_something_else_is_said(server: Running, capfd: pytest.CaptureFixture[str]) -> None:
    tcp, mountd = server.rig.ports["tcp"], server.rig.ports["mountd"]
    assert main(["ls", f"rdma://127.0.0.1:{tcp}/export"]) == 1
    assert "does the server speak RDMA at this port? tcp://127.0.0.1 may do" in capfd.readouterr().err
    assert main(["ls", f"tcp://127.0.0.1:{mountd}/export"]) == 1
    assert "program 100003 is not served there" in capfd.readouterr().err


def test_a_path_in_no_export(server: Running, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"tcp://127.0.0.1:{server.rig.ports['tcp']}/elsewhere"
    assert main(["ls", url, *server.options("3")]) == 1
    assert "exports /export" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["ls", "stat", "df", "cat", "cp", "mv", "rm", "mkdir"])
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for part in ("examples:", "exit status:", "rdma://HOST[:PORT]", "--nfs-version", f"rdma-nfsd {command} "):
        assert part in said
    assert max(map(len, said.splitlines())) <= 120


def test_sizes_times_and_columns_for_people() -> None:
    sizes = {0: "0", 1023: "1023", 1024: "1.0K", 1025: "1.1K", 10200: "10K", 10 << 20: "10M", (1 << 20) - 1: "1.0M"}
    assert {size: words.human(size) for size in sizes} == sizes
    assert words.human((1 << 60) * 3 // 2) == "1.5E"
    now = 1_700_000_000
    assert ":" in words.when((now - 86400) * 10**9, now)
    assert ":" not in words.when((now - 300 * 86400) * 10**9, now)
    assert ":" not in words.when((now + 86400) * 10**9, now)
    names = [f"n{number}" for number in range(10)]
    assert columns(names, 200) == ["  ".join(names)]
    assert columns(names, 10) == ["n0  n4  n8", "n1  n5  n9", "n2  n6", "n3  n7"]
    assert columns(["long" * 10, "x"], 10) == ["long" * 10, "x"]
    assert columns([], 80) == []
