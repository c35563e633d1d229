"""Makes the files that calls need in an exported directory, in the right state, without the server."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

MANY, NAMES, TAR, SIZED, HALF, COLD = "many", "names", "tar", "sized", "half", "cold"
MANY_NAMES = 20_000
RENAMED = b"r %04d"
BLOCK = 64 << 10
"""Of the file of which every other one is cached."""
HALF_SIZE = 64 << 20
COLD_SIZE = 1 << 30
_AT_A_TIME = 64 << 10
"""The kernel caches in one piece what was written at once, up to some MiB, and a WRITE on ext4 looks at each block of
its piece, wherever in memory that lies. One of 4 KiB takes 1 us in pieces of 64 KiB. In pieces of 1 MiB it takes 1.8 to
2.9, and in a file that was written at once 4 to 6: what files have been there before decides, and it would do so for
each server in another way."""


def make_many(path: Path) -> None:
    """A directory of empty files."""
    path.mkdir()
    for number in range(MANY_NAMES):
        os.close(os.open(path / f"name {number:07}", os.O_CREAT | os.O_WRONLY, 0o644))


def make_names(path: Path) -> None:
    """A directory in which names come and go, with files that are renamed."""
    path.mkdir()
    path.chmod(0o777)
    for number in range(1024):
        (path / (RENAMED % number).decode()).touch()


def make_directory(path: Path) -> None:
    """One that everybody may write to."""
    path.mkdir()
    path.chmod(0o777)


def fill(path: Path, size: int) -> None:
    """Make a file of so many octets that everybody may write to, all of it on the disk."""
    piece = random.randbytes(_AT_A_TIME)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // _AT_A_TIME):
            file.write(piece)
        file.write(piece[: size % _AT_A_TIME])
        os.fsync(file.fileno())
    path.chmod(0o666)


def file_of(size: int) -> Callable[[Path], None]:
    """Makes such a file."""
    return lambda path: fill(path, size)


MAKE: Mapping[str, Callable[[Path], None]] = {
    MANY: make_many,
    NAMES: make_names,
    TAR: make_directory,
    SIZED: file_of(BLOCK),
    HALF: file_of(HALF_SIZE),
    COLD: file_of(COLD_SIZE),
}


ONLY_READ = frozenset({COLD})
"""One for all servers of a place. A large one for each would fill the machine's memory, where the disk's image is in
memory and what is read is cached there again: servers would then be measured while the kernel looks for pages."""


def provide(need: str, export: Path, place: Path) -> None:
    """Make what is needed in an exported directory, which is somewhere in the directory ``place``."""
    if need in ONLY_READ:
        os.link(common(need, place), export / need)
    else:
        MAKE[need](export / need)


def common(need: str, place: Path) -> Path:
    """What is needed, for all in a place; it is made where it is not there yet."""
    path = place / need
    if not path.exists():
        MAKE[need](path)
    return path


def uncache(path: Path) -> None:
    """Nothing of a file is cached from now on."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def uncache_half(path: Path) -> None:
    """Every other block is cached from now on, beginning with the first. No part of a large folio can be dropped, so
    all is, and what is to be cached is read, without anything that is near it."""
    uncache(path)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for at in range(0, path.stat().st_size, 2 * BLOCK):
            os.pread(file.fileno(), BLOCK, at)


BEFORE_EACH: Mapping[str, Callable[[Path], None]] = {HALF: uncache_half, COLD: uncache}
"""What is done to them before calls are measured."""
