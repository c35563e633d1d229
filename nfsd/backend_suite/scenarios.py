"""What clients may rely on in every export, whatever its files are in: the backends' conformance suite.

Each scenario works below an empty directory of a :class:`Trial`, as a client of NFS. It raises AssertionError where the
backend, or the server above it, has not kept the contract (:mod:`nfsd.backends.interface`). :data:`SCENARIOS` has those
for any backend, :data:`WRITING` those for backends that can be written to.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Final

from nfsd.client import FileSystem

MANY: Final = 1000
"""Names in a directory that takes many calls to list."""
BLOCK: Final = 1 << 16


class Trial:
    """One scenario's place in an export."""

    def __init__(
        self, fs: FileSystem, place: str, *, hard_links: bool = True, symlinks: bool = True, modes: bool = True,
        any_names: bool = True,
    ) -> None:  # fmt: skip
        """``place``: a directory, empty where the backend can be written to. The rest: what the backend has."""
        self.fs = fs
        self.place = place
        self.hard_links = hard_links
        self.symlinks = symlinks
        self.modes = modes
        self.any_names = any_names

    def path(self, *names: str) -> str:
        """A path below the place."""
        return "/".join((self.place, *names)).strip("/")


async def refused(awaitable: Awaitable[object], *numbers: int) -> None:
    """It must fail with one of these errnos."""
    wanted = ", ".join(errno.errorcode[number] for number in numbers)
    try:
        await awaitable
    except OSError as error:
        if error.errno in numbers:
            return
        raise AssertionError(f"{error}, and not {wanted}") from error
    raise AssertionError(f"it was not refused with {wanted}")


# -- any backend ---------------------------------------------------------------------------------------------------
async def what_is_listed_can_be_found(trial: Trial) -> None:
    """Each name is that of the file whose attributes are listed with it."""
    found = 0
    async for entry in trial.fs.scandir(trial.place):
        looked_up = await trial.fs.lstat(trial.path(entry.name))
        assert entry.stat is None or entry.stat.st_ino == looked_up.st_ino
        assert stat.S_ISDIR(looked_up.st_mode) == entry.is_dir()
        found += 1
        if found == MANY:
            break


async def names_that_are_not_there_are_not_found(trial: Trial) -> None:
    """ENOENT, and ENOTDIR below what is no directory."""
    await refused(trial.fs.stat(trial.path("no such name")), errno.ENOENT)
    async for entry in trial.fs.scandir(trial.place):
        if entry.is_file():
            await refused(trial.fs.stat(trial.path(entry.name, "below")), errno.ENOTDIR)
            break


async def files_are_as_long_as_they_say(trial: Trial) -> None:
    """What is read has as many octets as the size; behind the end there are none."""
    async for entry in trial.fs.scandir(trial.place):
        if not entry.is_file():
            continue
        size = (await trial.fs.stat(trial.path(entry.name))).st_size
        if size > 1 << 24:
            continue
        assert len(await trial.fs.read_bytes(trial.path(entry.name))) == size
        async with trial.fs.open(trial.path(entry.name), "rb") as file:
            assert await file.pread(100, size) == b""
            assert await file.pread(100, size + (1 << 40)) == b""
            if size > 2:
                assert len(await file.pread(100, size - 2)) == 2
        break


async def the_space_is_told(trial: Trial) -> None:
    """Nothing is larger than the whole."""
    space = await trial.fs.space(trial.place)
    assert space.available is not None
    assert space.total is not None
    assert 0 <= space.available <= space.total


