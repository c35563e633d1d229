"""A disk that can be stopped: ext4 on a loop device whose file lies behind a FUSE file system that answers or does not.

Owns the mounts and the FUSE process, and undoes them; needs root and bindfs. Imports :mod:`bench.running`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.running import Impossible

SIZE = 256 << 20
_CLONE_NEWNS = 0x20000
PROGRAMS = ("bindfs", "losetup", "mkfs.ext4", "mount", "umount")


class StallingDisk:
    """The file system ``path``, whose disk stops answering on command."""

    def __init__(self, path: Path, passing: subprocess.Popen[bytes]) -> None:
        self.path = path
        self._passing = passing

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Meanwhile nothing that is not cached is read, and nothing reaches the disk."""
        self._passing.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._passing.send_signal(signal.SIGCONT)


def own_mounts() -> None:
    """See mounts of our own from now on, which nobody else sees and keeps busy, and which end with this process."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise Impossible(f"unshare: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Impossible(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def _end(passing: subprocess.Popen[bytes], before: Path) -> None:
    """End the FUSE process, whether or not its file system is still in use."""
    subprocess.run(["umount", "--lazy", str(before)], check=False)
    passing.terminate()
    passing.wait()


@contextmanager
def stalling_disk(directory: Path, data: bytes, size: int = SIZE) -> Iterator[StallingDisk]:
    """One with a file ``data`` that nobody has read, so that it must come from the disk. Raises :class:`Impossible`."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() or missing or not Path("/dev/fuse").exists():
        raise Impossible(f"it needs root, FUSE and {', '.join(missing or ['bindfs'])}: apt-get install bindfs")
    own_mounts()
    behind, before, path = (directory / name for name in ("behind", "before", "disk"))
    for each in (behind, before, path):
        each.mkdir(parents=True)
    with (behind / "image").open("wb") as image:
        image.truncate(size)
    with ExitStack() as ends:
        passing = subprocess.Popen(["bindfs", "-f", str(behind), str(before)])
        ends.callback(_end, passing, before)
        until = time.monotonic() + 10
        while not (before / "image").exists():
            if time.monotonic() > until or passing.poll() is not None:
                raise Impossible("bindfs did not start")
            time.sleep(0.02)
        device = run("losetup", "--find", "--show", "--direct-io=on", before / "image")
        ends.callback(subprocess.run, ["losetup", "--detach", device], check=False)
        run("mkfs.ext4", "-q", "-F", device)
        run("mount", device, path)
        (path / "data").write_bytes(data)
        (path / "data").chmod(0o666)
        path.chmod(0o777)
        run("umount", path)
        run("mount", device, path)
        ends.callback(subprocess.run, ["umount", str(path)], check=False)
        yield StallingDisk(path, passing)
