"""Run in a guest: hold byte-range locks as told on a FIFO, or try one. Standard library only.

``locker.py hold FILE FIFO``    open FILE, lock bytes 0..99 exclusively, say "locked"; then obey lines from FIFO:
"check" (write and read
                                through the same open file, say "alive"), "unlock" (say "unlocked"), "quit".
``locker.py try FILE START LEN [wait]``  try an exclusive lock; say "got" or "busy".
"""

import fcntl
import os
import sys


def say(text: str) -> None:
    os.write(1, (text + "\n").encode())


def hold(path: str, fifo: str) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 0)
    say("locked")
    count = 0
    while True:
        with open(fifo) as commands:
            for line in commands:
                word = line.strip()
                if word == "check":
                    count += 1
                    data = b"%08d" % count
                    os.pwrite(file, data, 0)
                    os.fsync(file)
                    assert os.pread(file, 8, 0) == data
                    say(f"alive {count}")
                elif word == "unlock":
                    fcntl.lockf(file, fcntl.LOCK_UN, 100, 0)
                    say("unlocked")
                elif word == "quit":
                    return


def attempt(path: str, start: int, length: int, wait: bool) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), length, start)
    except BlockingIOError:
        say("busy")
    else:
        say("got")


if sys.argv[1] == "hold":
    hold(sys.argv[2], sys.argv[3])
else:
    attempt(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "wait" in sys.argv)
