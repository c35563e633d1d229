"""Copies that the kernel makes for a server: the octets that its system calls move into its memory and out of it.

strace(1) counts them, for any server. Data that goes from the page cache to a socket without passing through the
server's memory (splice, sendfile, MSG_ZEROCOPY) is no copy here. Neither are the copies of the receiving peer. Owns
the running of strace and the reading of its output; imports nothing of the project.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

INTO = ("read", "readv", "pread64", "preadv", "preadv2", "recvfrom", "recvmsg", "getdents64")
OUT_OF = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto", "sendmsg")
SEVERAL = ("sendmmsg",)
"""Out of it as well, but they return how many messages."""
_LENGTH = re.compile(r"msg_len=(\d+)")
_LINE = re.compile(r"(?:\d+\s+)?(\w+)\((.*)\)\s+= (\d+)$")


def octets(lines: Iterable[str]) -> tuple[int, int]:
    """What strace's lines say: octets copied into the process's memory, and out of it."""
    into = out = 0
    for line in lines:
        match = _LINE.match(line.rstrip())
        if match is None or "MSG_ZEROCOPY" in match[2]:
            continue
        if match[1] in INTO:
            into += int(match[3])
        elif match[1] in OUT_OF:
            out += int(match[3])
        elif match[1] in SEVERAL:
            out += sum(int(length) for length in _LENGTH.findall(match[2])[: int(match[3])])
    return into, out


def by_system_calls(pid: int, work: Callable[[], float]) -> dict[str, float]:
    """Octets per call that the kernel copies for a process while ``work()`` makes so many calls of it. Nothing where
    strace is not installed, or not allowed."""
    program = shutil.which("strace")
    if program is None:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "trace"
        names = ",".join((*INTO, *OUT_OF, *SEVERAL))
        # -s: as many messages are shown of those that one call sends.
        options = ["-f", "-z", "-s", "16", "-e", f"trace={names}", "-e", "signal=none", "-o", str(file), "-p", str(pid)]
        with subprocess.Popen([program, *options], stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            attached = "attached" in strace.stderr.readline()
            try:
                calls = work() if attached else 0
            finally:
                strace.send_signal(signal.SIGINT)
                strace.communicate()
        if not calls:
            return {}
        with file.open() as lines:
            into, out = octets(lines)
    return {"kernel_in": into / calls, "kernel_out": out / calls}
