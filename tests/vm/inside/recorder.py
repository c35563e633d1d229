"""Run in a guest: change files below a directory, and tell what was done, operation by operation. Standard library
only.

``recorder.py DIRECTORY SEED``: an endless, seeded run of operations on an empty directory. A line "do JSON" stands
before each and "ack N" after its system calls have returned. Every operation is one that is on the disk when it
returns: synchronous or direct writes, writes followed by fsync, and changes of names, which a server must put on
stable storage before it answers. What an operation means is in tests/vm/file_model.py, which replays the lines.
"""

import ctypes
import json
import mmap
import os
import random
import sys
import time

IDLE = 15
"""Seconds after which a server has closed what it had open for a write, and COMMIT finds it so."""
_SYNC_FILE_RANGE_WRITE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def say(text: str) -> None:
    os.write(1, (text + "\n").encode())


def content(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


class Recorder:
    def __init__(self, directory: str, seed: int) -> None:
        os.chdir(directory)
        self.rng = random.Random(seed)
        self.files: list[str] = []
        self.directories = ["."]
        self.number = 0

    def new_name(self) -> str:
        self.number += 1
        return os.path.normpath(f"{self.rng.choice(self.directories)}/n{self.number}")

    def do(self, operation: str, **arguments: object) -> None:
        say("do " + json.dumps({"op": operation, **arguments}))
        getattr(self, "op_" + operation)(**arguments)
        say("ack")

    def op_create(self, path: str) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))

    def op_write(self, path: str, how: str, offset: int, length: int, seed: int) -> None:
        flags = {"osync": os.O_SYNC, "odsync": os.O_DSYNC, "direct": os.O_DIRECT | os.O_DSYNC}.get(how, 0)
        descriptor = os.open(path, os.O_WRONLY | flags)
        data = content(seed, length)
        if how == "direct":
            page = mmap.mmap(-1, length)
            page[:] = data
            assert os.pwrite(descriptor, page, offset) == length
        elif how == "fsync":
            half = length // 2
            assert os.pwrite(descriptor, data[half:], offset + half) == length - half
            assert os.pwrite(descriptor, data[:half], offset) == half
            os.fsync(descriptor)
        elif how == "idle":
            # Sent, but not committed; committed much later.
            assert os.pwrite(descriptor, data, offset) == length
            nothing = ctypes.c_int64(0)
            assert _LIBC.sync_file_range(descriptor, nothing, nothing, _SYNC_FILE_RANGE_WRITE) == 0
            time.sleep(IDLE)
            os.fsync(descriptor)
        else:
            assert os.pwrite(descriptor, data, offset) == length
        os.close(descriptor)

    def op_truncate(self, path: str, size: int) -> None:
        os.truncate(path, size)

    def op_mkdir(self, path: str) -> None:
        os.mkdir(path)

    def op_rmdir(self, path: str) -> None:
        os.rmdir(path)

    def op_rename(self, path: str, to: str) -> None:
        os.rename(path, to)

    def op_link(self, path: str, to: str) -> None:
        os.link(path, to)

    def op_symlink(self, path: str, target: str) -> None:
        os.symlink(target, path)

    def op_lchown(self, path: str, uid: int) -> None:
        os.lchown(path, uid, -1)

    def op_remove(self, path: str) -> None:
        os.unlink(path)

    def op_chmod(self, path: str, mode: int) -> None:
        os.chmod(path, mode)

    def begin(self) -> None:
        """Once, since it takes so long."""
        path = self.new_name()
        self.do("create", path=path)
        self.do("write", path=path, how="idle", offset=0, length=3 << 20, seed=self.rng.getrandbits(31))
        self.files.append(path)

    def step(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.2 or len(self.files) < 5:
            path = self.new_name()
            self.do("create", path=path)
            self.files.append(path)
        elif kind < 0.6:
            how = rng.choice(("osync", "odsync", "direct", "fsync"))
            if how == "direct":
                offset, length = 4096 * rng.randrange(8), 4096 * rng.randrange(1, 9)
            else:
                offset, length = rng.randrange(30000), rng.randrange(1, 30000)
            path, seed = rng.choice(self.files), rng.getrandbits(31)
            self.do("write", path=path, how=how, offset=offset, length=length, seed=seed)
        elif kind < 0.65:
            self.do("truncate", path=rng.choice(self.files), size=rng.randrange(40000))
        elif kind < 0.70 and len(self.directories) < 20:
            path = self.new_name()
            self.do("mkdir", path=path)
            self.directories.append(path)
        elif kind < 0.72:
            path = self.new_name()
            self.do("mkdir", path=path)
            self.do("rmdir", path=path)
        elif kind < 0.80:
            index = rng.randrange(len(self.files))
            to = self.new_name() if rng.random() < 0.7 else rng.choice(self.files)
            if to != self.files[index]:
                self.do("rename", path=self.files[index], to=to)
                moved = self.files[index]
                self.files = [name for name in self.files if name not in (moved, to)] + [to]
        elif kind < 0.84:
            to = self.new_name()
            self.do("link", path=rng.choice(self.files), to=to)
            # A link is only ever removed: a rename between two names of one file would do nothing.
            self.do("remove", path=to) if rng.random() < 0.5 else None
        elif kind < 0.88:
            path = self.new_name()
            self.do("symlink", path=path, target="t" * rng.randrange(1, 200))
            self.do("lchown", path=path, uid=rng.randrange(1000, 2000))
        elif kind < 0.92:
            self.do("chmod", path=rng.choice(self.files), mode=rng.choice((0o600, 0o644, 0o755, 0o444 | 0o200)))
        else:
            path = self.files.pop(rng.randrange(len(self.files)))
            self.do("remove", path=path)


recorder = Recorder(sys.argv[1], int(sys.argv[2]))
recorder.begin()
while True:
    recorder.step()
