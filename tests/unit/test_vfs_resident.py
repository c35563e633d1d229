"""Which reads start no I/O: those of data in memory up to the next read-ahead, or of data that stands alone."""

import os

import pytest

from nfsd.vfs.resident import remember, resident

KNOWN = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= (6, 5)
"""Whether the kernel has cachestat(2); without it everything counts as there."""
MIB = 1 << 20


@pytest.fixture
def half_there(tmp_path):
    """A descriptor of 4 MiB, of which the first has just been written, and the last page; the others are holes, which
    nobody has read."""
    path = tmp_path / "data"
    with path.open("wb") as file:
        file.write(bytes(MIB))
        file.seek(4 * MIB - 4096)
        file.write(bytes(4096))
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("offset", "size", "there"),
    [
        (0, 4096, True),
        (5, 65536, True),
        (MIB - 4096, 4096, True),  # nothing behind it: no mark of reading ahead
        (MIB - 8192, 4096, False),  # the page behind it may be the last of what was read ahead
        (MIB - 4096, 8192, False),
        (2 * MIB, 4096, False),
        (2 * MIB, 0, True),
        (4 * MIB - 4096, 4096, True),
        (4 * MIB - 4096, 65536, True),  # past the end there is nothing to be read
        (4 * MIB - 8192, 65536, False),
        (5 * MIB, 4096, True),
        ((1 << 63) - 1, 1, True),
    ],
)
def test_what_is_in_memory(half_there, offset, size, there):
    assert resident(half_there, offset, size) == (there or not KNOWN)


@pytest.mark.skipif(not KNOWN, reason="the kernel has no cachestat(2)")
def test_what_the_kernel_does_not_tell_is_not_taken_for_known():
    assert not resident(-1, 0, 4096)


@pytest.mark.skipif(not KNOWN, reason="the kernel has no cachestat(2)")
def test_what_has_been_read_needs_nothing_behind_it(half_there):
    inside = MIB - 16384, 4096
    assert not resident(half_there, *inside, file=7)
    remember(7, *inside, False)
    assert resident(half_there, *inside, file=7)
    assert not resident(half_there, *inside, file=8)
    assert not resident(half_there, MIB - 12288, 4096, file=7)
    assert not resident(half_there, MIB - 16384, 8192, file=7)


@pytest.mark.skipif(not KNOWN, reason="the kernel has no cachestat(2)")
def test_what_has_been_read_and_is_gone_is_not_there(half_there):
    remember(7, 2 * MIB, 4096, False)
    assert not resident(half_there, 2 * MIB, 4096, file=7)


@pytest.mark.skipif(not KNOWN, reason="the kernel has no cachestat(2)")
def test_what_a_worker_may_have_read_ahead_is_as_if_never_read(half_there):
    for page in range(MIB - 65536, MIB, 4096):
        remember(7, page, 4096, False)
    remember(7, MIB - 65536, 4096, True)
    assert resident(half_there, MIB - 65536, 4096, file=7)
    assert not resident(half_there, MIB - 32768, 4096, file=7)
