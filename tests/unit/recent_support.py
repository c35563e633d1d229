"""Directories that are listed again and again, and what may be done to their files meanwhile."""

import asyncio
import os
import stat
import time

from tests.unit.vfs_support import ROOT

FILES = 40


async def listing(service, directory, *, credential=ROOT, limit=4096, plus=True):
    entries, cookie, end = [], 0, False
    while not end:
        page = await service.readdir(credential, directory, cookie, limit=limit, plus=plus)
        entries += page.entries
        end = page.eof
        cookie = entries[-1].cookie if entries else 0
    return entries


def recalled(service):
    return service.listings.recent.recalled


async def remembered(service, directory, **options):
    """A listing of which something has come from memory."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = recalled(service)
        entries = await listing(service, directory, **options)
        if recalled(service) > before:
            return entries
        await asyncio.sleep(0.01)
    raise AssertionError("nothing is remembered")


def agree(entries, path):
    """These are the entries of a directory, as the kernel describes them now."""
    found = {os.fsdecode(entry.name): entry for entry in entries}
    assert len(found) == len(entries)
    assert set(found) == {".", "..", *os.listdir(path)}
    for name in os.listdir(path):
        status, told = os.lstat(os.path.join(path, name)), found[name].attributes
        assert found[name].handle is not None
        assert (told.size, told.mode) == (status.st_size, stat.S_IMODE(status.st_mode)), name
        assert (told.nlink, told.uid, told.gid) == (status.st_nlink, status.st_uid, status.st_gid), name
        assert told.fileid == status.st_ino, name
        for ours, theirs in ((told.mtime, status.st_mtime_ns), (told.ctime, status.st_ctime_ns)):
            assert ours.seconds * 10**9 + ours.nanoseconds == theirs, name


def written(path):
    with open(path, "a") as file:
        file.write("more")


def truncated(path):
    os.truncate(path, 1)


def replaced(path):
    with open(path + " new", "w") as file:
        file.write("another")
    os.rename(path + " new", path)


def made_anew(path):
    os.unlink(path)
    with open(path, "w") as file:
        file.write("reborn")


CHANGES = {
    "write": written,
    "truncate": truncated,
    "chmod": lambda path: os.chmod(path, 0o7601),
    "chown": lambda path: os.chown(path, 4711, 4712),
    "utimes": lambda path: os.utime(path, ns=(1, 2)),
    "xattr": lambda path: os.setxattr(path, "user.some", b"value"),
    "unlink": os.unlink,
    "rename": lambda path: os.rename(path, path + " renamed"),
    "replace": replaced,
    "make anew": made_anew,
    "link": lambda path: os.link(path, path + " linked"),
    "other": lambda path: os.mkdir(path + " directory"),
}
