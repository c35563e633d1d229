"""Run in two guests at a time: work on the same files, so that delegations stand in its way. Standard library only.

``conflicts.py DIR SECONDS SEED WHAT…`` does each WHAT in a process of its own, and prints how often it did what:

``files``    read, append to, replace, rename, remove, make and chmod the files of DIR/files; keep some open for a while
``locks``    lock many ranges of a file of DIR/locks that it only reads, and chmod it: a Linux client returns its
             delegation for that, and first sends all the locks; or write to it
``listing``  list DIR/files, with the attributes of each
``tree``     change a source below DIR/tree, make, git status
``caches``   have the kernel drop its inodes, now and then: it returns their delegations
``mounts``   a mount of its own beside (``CONFLICTS_MOUNT`` is the command), read there, unmount
"""

from __future__ import annotations

import collections
import fcntl
import os
import random
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

FILES = 300
LOCKED = 100
RANGES = 400
OPEN_AT_A_TIME = 6
GIT = ["git", "-c", "safe.directory=*", "-c", "gc.auto=0", "-c", "core.fsmonitor=false", "status", "--porcelain"]


def quietly(words: Sequence[str], directory: Path | None = None) -> int:
    """Run a command; its exit status."""
    return subprocess.run(
        words, cwd=directory, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode


class Work(ABC):
    """Something to do again and again."""

    def __init__(self, directory: Path, dice: random.Random) -> None:
        self.directory = directory
        self.dice = dice

    @abstractmethod
    def step(self) -> str:
        """Do one thing; its name."""

    def pick(self, count: int, seconds: float) -> int:
        """A number below ``count``; every other time one that both guests take at this time, by their clocks."""
        return self.dice.randrange(count) if self.dice.random() < 0.5 else int(time.time() / seconds) % count


class Files(Work):
    """Everyday work on one set of files."""

    def __init__(self, directory: Path, dice: random.Random) -> None:
        super().__init__(directory / "files", dice)
        self.held: collections.deque[BinaryIO] = collections.deque()

    def step(self) -> str:
        works = (self.read, self.append, self.replace, self.rename, self.remove, self.chmod, self.hold)
        work = self.dice.choices(works, (32, 22, 10, 6, 10, 6, 14))[0]
        path = self.directory / f"f{self.pick(FILES, 0.5)}"
        try:
            work(path)
        except OSError as error:
            return os.strerror(error.errno or 0)
        return work.__name__

    def read(self, path: Path) -> None:
        path.read_bytes()

    def append(self, path: Path) -> None:
        with path.open("ab") as file:
            for _ in range(self.dice.randrange(1, 4)):
                file.write(b"x" * self.dice.randrange(1, 3000))
                file.flush()

    def replace(self, path: Path) -> None:
        new = self.directory / f"{path.name}.{os.uname().nodename}"
        new.write_bytes(b"y" * 2000)
        new.replace(path)

    def rename(self, path: Path) -> None:
        path.replace(self.directory / f"f{self.pick(FILES, 0.5)}")

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(b"z" * 1000)

    def chmod(self, path: Path) -> None:
        path.chmod(self.dice.choice((0o666, 0o664)))

    def hold(self, path: Path) -> None:
        file: BinaryIO = path.open(self.dice.choice(("rb", "ab", "r+b")))
        self.held.append(file)
        if file.writable():
            file.write(b"held")
            file.flush()
        else:
            file.read(1)
        while len(self.held) > OPEN_AT_A_TIME:
            self.held.popleft().close()


class Locks(Work):
    """Have much to tell the server when a delegation is returned."""

    def step(self) -> str:
        path = self.directory / f"locks/l{self.pick(LOCKED, 1.5)}"
        if self.dice.random() < 0.4:
            with suppress(OSError), path.open("r+b") as file:
                file.write(b"written")
            return "written"
        with suppress(OSError), path.open("rb") as file:
            for place in range(self.dice.randrange(RANGES)):
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 2 * place)
            path.chmod(self.dice.choice((0o666, 0o664)))
        return "locked"


class Listing(Work):
    """Look at everything."""

    def step(self) -> str:
        with suppress(OSError), os.scandir(self.directory / "files") as entries:
            for entry in entries:
                with suppress(OSError):
                    entry.stat()
        time.sleep(1)
        return "listed"


class Tree(Work):
    """What one does to a source tree."""

    def step(self) -> str:
        sources = sorted((self.directory / "tree").glob("part*/*.c"))
        for source in self.dice.sample(sources, 2):
            with suppress(OSError), source.open("a") as file:
                file.write("/* */\n")
        quietly(["make", "-s", "-k"], self.directory / "tree")
        quietly(GIT, self.directory / "tree")
        return "built"


class Caches(Work):
    """Forget inodes."""

    def step(self) -> str:
        time.sleep(self.dice.uniform(1, 4))
        Path("/proc/sys/vm/drop_caches").write_text("2")
        return "dropped"


class Mounts(Work):
    """Another mount of the same export."""

    def step(self) -> str:
        point = Path("/mnt/beside")
        point.mkdir(exist_ok=True)
        if quietly([*os.environ["CONFLICTS_MOUNT"].split(), str(point)]):
            return "not mounted"
        for _ in range(30):
            with suppress(OSError):
                (point / f"files/f{self.pick(FILES, 0.5)}").read_bytes()
        quietly(["umount", str(point)])
        time.sleep(self.dice.uniform(1, 4))
        return "mounted"


WORK: dict[str, type[Work]] = {
    "files": Files, "locks": Locks, "listing": Listing, "tree": Tree, "caches": Caches, "mounts": Mounts,
}  # fmt: skip


def work(directory: Path, seconds: float, seed: str, what: str) -> None:
    """Work until the time is over."""
    end, done = time.monotonic() + seconds, collections.Counter[str]()
    worker = WORK[what](directory, random.Random(f"{seed} {what} {os.getpid()}"))
    while time.monotonic() < end:
        done[worker.step()] += 1
    print(what, dict(done.most_common()), flush=True)


def main() -> int:
    """Entry point: a process for each thing."""
    directory, seconds, seed, *whats = sys.argv[1:]
    children = []
    for what in whats:
        child = os.fork()
        if not child:
            try:
                work(Path(directory), float(seconds), seed, what)
            except BaseException as error:
                print(what, repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


sys.exit(main())
