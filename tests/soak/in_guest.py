"""Run in a guest: system calls as the soak says them, one after the other. Standard library only.

``in_guest.py HOST PORT NAME`` connects there and says its name. Then it gets a line of JSON for each call, such as
``["open", "/mnt/a", 2]``, and answers with ``[0, result]``, or with ``[errno, null]``. Octets are in hexadecimal.
"""

import fcntl
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

LOCKED = 8
"""Octets from the file's beginning."""


def lock(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCKED)
    except (BlockingIOError, PermissionError):  # which of them, POSIX leaves open
        return False
    return True


def unlock(file: int) -> None:
    fcntl.lockf(file, fcntl.LOCK_UN, LOCKED)


def write(file: int, octets: str) -> None:
    os.pwrite(file, bytes.fromhex(octets), 0)
    os.fsync(file)


def read(file: int, length: int) -> str:
    return os.pread(file, length, 0).hex()


def exists(path: str) -> bool:
    # os.path.exists takes every error for an absent file.
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


CALLS: dict[str, Callable[..., Any]] = {
    "open": lambda path, flags: os.open(path, flags, 0o666), "close": os.close, "lock": lock, "unlock": unlock,
    "write": write, "read": read, "rename": os.rename, "unlink": os.unlink, "exists": exists,
}  # fmt: skip


def answer(line: str) -> str:
    """What the call of this line comes to."""
    name, *arguments = json.loads(line)
    try:
        return json.dumps([0, CALLS[name](*arguments)])
    except OSError as error:
        return json.dumps([error.errno, None])


def main(host: str, port: str, name: str) -> None:
    """Until the other end closes."""
    with socket.create_connection((host, int(port))) as sock, sock.makefile("rw") as told:
        told.write(name + "\n")
        told.flush()
        for line in told:
            told.write(answer(line) + "\n")
            told.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
