"""A file that is removed twice at once: its space is freed by a worker, not on the loop's thread."""

import contextlib
import os
import time

from tests.unit.test_nfs3_native_names import REMOVE, removal
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
                both.direct.send(REMOVE, removal(both.root, b"a"))
            await until(lambda: waiting(both) == 2 and statistics()["queued"] == 1)
            assert descriptors(path) == known + 2
            # From here on the loop does nothing, and the worker does both.
            reading = os.open(str(tmp_path / "pipe"), os.O_RDONLY | os.O_NONBLOCK)
            while statistics()["queued"] or statistics()["running"]:
                time.sleep(0.001)  # noqa: ASYNC251 (see above)
            left = descriptors(path)
            os.close(reading)
        statuses = {(await both.direct.reply())[24:28] for _ in range(2)}
        assert statuses == {bytes(4), b"\0\0\0\2"}
        assert left == known

    on_disk(tmp_path, scenario)
