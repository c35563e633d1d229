"""The places that servers export: memory, a directory on a disk, or a file system of our own on a loop device.

Owns the mounts and loop devices that it makes, in a mount namespace of this process, and removes them. Imports
:mod:`bench.disk`, which makes them.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import disk

MEMORY = "tmpfs"
KINDS = ("ext4", "xfs")
"""File systems that are made where a kind is asked for and the host has no disk that suits."""
IMAGE = 8 << 30
"""Octets of such a file system; its image is sparse."""
_IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Place:
    """An empty directory of our own on some file system."""

    name: str
    """Its file system's type, with a number where there are several."""
    path: Path
    device: str = ""
    """Such as ``vda`` or ``loop0``; nothing: there is none."""
    ours: bool = False
    """Nobody else uses the file system, so that its kernel threads work for the server."""

    @property
    def told(self) -> str:
        """For people."""
        if not self.device:
            return f"{self.name} in memory"
        shared = "which has this directory alone" if self.ours else "which others may use as well"
        return f"{self.name} on {self.device}, {shared}"

    def kernel_seconds(self) -> float:
        """CPU of the kernel's threads that belong to the file system (its journal's, its log's), if it is ours alone.
        Threads of the kernel's work queues belong to nobody."""
        return sum(on_processor(pid) for pid in threads_of(self.device)) if self.ours else 0.0

    def flushes(self) -> int:
        """How often its device was told to make stable what it has, so far."""
        if not self.device:
            return 0
        fields = Path(f"/sys/class/block/{self.device}/stat").read_text().split()
        return int(fields[15]) if len(fields) > 15 else 0


def on_processor(pid: int) -> float:
    """Seconds of CPU of a thread."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def threads_of(device: str) -> list[int]:
    """The kernel's threads that are named for a block device, such as ``jbd2/loop0-8`` and ``xfsaild/loop0``."""
    found = []
    for each in Path("/proc").glob("[0-9]*/comm"):
        try:
            name = each.read_text().strip()
        except OSError:
            continue
        if named_for(name, device):
            found.append(int(each.parent.name))
    return found


def named_for(thread: str, device: str) -> bool:
    """Whether a kernel thread's name has this device's in it."""
    _, slash, rest = thread.partition("/")
    return bool(slash) and rest.split("-")[0] == device


def mount_of(path: str, mountinfo: str) -> tuple[str, str]:
    """The type and the source of the file system that a path is on, as the text of /proc/self/mountinfo has it."""
    best, found = "", ("", "")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # the later one is mounted on top
            kind, source = after.split()[:2]
            best, found = point, (kind, source)
    return found


def file_system(path: Path) -> tuple[str, str]:
    """The type of a directory's file system, and its block device (empty: none)."""
    kind, source = mount_of(str(path.resolve()), Path("/proc/self/mountinfo").read_text())
    return kind, Path(source).resolve().name if source.startswith("/dev/") else ""


def suits(kind: str, path: Path) -> bool:
    """Whether a directory is on a file system of this kind as people have it: an ext4 with its journal. One without
    looks, for each new file, at every inode number that was freed in the last minutes: a creation then costs what has
    been removed before, by whichever server."""
    found, device = file_system(path)
    return found == kind and (kind != "ext4" or journalled(device))


def journalled(device: str) -> bool:
    """Whether the ext4 on a block device has a journal."""
    try:
        return Path(f"/sys/fs/ext4/{device}/journal_task").read_text().strip().isdigit()
    except OSError:
        return False


@contextmanager
def places(wanted: Sequence[str], images: Path = Path("/var/tmp")) -> Iterator[list[Place]]:
    """Memory, and what was asked for: directories, and kinds of file systems. A kind is the host's own disk if that
    :func:`suits`, and otherwise one on a loop device whose image is in ``images``. Raises :class:`Impossible`."""
    with ExitStack() as ends:

        def inside(directory: Path) -> Path:
            return Path(ends.enter_context(tempfile.TemporaryDirectory(dir=directory, prefix="rdma-nfsd-bench-")))

        found = [Place(MEMORY, inside(_IN_MEMORY))]
        for each in wanted:
            ours = each in KINDS and not suits(each, images)
            above = ends.enter_context(loop(each, inside(images))) if ours else images if each in KINDS else Path(each)
            kind, device = file_system(above)
            same = sum(place.name.partition("-")[0] == kind for place in found)
            found.append(Place(f"{kind}-{same + 1}" if same else kind, inside(above), device, ours))
        yield found


@contextmanager
def loop(kind: str, directory: Path) -> Iterator[Path]:
    """A new file system on a loop device, mounted."""
    disk.own_mounts()
    image, path = directory / "image", directory / "disk"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE)
    device = disk.run("losetup", "--find", "--show", "--direct-io=on", image)
    try:
        disk.run(f"mkfs.{kind}", "-q", device)
        disk.run("mount", device, path)
    finally:
        disk.run("losetup", "--detach", device)  # when it is unmounted, if it is mounted
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=False)
