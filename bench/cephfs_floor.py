"""What Ceph's client library takes by itself: what a call to a gateway comes to, in a loop, on one thread of a process
that does nothing else. The library's threads count.

    python -m bench.cephfs_floor CONF ROOT CALL SECONDS

prints CPU microseconds for each call, and calls per second. Imports the extension over the library.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.calls import DATA, FILE_SIZE

SIZES: Final = {"read-4k-32": 4096, "write-4k-32": 4096, "read-1m-4": 1 << 20, "write-1m-4": 1 << 20}


def measured(conf: Path, root: str, call: str, seconds: float) -> dict[str, float]:
    """Figures of such a process."""
    command = [sys.executable, "-m", "bench.cephfs_floor", str(conf), root, call, str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def steps(client: Any, call: str) -> Iterator[Callable[[], object]]:
    """Calls, each as a function."""
    directory = client.root()[0]
    if call in SIZES:
        size = SIZES[call]
        file = client.lookup(None, directory, b"data")[0]
        opened = client.open(None, file, 3)
        places = [random.randrange(FILE_SIZE // size) * size for _ in range(1024)]
        sink, source = memoryview(bytearray(size)), memoryview(DATA)[:size]
        for place in itertools.cycle(places):
            if call.startswith("read"):
                yield partial(client.read, opened, place, sink)
            else:
                yield partial(client.write, opened, place, source)
    for number in itertools.count():
        name = b"floor %d %d" % (os.getpid(), number % 1024)  # the process before may have left one
        yield partial(client.make, None, directory, name, 0o100644, None, (0, 0))
        yield partial(client.lookup, None, directory, name)
        yield partial(client.remove, None, directory, name, False)


def main() -> None:
    """Measure."""
    conf, root, call, seconds = sys.argv[1:]
    mounting = importlib.import_module("nfsd.backends.cephfs.mounting")
    client = mounting.mounted(mounting.Settings(config=conf, root=root))
    try:
        count, begun, used = 0, 0.0, 0.0
        end = time.monotonic() + 0.3  # to get going
        for step in steps(client, call):
            step()
            count += 1
            now = time.monotonic()
            if now < end:
                continue
            usage = resource.getrusage(resource.RUSAGE_SELF)
            if begun:
                used = usage.ru_utime + usage.ru_stime - used
                print(json.dumps({"cpu_us": used / count * 1e6, "calls_per_s": count / (now - begun)}))
                return
            count, begun, used, end = 0, now, usage.ru_utime + usage.ru_stime, now + float(seconds)
    finally:
        client.end()


if __name__ == "__main__":
    main()
