"""A short soak of this server, and of servers with a seeded fault, which it must find out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.soak.broken import without_sync
from tests.soak.guest import complaints
from tests.soak.report import Report
from tests.soak.run import Options, Run
from tests.soak.server import Server

pytestmark = pytest.mark.timeout(600)


def soak(server: Server, **how: float) -> Report:
    with server:
        return asyncio.run(Run(Options(era=5.0, rate=10.0, **how), server).go())  # type: ignore[arg-type]


def test_a_short_soak_finds_nothing() -> None:
    report = soak(Server(), seconds=60.0, seed=3)
    print(report.table())
    assert report.findings == []
    assert sum(report.faults.values()) > 5
    # Of what ends the server, a busy machine may have had time for one thing only.
    assert report.faults.keys() & {"SIGKILL", "power cut"}
    assert "dropped connections" in report.faults
    assert set(report.histories) == {"data", "lock", "locked", "name", "renamed", "operations"}
    assert report.operations["locks reclaimed"] > 0
    assert report.operations["close-to-open read"] > 0
    assert report.connections > 0
    assert report.native_calls > 0


def test_a_kernel_complains_of_what_it_waited_for_in_the_servers_last_life() -> None:
    log = """[  130.125] INFO: task python3:175 blocked for more than 120 seconds.
[  130.128] Call Trace:
[  251.961] INFO: task python3:175 blocked for more than 241 seconds.
[  251.962] Call Trace:
[  260.000] WARNING: CPU: 0 PID: 1 at fs/nfs/inode.c:1
[  391.961] INFO: task python3:175 blocked for more than 120 seconds.
[  391.962] Call Trace:"""
    lines = log.splitlines()
    assert complaints(log, 0.0) == lines
    assert complaints(log, 270.0) == lines[4:]
    assert complaints(log, 300.0) == lines[4:5]


def test_a_server_is_forked_killed_and_forked_again() -> None:
    """Also before it is ready: what it had said by then is not taken for the next one's."""
    server = Server(forked=True)
    with server:
        for _ in range(3):
            first = server.process
            assert first is not None
            assert "error" not in server.ask("reload")
            server.kill()
            assert not server.alive
            assert server.use() is None
            server.begin()
            server.kill()
            server.start()
            assert server.alive
            assert server.process is not None
            assert server.process.pid != first.pid
    assert server.lives == 7


def test_a_server_that_gives_a_lock_twice_is_found_out() -> None:
    report = soak(Server(["tests.soak.broken", "locks"]), seconds=120.0, seed=1, calm=1.0, until_found=True)
    assert "lock" in report.findings[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of one's own needs root")
def test_a_server_that_acknowledges_what_is_not_on_the_disk_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.soak.faults.WEIGHTS", {"power cut": 1, "dropped connections": 1})
    server = Server(environment=without_sync(tmp_path))
    if not server.disk.real:
        server.disk.close()
        pytest.skip("nothing can be mounted here")
    report = soak(server, seconds=180.0, seed=1, calm=0.0, until_found=True)
    assert report.findings
    assert "power cut" in report.faults
