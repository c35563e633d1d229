"""A first Ctrl-C ends every command with status 130 and without a traceback, whatever it is at; one whose output nobody
reads ends likewise, with 141."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE = 60.0
INTERRUPTIBLE = ("env", "--default-signal=INT", sys.executable)
"""Some test runners have their processes ignore SIGINT."""
SLOW = """\
import sys, time
class Slow:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            open({fifo!r}).read()
sys.meta_path.insert(0, Slow())
from nfsd.cli import main
sys.exit(main({words!r}))
"""
"""The command, which needs for ever to read one of its modules."""
UNNOTICED = """\
import signal, sys, threading, time
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from nfsd.cli import main
sys.exit(main({words!r}))
"""
"""The command, whose wait is not ended by SIGINT, because another thread gets that: as if it had come just before."""


class Command:
    """A command that waits for what will never come."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*INTERRUPTIBLE, *words], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip

    def interrupt(self) -> None:
        """Press Ctrl-C: what the command has started gets it, too."""
        assert self.process.poll() is None
        os.killpg(self.process.pid, signal.SIGINT)
        out, err = self.process.communicate(timeout=PATIENCE)
        assert (self.process.returncode, out, err) == (130, "", "")

    def until_it_reads(self, fifo: str) -> int:
        """The other end of a FIFO, once the command has opened it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                time.sleep(0.02)
        self.process.kill()
        raise AssertionError(self.process.communicate())


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path


def command(*words: str) -> Command:
    return Command("-m", "nfsd.cli", *words)


def configured(directory: Path, server: str) -> str:
    """A configuration's file."""
    file = directory / "exports.yaml"
    file.write_text(f"server: {{listen: ['tcp://127.0.0.1:0'], mountd_port: 0{server}}}\nexports: [{{path: export}}]\n")
    return str(file)


def check(fifo: str) -> Command:
    words = ["check", "--config", configured(Path(fifo).parent, "")]
    return Command("-c", SLOW.format(module="nfsd.findings", fifo=fifo, words=words))


def client_setup(fifo: str) -> Command:
    shell = Path(fifo).parent / "sh"
    shell.write_text(f"#!/bin/bash\nread -r <{fifo}\n")
    shell.chmod(0o755)
    return Command("-m", "nfsd.cli", "client-setup", PATH=str(shell.parent) + ":" + os.environ["PATH"])


READERS: dict[str, Callable[[str], Command]] = {
    "import": lambda fifo: command("import", fifo),
    "decode": lambda fifo: command("decode", fifo),
    "bench": lambda fifo: command("bench", "fio", fifo, "/tmp"),
    "check": check,
    "a signal just before the wait": lambda fifo: Command("-c", UNNOTICED.format(words=["import", fifo])),
    "client-setup": client_setup,
    "a command that is still being imported": lambda fifo: Command(
        "-c", SLOW.format(module="nfsd.command_line", fifo=fifo, words=["ls", "tcp://127.0.0.1/"])
    ),
    "a command whose own module is being imported": lambda fifo: Command(
        "-c", SLOW.format(module="nfsd.commands.ls", fifo=fifo, words=["ls", "tcp://127.0.0.1/"])
    ),
}


@pytest.mark.parametrize("which", READERS)
def test_a_command_that_reads(fifo: str, which: str) -> None:
    started = READERS[which](fifo)
    end = started.until_it_reads(fifo)
    try:
        started.interrupt()
    finally:
        os.close(end)


@pytest.mark.parametrize(
    "words", [["capture", "-o", "-"], ["faults"], ["clients"], ["drain", "/export"]], ids=lambda words: words[0]
)
def test_a_command_that_asks_a_server_which_does_not_answer(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    config = configured(tmp_path, "")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(PATIENCE)
        silent.bind(str(tmp_path / "state" / "control"))
        silent.listen()
        started = command(*words, "--config", config)
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(PATIENCE)
            assert connection.recv(1)
            started.interrupt()


@pytest.mark.parametrize("which", ["conformance", "ls", "cat", "rm"])
def test_a_client_of_a_server_that_does_not_answer(which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        port = silent.getsockname()[1]
        started = command(which, f"tcp://127.0.0.1:{port}/export/file", "--mount-port", str(port), "--patience", "600")
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(PATIENCE)
            assert connection.recv(1)
            started.interrupt()


@pytest.mark.parametrize("words", ["--help", "--version", "check", "devices", "import"])
def test_a_command_whose_output_nobody_reads(tmp_path: Path, words: str) -> None:
    """As ``| head`` and ``| sed 1q`` leave it: it ends as by SIGPIPE."""
    (tmp_path / "export").mkdir()
    (tmp_path / "exports").write_text("/export *(ro)\n")
    more = {"check": ["--config", configured(tmp_path, "")], "import": [str(tmp_path / "exports")]}.get(words, [])
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "nfsd.cli", words, *more], stdout=write, stderr=subprocess.PIPE, env=buffered,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    assert b"Traceback" not in ended.stderr
    assert b"ignored" not in ended.stderr
    assert ended.returncode == 141
