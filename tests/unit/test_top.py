"""The live screen: in a pseudo terminal, of a running server under load; and what it makes of two looks."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nfsd import cli
from nfsd.admin import top
from nfsd.admin.screen import Screen
from nfsd.client import connect
from tests.unit.nfs_client_support import Rig

WAYS = [("tcp", "3"), ("tcp", "4.1"), ("rdma", "3"), ("rdma", "4.1")]
CALLS = (r"/export\s+[\d.]+k?\s+\S+\s+[\d.]+[KM]\s", r"127\.0\.0\.1\s+[\d.]+")
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A command in a pseudo terminal."""

    def __init__(self, *arguments: str, lines: int = 60, columns: int = 150) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines)}
        self.process = subprocess.Popen(
            # The tests may have been started in a shell's background, which ignores interrupts.
            ["env", "--default-signal=INT", sys.executable, "-m", "nfsd.cli", "top", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment,
        )  # fmt: skip
        self.raw = b""
        os.set_blocking(self.master, False)

    def read(self) -> str:
        """What is on the screen: everything since it was last drawn anew."""
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self.master, 65536):
                self.raw += chunk
        latest = self.raw.rpartition(b"\x1b[H")[2] if self.raw.count(b"\x1b[H") else self.raw
        return _ESCAPES.sub(b"", latest).decode("utf-8", "replace")

    async def until(self, condition: Callable[[str], object]) -> str:
        """Wait for a screen."""
        deadline = time.monotonic() + 60
        while True:
            text = self.read()
            if condition(text):
                return text
            assert self.process.poll() is None, f"it ended: {self.raw!r}"
            assert time.monotonic() < deadline, text
            await asyncio.sleep(0.05)

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    async def end(self) -> int:
        deadline = time.monotonic() + 30
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < deadline, "it goes on"
            await asyncio.sleep(0.05)
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextlib.asynccontextmanager
async def load(rig: Rig) -> AsyncIterator[None]:
    """Clients of both versions over both transports that write and read all the time."""
    data = bytes(60_000)

    async def work(transport: str, version: str) -> None:
        rig.transport = transport
        options = replace(rig.options, nfs_version=version, mount_port=rig.ports["mountd"])  # type: ignore[arg-type]
        async with connect(rig.url(), options) as files:
            name = f"{transport}{version}"
            while True:
                await files.write_bytes(name, data)
                await files.read_bytes(name)

    tasks = []
    for way in WAYS:
        tasks.append(asyncio.ensure_future(work(*way)))
        await asyncio.sleep(0)  # it has taken its URL
    try:
        yield
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_server_under_load_on_a_terminal(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def test() -> None:
        state = rig.daemon.config.server.state_dir
        async with load(rig):
            terminal = Terminal("--state-dir", state, "--interval", "0.3")
            try:
                # On a busy machine one look may find no call of a kind.
                await terminal.until(lambda text: "v4 READ" in text and "v3 WRITE" in text)
                await terminal.until(lambda text: re.search(r"RDMA Writes [1-9]", text))
                text = await terminal.until(lambda text: all(re.search(each, text) for each in CALLS))
                for word in ("OPERATION", "CLIENT", "RDMA Writes", "invalidations", "credits", "MEMORY", "slow, and"):
                    assert word in text, word
                assert re.search(r"[1-9]\d* connections", text)
                assert "ort: octets" in text
                terminal.press("s")
                await terminal.until(lambda text: "ort: calls" in text)
                terminal.press("p")
                await terminal.until(lambda text: "(paused)" in text)
                terminal.press("q")
                assert await terminal.end() == 0
                assert b"\x1b[?1049l" in terminal.raw, "the screen of before is back"
                assert termios.tcgetattr(terminal.slave) == terminal.before
            finally:
                terminal.close()

    rig.run(test)


def test_it_goes_on_when_the_server_is_gone_and_ends_with_control_c(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def test() -> None:
        terminal = Terminal("--state-dir", rig.daemon.config.server.state_dir, "--interval", "0.2")
        try:
            await terminal.until(lambda text: "nothing is slow" in text)
            await rig.daemon.stop()
            await terminal.until(lambda text: "no server is running" in text)
            await rig.start()
            await terminal.until(lambda text: "nothing is slow" in text and "no server is running" not in text)
            terminal.process.send_signal(signal.SIGINT)
            assert await terminal.end() == 0
            assert b"Traceback" not in terminal.raw
        finally:
            terminal.close()

    rig.run(test)


@pytest.mark.parametrize(("lines", "columns"), [(24, 80), (10, 40), (100, 250)])
def test_it_fits_terminals_of_any_size(tmp_path: Path, lines: int, columns: int) -> None:
    rig = Rig(tmp_path)

    async def test() -> None:
        state = rig.daemon.config.server.state_dir
        terminal = Terminal("--state-dir", state, "--interval", "0.2", "--count", "3", lines=lines, columns=columns)
        try:
            await terminal.until(lambda text: "rdma-nfsd" in text)
            assert await terminal.end() == 0
            assert b"Traceback" not in terminal.raw
        finally:
            terminal.close()

    rig.run(test)


def test_where_the_output_is_no_terminal_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(tmp_path)

    async def test() -> None:
        async with load(rig):
            arguments = ["top", "--state-dir", rig.daemon.config.server.state_dir, "--interval", "0.5", "--count", "2"]
            out, give_up = "", time.monotonic() + 60
            while "v4 WRITE" not in out:  # on a busy machine two looks may find none
                assert time.monotonic() < give_up, out
                assert await asyncio.to_thread(cli.main, arguments) == 0
                out = capsys.readouterr().out
                assert out.count("slow, and why") == 2
                assert "\x1b[" not in out

    rig.run(test)


def test_without_the_library_the_error_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert cli.main(["top", "--state-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "pip install 'rdma-nfsd[top]'" in error
    assert "python3-rich" in error
    assert error == top._MISSING


def snapshot(uptime: float, **more: Any) -> dict[str, Any]:
    amount = {"calls": 0, "errors": 0, "read": 0, "written": 0, "seconds": 0.0}
    return {
        "version": "1", "uptime": uptime, "cpu": 0.0, "bounds": [0.001, 0.002], "calls": [], "operations": {},
        "exports": {"/a": dict(amount), "/b": dict(amount)}, "clients": {}, "connections": [], "rdma": {}, "iwarp": {},
        "credits": {"limit": 0, "outstanding": 0, "posted": 0}, "devices": {}, "held": {}, "grace": 0.0, "waiting": 0,
        "memory": dict.fromkeys(("limit", "mapped", "resident", "in_use"), 0), "inflight": [], "notes": [],
        "workers": {"threads": 4, "running": 0, "queued": 0},
    } | more  # fmt: skip


def drawn(screen: Screen, height: int = 50) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(screen.draw(height))
    return capture.get()


def test_exports_are_sorted_by_what_is_asked_for_and_rates_are_by_second() -> None:
    screen = Screen()
    assert "looking" in drawn(screen)
    screen.look(snapshot(10.0))
    later = snapshot(12.0)
    later["exports"]["/a"] |= {"calls": 2000, "read": 1 << 20, "seconds": 0.2}
    later["exports"]["/b"] |= {"calls": 20, "read": 4 << 20, "seconds": 4.0}
    screen.look(later)
    text = drawn(screen)
    assert text.index("/b") < text.index("/a")
    assert re.search(r"/a\s+1\.0k\s+0\s+512K\s+0\s+100µs", text), text
    screen.next_order()
    text = drawn(screen)
    assert text.index("/a") < text.index("/b")
    screen.next_order()
    assert drawn(screen).index("/b") < drawn(screen).index("/a")


def test_what_is_slow_is_said_with_the_reason() -> None:
    screen = Screen()
    waiting = {
        "call": "nfsv4 READ",
        "client": "192.0.2.1",
        "export": "/a",
        "seconds": 3.25,
        "why": "data not in memory",
    }
    screen.look(snapshot(1.0))
    assert "nothing is slow" not in drawn(screen)
    notes, starved = ["5 jobs wait for a thread"], {"starved_grants": 3}
    screen.look(snapshot(2.0, cpu=0.98, notes=notes, inflight=[waiting], rdma=starved))
    text = drawn(screen)
    assert "5 jobs wait for a thread" in text
    assert "98 % of a processor" in text
    assert "nfsv4 READ of 192.0.2.1 on /a waits, 3.2 s (data not in memory)" in text
    assert "3 replies over RDMA granted fewer credits" in text
    screen.look(snapshot(3.0, cpu=0.98))
    assert "nothing is slow" in drawn(screen)
    screen.look(snapshot(0.5))
    assert "nothing is slow" in drawn(screen), "a server that was restarted has no rates yet"


def test_markup_in_names_is_text() -> None:
    screen = Screen()
    for uptime in (1.0, 2.0):
        named = snapshot(uptime)
        named["exports"]["/[red]x[/red]"] = named["exports"]["/a"] | {"calls": int(uptime), "read": int(uptime)}
        screen.look(named)
    assert "/[red]x[/red]" in drawn(screen)
