"""What Ceph's client library takes by itself: what a call to a gateway comes to, in a loop, on one thread of a process
that does nothing else. The library's threads count. And what it takes together with TCP sockets, into which the data
of a READ go, one socket after the other, and out of which those of a WRITE come: a gateway does both for each call.

    python -m bench.cephfs_floor CONF ROOT CALL FLOOR CONNECTIONS SECONDS

prints CPU microseconds for each call, and calls per second. Imports the extension over the library.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.calls import DATA, FILE_SIZE

SIZES: Final = {"read-4k-32": 4096, "write-4k-32": 4096, "read-1m-4": 1 << 20, "write-1m-4": 1 << 20}


ALONE: Final = "library alone"
SOCKET: Final = "library and a socket"
FLOORS: Final = (ALONE, SOCKET)
PATIENCE: Final = 10.0
"""Seconds to wait for a connection."""


def floors(call: str, connections: int) -> tuple[str, ...]:
    """Those of a call: only data go through sockets, and only there does it matter how many there are."""
    if call not in SIZES:
        return (ALONE,)
    return FLOORS if connections == 1 else (SOCKET,)


def measured(conf: Path, root: str, call: str, floor: str, connections: int, seconds: float) -> dict[str, float]:
    """Figures of such a process."""
    command = [sys.executable, "-m", "bench.cephfs_floor", str(conf), root, call, floor, str(connections), str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def peers(call: str, count: int) -> Iterator[list[socket.socket]]:
    """TCP connections to a process that takes what comes, or sends without end."""
    with ExitStack() as ends:
        listener = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(PATIENCE)
        child = os.fork()
        if child == 0:
            with suppress(OSError):
                entertain(listener, call, count)
            os._exit(0)
        ends.callback(os.waitpid, child, 0)
        yield [ends.enter_context(socket.create_connection(listener.getsockname())) for _ in range(count)]


def entertain(listener: socket.socket, call: str, count: int) -> None:
    """What the other process does, until its peer goes."""
    takes, room = call.startswith("read"), bytearray(SIZES[call])
    with ExitStack() as ends:
        ready = ends.enter_context(selectors.DefaultSelector())
        for _ in range(count):
            other = ends.enter_context(listener.accept()[0])
            other.setblocking(False)
            ready.register(other, selectors.EVENT_READ if takes else selectors.EVENT_WRITE, other)
        while all(key.data.recv_into(room) if takes else key.data.send(room) for key, _ in ready.select()):
            pass


def through(call: str, step: Callable[[], object], data: memoryview, sock: socket.socket) -> None:
    """A call, with its data on their way from or to the socket."""
    if call.startswith("read"):
        step()
        sock.sendall(data)
    else:
        sock.recv_into(data, 0, socket.MSG_WAITALL)
        step()


def steps(client: Any, call: str, socks: list[socket.socket]) -> Iterator[Callable[[], object]]:
    """Calls, each as a function."""
    directory = client.root()[0]
    if call in SIZES:
        size = SIZES[call]
        file = client.lookup(None, directory, b"data")[0]
        opened = client.open(None, file, 3)
        places = [random.randrange(FILE_SIZE // size) * size for _ in range(1024)]
        data = memoryview(bytearray(DATA[:size]))
        move = client.read if call.startswith("read") else client.write
        for place, sock in zip(itertools.cycle(places), itertools.cycle(socks or [None])):
            step = partial(move, opened, place, data)
            yield step if sock is None else partial(through, call, step, data, sock)
    for number in itertools.count():
        name = b"floor %d %d" % (os.getpid(), number % 1024)  # the process before may have left one
        yield partial(client.make, None, directory, name, 0o100644, None, (0, 0))
        yield partial(client.lookup, None, directory, name)
        yield partial(client.remove, None, directory, name, False)


def main() -> None:
    """Measure what the command line says."""
    conf, root, call, floor, connections, seconds = sys.argv[1:]
    with ExitStack() as ends:
        # Before the library has threads, since this forks.
        socks = ends.enter_context(peers(call, int(connections))) if floor == SOCKET else []
        run(conf, root, call, float(seconds), socks)


def run(conf: str, root: str, call: str, seconds: float, socks: list[socket.socket]) -> None:
    """Print the figures."""
    mounting = importlib.import_module("nfsd.backends.cephfs.mounting")
    client = mounting.mounted(mounting.Settings(config=conf, root=root))
    try:
        count, begun, used = 0, 0.0, 0.0
        end = time.monotonic() + 0.3  # to get going
        for step in steps(client, call, socks):
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
            count, begun, used, end = 0, now, usage.ru_utime + usage.ru_stime, now + seconds
    finally:
        client.end()


if __name__ == "__main__":
    main()
