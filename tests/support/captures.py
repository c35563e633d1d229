"""``rdma-nfsd capture`` run beside a server, and what tshark makes of its file."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from nfsd.decode import Decoder

WITHOUT_TSHARK = "tshark is missing: run tests/vm/host-packages.sh captures (Debian: apt-get install tshark)"


@contextmanager
def capturing(base: Path, file: Path, *options: str) -> Iterator[list[str]]:
    """The command, capturing what the server of ``base``/exports.yaml does, until the block is over; gives what it has
    said by then."""
    said: list[str] = []
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "nfsd.cli",
            "capture",
            "--config",
            str(base / "exports.yaml"),
            "-o",
            str(file),
            *options,
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said.append(process.stderr.readline())
        assert "capturing" in said[0], said
        yield said
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=60)[1].splitlines()
        assert process.returncode == 0, said
    finally:
        process.kill()
        process.wait()


def decoded(file: Path) -> str:
    """The lines of ``rdma-nfsd decode``."""
    with file.open("rb") as octets:
        return "\n".join(Decoder().lines(octets))


def dissected(file: Path, fields: Sequence[str], show: str = "", script: Path | None = None) -> list[dict[str, str]]:
    """tshark's fields of each packet that passes the filter ``show``, with a dissector in Lua if ``script`` is one. Two
    passes, as Wireshark itself makes them: the second puts together what went through Write chunks.

    Not as root: Wireshark 4.4 runs no scripts then. It is given copies of files that another user may not open.
    (Guests have no /dev/fd.)"""
    assert shutil.which("tshark") is not None, WITHOUT_TSHARK
    with ExitStack() as stack:
        copies = [stack.enter_context(_copy(path)).fileno() for path in (file, script) if path is not None]
        command = ["tshark", "-2", "-n", "-r", f"/proc/self/fd/{copies[0]}", "-T", "fields"]
        # A port of the kernel's choice may be another protocol's by Wireshark's tables, which would go first.
        command += ["-o", "tcp.try_heuristic_first:TRUE"]
        if script is not None:
            command += ["-X", f"lua_script:/proc/self/fd/{copies[1]}"]
        if show:
            command += ["-Y", show]
        return _fields(command, fields, copies)


def _copy(file: Path) -> IO[bytes]:
    """The file in memory, which anybody may open."""
    copy = os.fdopen(os.memfd_create(file.name), "w+b")
    copy.write(file.read_bytes())
    copy.flush()
    return copy


def _fields(command: list[str], fields: Sequence[str], descriptors: Sequence[int]) -> list[dict[str, str]]:
    command += ["-E", "separator=/t", "-E", "occurrence=a"]
    for field in fields:
        command += ["-e", field]
    nobody = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        pass_fds=descriptors,
        user=nobody and nobody.pw_uid,
        group=nobody and nobody.pw_gid,
        extra_groups=nobody and [],
        env={**os.environ, "HOME": "/nonexistent"} if nobody else None,
    )
    assert done.returncode == 0, (command, done.stderr)
    return [dict(zip(fields, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]
