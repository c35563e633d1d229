"""Servers that leave out attributes: the commands say what they do not know, and guess nothing that matters."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nfsd.cli import main
from nfsd.faults.choosing import Faults
from nfsd.faults.rules import parse
from tests.unit.nfs_client_support import Rig
from tests.unit.test_nfs_client_commands import Running

OPTIONAL = (
    "FSID", "FILEID", "MODE", "NUMLINKS", "OWNER", "OWNER_GROUP", "RAWDEV", "SPACE_USED", "TIME_ACCESS",
    "TIME_METADATA", "TIME_MODIFY", "FILEHANDLE", "RDATTR_ERROR", "MAXREAD", "MAXWRITE",
)  # fmt: skip
"""What the client asks for and can do without, some of it only because servers do leave it out (FSID)."""
CASES = pytest.mark.parametrize("names", [*([name] for name in OPTIONAL), list(OPTIONAL)], ids="+".join)
Serving = Callable[..., Running]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """Starts a server whose replies lack some attributes."""
    started: list[Running] = []
    mask = os.umask(0o022)

    def start(names: list[str], calls: str = "GETATTR, READDIR", entry: str = "") -> Running:
        rig = Rig(tmp_path)
        rig.entry = entry
        rule = f"rules: [{{calls: [{calls}], leave_out: [{', '.join(names)}]}}]" if names else "rules: []"
        rig.faults = Faults(parse(rule, "rules.yaml"))
        started.append(Running(rig))
        os.umask(0o022)  # the daemon's is 0, and it is in this process
        return started[-1]

    try:
        yield start
    finally:
        for running in started:
            running.stop()
        os.umask(mask)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout, and what the command itself says on stderr."""
    status = main([*arguments, "--nfs-version", "4.1"])
    out, err = capfd.readouterr()
    return status, out, "\n".join(line for line in err.splitlines() if line.startswith(f"rdma-nfsd {arguments[0]}:"))


