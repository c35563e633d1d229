"""The state directory and what is in it belong to the server alone, or it does not start."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest
import uvloop

from nfsd.config_file import load
from nfsd.daemon import Daemon, StartError
from rpcrdma.rpc.rpcbind import Rpcbind

CONFIG = """\
server:
  listen: ["tcp://127.0.0.1:0"]
  mountd_port: 0
  nlm: false
exports:
  - {path: export, pseudo: /export}
"""


def serve(base: Path) -> None:
    """Start a daemon, and stop it. Raises StartError."""
    (base / "export").mkdir(exist_ok=True)
    (base / "exports.yaml").write_text(CONFIG)

    async def whole() -> None:
        daemon = Daemon(load(str(base / "exports.yaml")), Rpcbind((), None))
        await daemon.start()
        state = base / "state"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        # (SQLite's files hold no secrets, and nobody gets as far as to them.)
        assert [name for name, mode in modes.items() if mode & 0o077 and "sqlite" not in name] == []
        assert {"handle.key", "server-id", "lock", "control"} <= set(modes)
        await daemon.stop()

    mask = os.umask(0o022)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(whole())
    finally:
        os.umask(mask)


def test_what_is_made_is_for_the_server_alone(tmp_path: Path) -> None:
    serve(tmp_path)


@pytest.mark.parametrize("name", ["", "handle.key", "server-id"])
def test_what_others_could_write_is_not_believed(tmp_path: Path, name: str) -> None:
    serve(tmp_path)
    (tmp_path / "state" / name).chmod(0o720)
    with pytest.raises(StartError, match=r"may be written by others than its owner .mode 0720., who could have put"):
        serve(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["", "handle.key", "server-id"])
def test_what_is_somebody_else_s_is_not_believed(tmp_path: Path, name: str) -> None:
    serve(tmp_path)
    os.chown(tmp_path / "state" / name, 1234, -1)
    with pytest.raises(StartError, match="belongs to uid 1234, who could have put anything there"):
        serve(tmp_path)


def test_what_others_could_read_is_closed_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    serve(tmp_path)
    (tmp_path / "state").chmod(0o755)
    (tmp_path / "state" / "handle.key").chmod(0o644)
    serve(tmp_path)
    told = [record.getMessage() for record in caplog.records if "could be read by others" in record.getMessage()]
    assert len(told) == 2
    assert "handles of any exported file can be made" in told[1]
    assert stat.S_IMODE((tmp_path / "state" / "handle.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("linked", [False, True])
def test_a_directory_of_others_is_not_taken_from_them(tmp_path: Path, linked: bool) -> None:
    theirs = tmp_path / ("theirs" if linked else "state")
    theirs.mkdir()
    theirs.chmod(0o755)
    (theirs / "passwd").touch()
    if linked:
        (tmp_path / "state").symlink_to(theirs)
    with pytest.raises(StartError, match="has other files in it"):
        serve(tmp_path)
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o755
    assert [path.name for path in theirs.iterdir()] == ["passwd"]


@pytest.mark.parametrize("name", ["handle.key", "server-id", "lock"])
def test_links_in_the_directory_are_not_followed(tmp_path: Path, name: str) -> None:
    """Neither read nor made: a link to another's file would be as good as the file."""
    serve(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "state" / name).unlink()
    (tmp_path / "state" / name).symlink_to(elsewhere)
    with pytest.raises(StartError):
        serve(tmp_path)
    assert not elsewhere.exists()


def test_the_control_socket_is_no_other_s(tmp_path: Path) -> None:
    """What lies in its place is replaced, not written through."""
    serve(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("as it was")
    (tmp_path / "state" / "control").symlink_to(elsewhere)
    serve(tmp_path)
    assert elsewhere.read_text() == "as it was"
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError, match=r"refused|No such"):
        sock.connect(str(tmp_path / "state" / "control"))
