"""Run in the guest, on a mount of NFSv4.2: holes, space, copies, clones and extended attributes, as programs use them.

``sparse_and_copies.py DIRECTORY``: raises AssertionError or OSError where the mount does not do what a local file
system would; prints ``done`` at the end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable

K64 = 1 << 16
MIB = 1 << 20
FICLONE = 0x40049409


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def put(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        os.fsync(file.fileno())


def refused(code: int, function: Callable[..., object], *arguments: object) -> None:
    found = 0
    try:
        function(*arguments)
    except OSError as error:
        found = error.errno or 0
    assert found == code, (function, found)


def holes(directory: str) -> None:
    """SEEK."""
    path = f"{directory}/sparse"
    with open(path, "wb") as file:
        os.pwrite(file.fileno(), b"a" * K64, 0)
        os.pwrite(file.fileno(), b"b" * K64, 4 * K64)
        file.truncate(8 * K64)
        os.fsync(file.fileno())
    descriptor = os.open(path, os.O_RDONLY)
    assert os.lseek(descriptor, 0, os.SEEK_HOLE) == K64
    assert os.lseek(descriptor, K64, os.SEEK_DATA) == 4 * K64
    assert os.lseek(descriptor, 4 * K64, os.SEEK_HOLE) == 5 * K64
    refused(errno.ENXIO, os.lseek, descriptor, 5 * K64, os.SEEK_DATA)
    refused(errno.ENXIO, os.lseek, descriptor, 9 * K64, os.SEEK_HOLE)
    os.close(descriptor)


def space(directory: str) -> None:
    """ALLOCATE and DEALLOCATE."""
    path = f"{directory}/space"
    put(path, b"x" * MIB)
    subprocess.run(["fallocate", "-l", str(4 * MIB), path], check=True)
    assert os.stat(path).st_size == 4 * MIB
    assert content(path) == b"x" * MIB + bytes(3 * MIB)
    subprocess.run(["fallocate", "-p", "-o", str(K64), "-l", str(K64), path], check=True)
    assert content(path) == b"x" * K64 + bytes(K64) + b"x" * (MIB - 2 * K64) + bytes(3 * MIB)


def copies(directory: str) -> None:
    """COPY."""
    data = os.urandom(20 * MIB + 7)
    put(f"{directory}/source", data)
    source = os.open(f"{directory}/source", os.O_RDONLY)
    target = os.open(f"{directory}/copied", os.O_RDWR | os.O_CREAT)
    done = 0
    while done < len(data):
        count = os.copy_file_range(source, target, len(data) - done)
        assert count > 0
        done += count
    os.fsync(target)
    assert content(f"{directory}/copied") == data
    os.close(source)
    os.close(target)


def clones(directory: str) -> None:
    """CLONE."""
    source = os.open(f"{directory}/source", os.O_RDONLY)
    target = os.open(f"{directory}/cloned", os.O_RDWR | os.O_CREAT)
    fcntl.ioctl(target, FICLONE, source)
    assert content(f"{directory}/cloned") == content(f"{directory}/source")
    os.close(source)
    os.close(target)
    subprocess.run(["cp", "--reflink=always", f"{directory}/source", f"{directory}/cloned again"], check=True)
    assert content(f"{directory}/cloned again") == content(f"{directory}/source")


def listed(path: str, *, follow_symlinks: bool = True) -> list[str]:
    """The names of the user's attributes. The client itself adds one that stands for the access control list."""
    return [name for name in os.listxattr(path, follow_symlinks=follow_symlinks) if name != "system.nfs4_acl"]


def attributes(directory: str) -> None:
    """GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR."""
    os.mkdir(f"{directory}/tree")
    put(f"{directory}/tree/file", b"")
    os.symlink("file", f"{directory}/tree/link")
    for path in (f"{directory}/tree", f"{directory}/tree/file"):
        os.setxattr(path, "user.colour", b"blue")
        os.setxattr(path, "user.large", b"v" * 3000)
        assert os.getxattr(path, "user.colour") == b"blue"
        assert sorted(listed(path)) == ["user.colour", "user.large"]
        refused(errno.EEXIST, os.setxattr, path, "user.colour", b"red", os.XATTR_CREATE)
        refused(errno.ENODATA, os.setxattr, path, "user.none", b"red", os.XATTR_REPLACE)
        refused(errno.ENODATA, os.getxattr, path, "user.none")
        os.removexattr(path, "user.colour")
        assert listed(path) == ["user.large"]
    for number in range(200):
        os.setxattr(f"{directory}/tree/file", f"user.{number:030}", b"")
    assert len(listed(f"{directory}/tree/file")) == 201
    # Archiving programs list the attributes of everything there is, links included.
    assert listed(f"{directory}/tree/link", follow_symlinks=False) == []
    subprocess.run(["cp", "-a", f"{directory}/tree", f"{directory}/archived"], check=True)
    assert os.getxattr(f"{directory}/archived/file", "user.large") == b"v" * 3000
    assert len(listed(f"{directory}/archived/file")) == 201


if __name__ == "__main__":
    for step in (holes, space, copies, clones, attributes):
        step(sys.argv[1])
        print(step.__name__, flush=True)
    print("done", flush=True)
