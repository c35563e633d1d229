"""Run in two guests at a time: what clients do to one directory against each other. Standard library only.

``rivals.py exclusive DIR COUNT``       create the names 0, 1, 2… with O_EXCL; say which were ours
``rivals.py append FILE WORD COUNT``    append lines "WORD number" under flock
``rivals.py churn DIR SECONDS``         create and unlink files there, whose names begin with "churn"
``rivals.py scan DIR TIMES``            list the directory; say how many names there are without "churn", how often one
                                        came twice, and the seconds of each time
"""

import collections
import fcntl
import os
import sys
import time


def exclusive(directory: str, count: int) -> None:
    won = []
    for number in range(count):
        try:
            os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        won.append(number)
    print("won", *won)


def append(path: str, word: str, count: int) -> None:
    for number in range(count):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, b"%s %d\n" % (word.encode(), number))
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def churn(directory: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        os.close(os.open(f"{directory}/churn{number}", os.O_CREAT | os.O_WRONLY))
        if number >= 50:
            os.unlink(f"{directory}/churn{number - 50}")
        number += 1
    print("churned", number)


def scan(directory: str, times: int) -> None:
    for _ in range(times):
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("3")  # ask the server each time
        start = time.monotonic()
        names = collections.Counter(os.listdir(directory))
        took = time.monotonic() - start
        quiet = sum(count for name, count in names.items() if not name.startswith("churn"))
        twice = sum(count > 1 for count in names.values())
        print(f"scan {quiet} names {twice} twice {took:.2f} s")


command, path, *rest = sys.argv[1:]
if command == "exclusive":
    exclusive(path, int(rest[0]))
elif command == "append":
    append(path, rest[0], int(rest[1]))
elif command == "churn":
    churn(path, float(rest[0]))
else:
    scan(path, int(rest[0]))
