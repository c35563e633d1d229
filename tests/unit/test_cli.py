"""The command as users and systemd run it: exit statuses, streams, signals, notifications."""

import asyncio
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from nfsd.cli import main
from nfsd.protocol.nfs3 import READ3args
from nfsd.sdnotify import notify, watchdog_seconds
from rpcrdma.xdr import pack
from tests.nfs3_client import Nfs3Client

REPO = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(900)
PATIENCE = 200
"""Seconds. With forty processes in want of two processors, starting the server took longer than twenty."""
CONFIG = """\
server:
  listen: ["tcp://127.0.0.1:0", {url: "rdma://127.0.0.1:1", provider: verbs}]
  mountd_port: 0
  rpcbind: false
exports:
  - {path: ./export, pseudo: /export, clients: ["*", {host: 10.0.0.1, access: ro}]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "export").mkdir()
    file = tmp_path / "exports.yaml"
    file.write_text(CONFIG)
    return file


def test_check_sums_up_a_good_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(config)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "rdma://127.0.0.1:1  verbs" in out
    assert "/export" in out
    assert "* 10.0.0.1+" in out
    assert not (config.parent / "state").exists()


def test_check_and_serve_refuse_a_bad_file_in_the_same_words(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG.replace("mountd_port", "mountdport").replace("pseudo", "pseud"))
    said = []
    for command in ("check", "serve"):
        assert main([command, "--config", str(config)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        said.append(err)
    assert said[0] == said[1]
    assert f"{config}:3: server.mountdport: unknown key; did you mean 'mountd_port'?\n" in said[0]
    assert f"{config}:6: exports[0].pseud: " in said[0]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: rdma-nfsd" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rdma-nfsd ")
    for arguments in (["serve"], ["check", "--confg", "x"], ["nonsense"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "mount -t nfs -o rdma" in capsys.readouterr().out


class Process:
    """``rdma-nfsd serve`` with a notification socket of its own."""

    def __init__(self, config: Path) -> None:
        self.notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notifications.bind(str(config.parent / "notify"))
        self.notifications.settimeout(PATIENCE)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from nfsd.cli import main; sys.exit(main())",
                "serve",
                "--config",
                config,
            ],
            bufsize=0,  # select() does not see lines that have been read ahead
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": str(REPO),
                "NOTIFY_SOCKET": str(config.parent / "notify"),
                "WATCHDOG_USEC": "100000",
            },
        )

    def line(self, stream: IO[bytes] | None, text: str) -> str:
        """The next line with ``text`` in it."""
        assert stream is not None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if select.select([stream], [], [], 0.2)[0]:
                line = stream.readline().decode()
                if not line or text in line:
                    return line
        raise AssertionError(f"no line with {text!r}")

    def port(self) -> int:
        ready = self.line(self.process.stdout, "ready")
        assert ready.startswith("rdma-nfsd ready: tcp://127.0.0.1:")
        return int(ready.split()[2].rpartition(":")[2])

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def process(config: Path) -> Iterator[Process]:
    started = Process(config)
    yield started
    started.process.kill()
    started.process.communicate()
    started.notifications.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serving_until_a_signal(process: Process, number: int) -> None:
    port = process.port()
    seen = []
    while "WATCHDOG=1" not in seen:
        seen += process.notifications.recv(4096).decode().splitlines()
    assert seen[:2] == ["READY=1", f"STATUS=tcp://127.0.0.1:{port} " + seen[1].partition(" ")[2]]
    process.process.send_signal(number)
    while "STOPPING=1" not in seen:
        seen += process.notifications.recv(4096).decode().splitlines()
    status, out, err = process.end()
    assert (status, out) == (0, "")  # one line and no more
    # Without a device the other listeners serve, and this one waits for a device to appear.
    assert "rdma://127.0.0.1:1: waiting" in err
    assert "stopped" in err


def test_sigusr1_writes_the_calls_in_flight_to_the_log(process: Process) -> None:
    process.port()
    process.process.send_signal(signal.SIGUSR1)
    assert "0 calls in flight" in process.line(process.process.stderr, "in flight")


def test_sighup_reads_the_configuration_again(process: Process, config: Path) -> None:
    process.port()
    (config.parent / "second").mkdir()
    config.write_text(config.read_text() + "  - {path: second, pseudo: /second}\n")
    process.process.send_signal(signal.SIGHUP)
    assert "now exported: /second" in process.line(process.process.stderr, "reloaded")
    seen: list[str] = []
    while not any(line.startswith("RELOADING=1") for line in seen) or seen[-1] != "READY=1":
        seen += process.notifications.recv(4096).decode().splitlines()


def test_a_second_signal_ends_at_once(process: Process, config: Path) -> None:
    (config.parent / "export" / "large").write_bytes(bytes(1 << 20))
    ready = process.line(process.process.stdout, "ready").split()
    port, mountd = (int(word.rpartition(":")[2]) for word in (ready[2], ready[ready.index("mountd") + 1]))

    async def reads() -> bytes:
        async with await Nfs3Client.connect("127.0.0.1", mountd) as client:
            root = await client.mount("/export")
        async with await Nfs3Client.connect("127.0.0.1", port, uid=os.getuid(), gid=os.getgid()) as client:
            file = await client.lookup(root, b"large")
            call = client.encode(100003, 3, 6, pack(READ3args, READ3args(file, 0, 1 << 20)))
            return struct.pack(">I", 0x80000000 | len(call)) + call

    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        # Replies that are not taken: the server waits for that when it stops.
        client.sendall(asyncio.run(reads()) * 30)
        assert client.recv(1)
        process.process.send_signal(signal.SIGTERM)
        process.line(process.process.stderr, "stopping")
        assert process.process.poll() is None
        process.process.send_signal(signal.SIGTERM)
        assert process.end()[0] == 1


def test_nothing_to_serve_is_an_error(config: Path) -> None:
    # An address for documentation (RFC 5737), which no machine has.
    here = '"tcp://127.0.0.1:0", {url: "rdma://127.0.0.1:1", provider: verbs}'
    assert here in CONFIG
    config.write_text(CONFIG.replace(here, '"tcp://192.0.2.1:1"'))
    process = Process(config)
    status, out, err = process.end()
    process.notifications.close()
    assert (status, out) == (1, "")
    assert "cannot listen on tcp://192.0.2.1:1: Cannot assign requested address" in err
    assert "cannot start: none of the listeners could be started" in err
    assert "Traceback" not in err


def test_notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify(READY=1)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    assert not notify(READY=1)
    for address, name in ((str(tmp_path / "there"), str(tmp_path / "there")), (f"\0{tmp_path}", f"@{tmp_path}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(address)
            monkeypatch.setenv("NOTIFY_SOCKET", name)
            assert notify(READY=1, STATUS="a\nb")
            assert server.recv(100) == b"READY=1\nSTATUS=a b"


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [("30000000", None, 15.0), ("", None, None), ("x", None, None), ("0", None, None), ("30000000", "1", None)],
)
def test_the_watchdogs_interval(
    usec: str, pid: str | None, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    assert watchdog_seconds() == expected
