"""Run in a guest: one thing that a program does with a file, how it ends, and how long it takes. Standard library only.

``fault_probe.py DIRECTORY DEED [FILE]`` prints one line: ``ok`` or the error's name, and the seconds.
"""

import errno
import mmap
import os
import sys
import time
from collections.abc import Callable

SIZE = 200_001
"""Octets of the file ``data``: no multiple of four, so that Linux registers memory for the padding too."""


def read(path: str, size: int = SIZE) -> None:
    file = os.open(f"{path}/data", os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, 1 << 18)
    at = 0
    while at < size:
        done = os.preadv(file, [memoryview(memory)[at : at + (1 << 17)]], at)
        if not done:
            break
        at += done
    if at != size or memory[:size] != bytes(index * 7 & 0xFF for index in range(size)):
        raise OSError(errno.EBADMSG, "other data")
    os.close(file)


def write(path: str) -> None:
    file = os.open(f"{path}/written", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for _ in range(4):  # more than one WRITE, or Linux would need no COMMIT
        os.write(file, b"w" * (1 << 20))
    os.fsync(file)
    os.close(file)


def mkdir(path: str) -> None:
    os.mkdir(f"{path}/made")


def many(path: str) -> None:
    """Reads at the same time."""
    children = []
    for _ in range(8):
        child = os.fork()
        if not child:
            status = 1
            try:
                read(path)
                status = 0
            except OSError as error:
                status = error.errno or 1
            finally:
                os._exit(status)
        children.append(child)
    worst = max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    if worst:
        raise OSError(worst, "a reader failed")


def share(path: str, name: str) -> None:
    """Keep a file open, and open it again and again until what a program on the server has appended is there."""
    with open(f"{path}/{name}") as kept:
        kept.read()
        print("opened", flush=True)
        while True:
            with open(f"{path}/{name}") as again:
                if again.read().endswith("second\n"):
                    return
            time.sleep(0.1)


DEEDS: dict[str, Callable[..., None]] = {"read": read, "write": write, "mkdir": mkdir, "many": many, "share": share}

directory, deed, *names = sys.argv[1:]
begun = time.monotonic()
try:
    DEEDS[deed](directory, *names)
    outcome = "ok"
except OSError as error:
    outcome = errno.errorcode.get(error.errno or 0, str(error.errno))
print(f"outcome {outcome} {time.monotonic() - begun:.1f}", flush=True)