def good(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    status, out, err = run(capfd, *arguments)
    assert (status, err) == (0, "")
    return out


@CASES
def test_every_command_does_without(
    serving: Serving, names: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serving(names)
    (server.export / "file").write_bytes(b"content\n")
    (server.export / "empty").mkdir()
    os.mkfifo(server.export / "fifo")
    (server.export / "link").symlink_to("file")
    url = server.url
    assert good(capfd, "ls", url()).split() == ["empty", "fifo", "file", "link"]
    for letters in ("-l", "-ltn", "-lahS", "-iR"):
        assert "file" in good(capfd, "ls", letters, url())
    unknown = {"FILEID", "NUMLINKS", "OWNER", "OWNER_GROUP", "TIME_MODIFY"} & {*names}
    assert ("?" in good(capfd, "ls", "-li", url())) == bool(unknown)
    good(capfd, "stat", url("file"), url("link"), url("fifo"))
    told = json.loads(good(capfd, "stat", "--json", url("file")))
    assert told["size"] == 8
    keys = {"FSID": "fsid", "FILEID": "inode", "NUMLINKS": "links", "OWNER": "owner", "TIME_MODIFY": "mtime_ns"}
    for name, key in keys.items():
        assert (told[key] is None) == (name in names)
    assert good(capfd, "cat", url("link")) == "content\n"
    good(capfd, "df", url())
    good(capfd, "mkdir", "-p", url("a/b"))
    good(capfd, "cp", "-r", url("file"), url("a"))
    good(capfd, "cp", "-rp", url("a"), str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "file").read_bytes() == b"content\n"
    good(capfd, "cp", "-rp", str(tmp_path / "copy"), url("back"))
    good(capfd, "mv", url("back"), url("moved"))
    assert (server.export / "moved" / "file").read_bytes() == b"content\n"
    good(capfd, "rm", url("moved/file"), url("link"), url("fifo"))
    assert sorted(os.listdir(server.export)) == ["a", "empty", "file", "moved"]


def test_what_nothing_can_be_done_without_is_said(serving: Serving, capfd: pytest.CaptureFixture[str]) -> None:
    server = serving(["TYPE"])
    (server.export / "file").write_bytes(b"content\n")
    url = server.url("file")
    status, _, err = run(capfd, "cat", url)
    assert status == 1
    assert "the server does not say what kind of file it is" in err
    assert (server.export / "file").exists()


def test_a_file_of_unknown_length_is_listed_and_neither_read_nor_written(
    serving: Serving, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serving(["SIZE"])
    (server.export / "file").write_bytes(b"content\n")
    (server.export / "directory").mkdir()
    listed = good(capfd, "ls", "-l", server.url())
    assert "?????????? ? " in listed
    assert "drwxr-xr-x" in listed
    for command in (["cat", server.url("file")], ["cp", server.url("file"), str(tmp_path / "copy")]):
        status, _, err = run(capfd, *command)
        assert status == 1
        assert "the server does not say how long the file is" in err
    assert not (tmp_path / "copy").exists()


def tree(server: Running) -> None:
    (server.export / "tree" / "below").mkdir(parents=True)
    (server.export / "tree" / "below" / "file").write_bytes(b"x")


def test_rm_removes_no_tree_of_an_unknown_file_system(serving: Serving, capfd: pytest.CaptureFixture[str]) -> None:
    server = serving(["FSID"])
    tree(server)
    status, out, err = run(capfd, "rm", "-rv", server.url("tree"))
    assert (status, out) == (1, "")
    assert "does not say which file system the directory is in" in err
    assert "--nfs-version 3" in err
    assert (server.export / "tree" / "below" / "file").exists()
    assert main(["rm", "-r", server.url("tree"), *server.options("3")]) == 0
    assert not (server.export / "tree").exists()


def test_rm_asks_where_only_the_listing_says_nothing(serving: Serving, capfd: pytest.CaptureFixture[str]) -> None:
    server = serving(["FSID", "FILEID"], calls="READDIR")
    tree(server)
    good(capfd, "rm", "-r", server.url("tree"))
    assert not (server.export / "tree").exists()


def test_rm_leaves_another_export_whole_though_the_listing_says_nothing(
    serving: Serving, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_bytes(b"kept")
    server = serving(["FSID"], calls="READDIR", entry="}\n  - {path: other, pseudo: /both/other, squash: none")
    status, _, err = run(capfd, "rm", "-r", server.url().replace("/export/", "/both/"))
    assert status == 1
    assert "file system of its own" in err
    assert (tmp_path / "other" / "kept").exists()


@pytest.mark.parametrize("names", [["FILEID"], ["FSID"], ["FSID", "FILEID"]], ids="+".join)
def test_which_files_are_the_same_is_told_by_their_handles(
    serving: Serving, names: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    server = serving(names)
    tree(server)
    (server.export / "one").write_bytes(b"1")
    (server.export / "two").write_bytes(b"2")
    good(capfd, "cp", server.url("one"), server.url("two"))  # without numbers all files would be the same
    assert (server.export / "two").read_bytes() == b"1"
    for command in ("cp", "mv"):
        status, _, err = run(capfd, command, server.url("one"), server.url("./one"))
        assert status == 1
        assert "source and target are the same file" in err
    status, _, err = run(capfd, "cp", "-r", server.url("tree"), server.url("tree/below/again"))
    assert status == 1
    assert "cannot be copied into itself" in err


def test_times_that_are_not_told_are_not_set(
    serving: Serving, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serving(["TIME_MODIFY"])
    (server.export / "file").write_bytes(b"content\n")
    os.utime(server.export / "file", (3_000_000_000, 1_000_000_000))
    good(capfd, "cp", "-p", server.url("file"), str(tmp_path / "copy"))
    good(capfd, "cp", "-p", server.url("file"), server.url("copy"))
    for copy in (tmp_path / "copy", server.export / "copy"):
        assert copy.stat().st_mtime > 1_100_000_000  # neither 1970's nor the original's
        assert copy.stat().st_atime == 3_000_000_000


def test_a_file_is_not_taken_for_copied_by_its_size_alone(
    serving: Serving, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serving(["TIME_MODIFY"])
    (server.export / "file").write_bytes(b"new")
    (tmp_path / "copy").write_bytes(b"old")
    good(capfd, "cp", "--continue", server.url("file"), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"new"
