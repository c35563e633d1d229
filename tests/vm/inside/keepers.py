"""Run in a guest: hold locks and write, whatever becomes of the server, and see what that was like. Standard library
only.

``keepers.py keep DIR...``      in each DIR: lock all of ``locked``, and write numbered records to ``kept``, each on the
                                disk (fsync) before the next. Say "all keep" when each of them has written some. When
                                /tmp/enough is there, write 20 more, and say for each DIR how many there are and the
                                longest time that one took. End when /tmp/release is there.
``keepers.py covet DIR...``     try to lock ``locked`` in each DIR, over and over, until /tmp/stop is there; say how
                                often it was refused and granted.
``keepers.py check DIR COUNT``  ``kept`` has the first COUNT records, and at most one more.
"""

import fcntl
import json
import os
import sys
import threading
import time

START, MORE = 5, 20


def record(number: int) -> bytes:
    return b"record %08d\n" % number


def say(text: str) -> None:
    os.write(1, (text + "\n").encode())


class Keeper(threading.Thread):
    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory
        self.began = threading.Event()
        self.count, self.longest, self.error = 0, 0.0, ""

    def run(self) -> None:
        try:
            self._locked = os.open(f"{self.directory}/locked", os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.lockf(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write()
        except OSError as error:
            self.error = str(error)
        self.began.set()

    def _write(self) -> None:
        file = os.open(f"{self.directory}/kept", os.O_WRONLY | os.O_CREAT, 0o666)
        last = 1 << 62
        while self.count < last:
            if last == 1 << 62 and os.path.exists("/tmp/enough"):
                last = self.count + MORE
            began = time.monotonic()
            data = record(self.count)
            os.pwrite(file, data, self.count * len(data))
            os.fsync(file)
            self.longest = max(self.longest, time.monotonic() - began)
            self.count += 1
            if self.count >= START:
                self.began.set()
            time.sleep(0.02)


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.1)


def keep(directories: "list[str]") -> None:
    keepers = [Keeper(directory) for directory in directories]
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.began.wait()
    say("all keep")
    for keeper in keepers:
        keeper.join()
    say(json.dumps({one.directory: [one.count, round(one.longest, 1), one.error] for one in keepers}))
    wait_for("/tmp/release")


def covet(directories: "list[str]") -> None:
    seen = {directory: [0, 0] for directory in directories}
    while not os.path.exists("/tmp/stop"):
        for directory in directories:
            file = os.open(f"{directory}/locked", os.O_RDWR)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen[directory][1] += 1
            except BlockingIOError:
                seen[directory][0] += 1
            os.close(file)
        time.sleep(0.1)
    say(json.dumps(seen))


def check(directory: str, count: int) -> None:
    with open(f"{directory}/kept", "rb") as file:
        found = file.read()
    whole = b"".join(record(number) for number in range(count + 1))
    assert found in (whole, whole[: -len(record(0))]), (len(found), len(whole))


if sys.argv[1] == "check":
    check(sys.argv[2], int(sys.argv[3]))
else:
    {"keep": keep, "covet": covet}[sys.argv[1]](sys.argv[2:])