# -- what can be written to ----------------------------------------------------------------------------------------
async def data_is_read_as_it_was_written(trial: Trial) -> None:
    """At once and after the file was opened again; over the end, behind it, and in the middle."""
    fs, path = trial.fs, trial.path("f")
    whole = bytes(range(256)) * (3 * BLOCK // 256)
    assert await fs.write_bytes(path, whole) == len(whole)
    assert await fs.read_bytes(path) == whole
    async with fs.open(path, "r+b") as file:
        await file.pwrite(b"middle", BLOCK - 3)
        await file.pwrite(b"end", len(whole) + 5)
        await file.flush()
    expected = bytearray(whole) + b"\0" * 5 + b"end"
    expected[BLOCK - 3 : BLOCK + 3] = b"middle"
    assert await fs.read_bytes(path) == expected
    assert (await fs.stat(path)).st_size == len(expected)


async def sizes_are_set(trial: Trial) -> None:
    """Shorter and longer; what is new is zeros."""
    fs, path = trial.fs, trial.path("f")
    await fs.write_bytes(path, b"x" * 100)
    await fs.truncate(path, 10)
    await fs.truncate(path, 20)
    assert await fs.read_bytes(path) == b"x" * 10 + b"\0" * 10
    await fs.truncate(path, 0)
    assert (await fs.stat(path)).st_size == 0


async def attributes_are_set(trial: Trial) -> None:
    """Modes and times; ctime shows it."""
    fs, path = trial.fs, trial.path("f")
    await fs.write_bytes(path, b"")
    before = await fs.stat(path)
    await fs.chmod(path, 0o640)
    await fs.utime(path, ns=(1_000_000_007, 2_000_000_009))
    after = await fs.stat(path)
    assert after.st_mode & 0o7777 == (0o640 if trial.modes else before.st_mode & 0o7777)
    assert (after.st_atime_ns, after.st_mtime_ns) == (1_000_000_007, 2_000_000_009)
    assert after.st_ctime_ns is not None
    assert before.st_ctime_ns is not None
    assert after.st_ctime_ns >= before.st_ctime_ns


async def names_are_made_and_removed(trial: Trial) -> None:
    """Directories only when they are empty, and each kind by its own operation."""
    fs = trial.fs
    await fs.mkdir(trial.path("d"))
    await fs.write_bytes(trial.path("d", "f"), b"1")
    await refused(fs.mkdir(trial.path("d")), errno.EEXIST)
    await refused(fs.rmdir(trial.path("d")), errno.ENOTEMPTY)
    await refused(fs.remove(trial.path("d")), errno.EISDIR, errno.EPERM)
    await refused(fs.rmdir(trial.path("d", "f")), errno.ENOTDIR)
    await refused(fs.remove(trial.path("none")), errno.ENOENT)
    await fs.remove(trial.path("d", "f"))
    await fs.rmdir(trial.path("d"))
    assert await fs.listdir(trial.place) == []


async def names_may_have_any_octets(trial: Trial) -> None:
    """All but slashes and NULs, up to 255 of them."""
    names = ["-", "ä", " ", "...", "x" * 255]
    no_text = ["a\nb", os.fsdecode(b"\xff\xfe")]
    if trial.any_names:
        names += no_text
    else:
        for name in no_text:
            await refused(trial.fs.write_bytes(trial.path(name), b""), errno.EINVAL)
    for name in names:
        await trial.fs.write_bytes(trial.path(name), name.encode("utf-8", "surrogateescape"))
    assert sorted(await trial.fs.listdir(trial.place)) == sorted(names)
    for name in names:
        assert await trial.fs.read_bytes(trial.path(name)) == name.encode("utf-8", "surrogateescape")
    await refused(trial.fs.write_bytes(trial.path("x" * 256), b""), errno.ENAMETOOLONG)


async def files_are_renamed(trial: Trial) -> None:
    """In a directory, to another one, over what is there; a file stays the file that it is."""
    fs = trial.fs
    await fs.mkdir(trial.path("d"))
    await fs.write_bytes(trial.path("a"), b"a")
    await fs.write_bytes(trial.path("d", "b"), b"b")
    number = (await fs.stat(trial.path("a"))).st_ino
    await fs.rename(trial.path("a"), trial.path("c"))
    await refused(fs.stat(trial.path("a")), errno.ENOENT)
    await fs.rename(trial.path("c"), trial.path("d", "b"))
    assert await fs.read_bytes(trial.path("d", "b")) == b"a"
    assert (await fs.stat(trial.path("d", "b"))).st_ino == number
    assert sorted(await fs.listdir(trial.place)) == ["d"]
    await fs.rename(trial.path("d", "b"), trial.path("d", "b"))
    assert await fs.listdir(trial.path("d")) == ["b"]
    await refused(fs.rename(trial.path("none"), trial.path("x")), errno.ENOENT)


async def directories_are_renamed(trial: Trial) -> None:
    """With what is in them; over empty ones only, and never below themselves."""
    fs = trial.fs
    await fs.makedirs(trial.path("a", "b"))
    await fs.write_bytes(trial.path("a", "b", "f"), b"deep")
    await fs.makedirs(trial.path("c", "full"))
    await fs.write_bytes(trial.path("file"), b"")
    await refused(fs.rename(trial.path("a"), trial.path("a", "b", "x")), errno.EINVAL)
    await refused(fs.rename(trial.path("a"), trial.path("c")), errno.ENOTEMPTY, errno.EEXIST)
    await refused(fs.rename(trial.path("a"), trial.path("file")), errno.ENOTDIR, errno.EEXIST)
    await refused(fs.rename(trial.path("file"), trial.path("a")), errno.EISDIR, errno.EEXIST)
    await fs.rename(trial.path("a"), trial.path("c", "full"))
    assert await fs.read_bytes(trial.path("c", "full", "b", "f")) == b"deep"
    assert sorted(await fs.listdir(trial.place)) == ["c", "file"]


async def files_have_further_names(trial: Trial) -> None:
    """Links are counted; the last name that goes takes the file with it."""
    fs = trial.fs
    await fs.write_bytes(trial.path("a"), b"a")
    if not trial.hard_links:
        await refused(fs.link(trial.path("a"), trial.path("b")), errno.EOPNOTSUPP, errno.ENOTSUP)
        return
    await fs.link(trial.path("a"), trial.path("b"))
    assert (await fs.stat(trial.path("a"))).st_nlink == 2
    assert (await fs.stat(trial.path("a"))).st_ino == (await fs.stat(trial.path("b"))).st_ino
    await refused(fs.link(trial.path("a"), trial.path("b")), errno.EEXIST)
    await fs.remove(trial.path("a"))
    assert await fs.read_bytes(trial.path("b")) == b"a"
    assert (await fs.stat(trial.path("b"))).st_nlink == 1


async def links_are_read_as_they_were_made(trial: Trial) -> None:
    """Symbolic ones, wherever they lead."""
    fs, text = trial.fs, "some/../where/" + "x" * 200
    if not trial.symlinks:
        await refused(fs.symlink(text, trial.path("l")), errno.EOPNOTSUPP, errno.ENOTSUP)
        return
    await fs.symlink(text, trial.path("l"))
    assert await fs.readlink(trial.path("l")) == text
    assert stat.S_ISLNK((await fs.lstat(trial.path("l"))).st_mode)


async def large_directories_are_listed_whole(trial: Trial) -> None:
    """Each name once, though others come and go meanwhile."""
    fs = trial.fs
    names = {f"file-{number:05}" for number in range(MANY)}
    for start in range(0, MANY, 100):
        await asyncio.gather(*(fs.write_bytes(trial.path(name), b"") for name in sorted(names)[start : start + 100]))
    seen = []
    async for entry in fs.scandir(trial.place):
        seen.append(entry.name)
        if len(seen) == MANY // 2:
            await fs.write_bytes(trial.path("new"), b"")
            gone = seen[0]
            await fs.remove(trial.path(gone))
    assert len(seen) == len(set(seen))
    assert names <= set(seen)
    assert set(await fs.listdir(trial.place)) == (names | {"new"}) - {gone}


async def an_open_file_outlives_its_name(trial: Trial) -> None:
    """NFSv4 clients that hold it open read and write it until they close it; NFSv3's rename it away instead."""
    if trial.fs.version == "3":
        return
    await trial.fs.write_bytes(trial.path("f"), b"")
    async with trial.fs.open(trial.path("f"), "r+b") as file:
        await file.pwrite(b"still here", 0)
        await file.flush()
        await trial.fs.remove(trial.path("f"))
        assert await file.pread(100, 0) == b"still here"
    await refused(trial.fs.stat(trial.path("f")), errno.ENOENT)


Scenario = Callable[[Trial], Awaitable[None]]
SCENARIOS: Final[tuple[Scenario, ...]] = (
    what_is_listed_can_be_found,
    names_that_are_not_there_are_not_found,
    files_are_as_long_as_they_say,
    the_space_is_told,
)
WRITING: Final[tuple[Scenario, ...]] = (
    data_is_read_as_it_was_written,
    sizes_are_set,
    attributes_are_set,
    names_are_made_and_removed,
    names_may_have_any_octets,
    files_are_renamed,
    directories_are_renamed,
    files_have_further_names,
    links_are_read_as_they_were_made,
    large_directories_are_listed_whole,
    an_open_file_outlives_its_name,
)
