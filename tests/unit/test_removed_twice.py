"""Files that are removed: much space is freed by a worker, not on the loop's thread."""

import contextlib
import os
import time

import pytest

from nfsd.vfs import closing
from tests.unit.test_nfs3_native import run
from tests.unit.test_nfs3_native_names import CREATE, REMOVE, creation, removal, status
from tests.unit.test_waiting_calls import on_disk, stalled, until, waiting


def descriptors(path):
    """How many there are of a file."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            found += os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)") == path
    return found


def test_nothing_is_left_to_the_loop_to_close(tmp_path):
    async def scenario(both, node):
        statistics, path = both.service.executor.statistics, os.path.join(both.path, "a")
        known = descriptors(path)
        async with stalled(both.service, both.root, tmp_path):
            for _ in range(2):
                both.native.send(REMOVE, removal(both.root, b"a"))
            await until(lambda: waiting(both) == 2 and statistics()["queued"] == 1)
            assert descriptors(path) == known + 2
            # From here on the loop does nothing, and the worker does both; or the first, if the other one has come in a
            # later turn of the loop: then it waits for the next train.
            expected = known + both.root.inode.serial.waited_for
            reading = os.open(str(tmp_path / "pipe"), os.O_RDONLY | os.O_NONBLOCK)
            end = time.monotonic() + 20
            while (left := descriptors(path)) != expected and time.monotonic() < end:
                time.sleep(0.001)  # noqa: ASYNC251 (see above)
            os.close(reading)
        statuses = {(await both.native.reply())[24:28] for _ in range(2)}
        assert statuses == {bytes(4), b"\0\0\0\2"}
        assert left == expected

    on_disk(tmp_path, scenario)


@pytest.mark.parametrize("holders", [1, 2])
@pytest.mark.parametrize("size", [0, 1 << 20, 3 << 20])
def test_the_loop_frees_little_in_memory(tmp_path, size, holders, monkeypatch):
    """What frees much is closed by a worker, whatever is known of the file; the rest at once."""

    async def scenario(both):
        later = []
        monkeypatch.setattr(closing, "on_close", later.append)
        assert status(await both.native.call(CREATE, creation(both.root, b"made"))) == bytes(4)
        path = os.path.join(both.path, "made")
        with open(path, "wb") as file:
            file.write(bytes(size))
        if holders == 2:
            os.link(path, os.path.join(both.path, "other"))
        for name in (b"made", b"other")[:holders]:
            assert not later
            assert status(await both.native.call(REMOVE, removal(both.root, name))) == bytes(4)
        assert len(later) == (2 if size > 1 << 20 else 0)

    run("memory", tmp_path, scenario)
