"""Run in the guest, on a mount of NFSv4.2: copies that the server makes by itself, as programs see them.

``long_copies.py DIRECTORY``: raises AssertionError or OSError where the mount does not do what a local file system
would; prints ``done`` at the end. ``long_copies.py copy SOURCE TARGET SIZE``: one copy.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

MIB = 1 << 20
SIZE = 64 * MIB + 12345


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make(path: str) -> str:
    """A file of SIZE octets that do not repeat; returns its digest."""
    known = hashlib.sha256()
    with open(path, "wb") as file:
        left = SIZE
        while left:
            data = os.urandom(min(left, 4 * MIB))
            file.write(data)
            known.update(data)
            left -= len(data)
        os.fsync(file.fileno())
    return known.hexdigest()


def copy(source: str, target: str, size: int) -> int:
    """copy_file_range until all is copied; returns how many calls it took."""
    reading, writing = os.open(source, os.O_RDONLY), os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    done = calls = 0
    while done < size:
        count = os.copy_file_range(reading, writing, size - done)
        assert count > 0
        done += count
        calls += 1
    os.fsync(writing)
    os.close(reading)
    os.close(writing)
    return calls


def copied_whole(directory: str) -> None:
    known = make(f"{directory}/source")
    assert copy(f"{directory}/source", f"{directory}/target", SIZE) == 1, "one call, however long it takes"
    assert digest(f"{directory}/target") == known


def copied_while_others_read(directory: str) -> None:
    """Several copies at a time, and readers of the source in between."""
    known = digest(f"{directory}/source")
    copier = [sys.executable, __file__, "copy", f"{directory}/source"]
    copiers = [subprocess.Popen([*copier, f"{directory}/target {number}", str(SIZE)]) for number in range(4)]
    while any(one.poll() is None for one in copiers):
        descriptor = os.open(f"{directory}/source", os.O_RDONLY | os.O_DIRECT)
        os.close(descriptor)
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("1")
        assert digest(f"{directory}/source") == known
    assert [one.returncode for one in copiers] == [0] * 4
    assert all(digest(f"{directory}/target {number}") == known for number in range(4))


def main() -> None:
    if sys.argv[1] == "copy":
        copy(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    for part in (copied_whole, copied_while_others_read):
        part(sys.argv[1])
    print("done")


if __name__ == "__main__":
    main()
