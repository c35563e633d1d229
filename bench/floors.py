"""What calls cost where there is no server: data between a socket and a file, and attributes by name.

Owns the floors that goals are shown beside: no server that does the same work costs less. Imports :mod:`bench.limits`,
whose programs they are, and :mod:`bench.machine`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from bench import limits
from bench.fixtures import COLD, MANY, common, uncache
from bench.machine import REPLY, REQUEST, served
from bench.places import Place
from bench.scenarios import Scenario
from nfsd.vfs import uring

WRITE = 144, 164
"""Octets of a WRITE's call before its data, and of its reply, about."""
STORED = {
    "store_4k_us": (4096, 32, False, 1),
    "store_4k_by_worker_us": (4096, 32, True, 1),
    "store_1m_us": (1 << 20, 4, False, 1),
    "store_1m_by_worker_us": (1 << 20, 4, True, 1),
    "store_1mx4_us": (1 << 20, 4, False, 4),
    "store_1mx4_by_worker_us": (1 << 20, 4, True, 4),
}
"""WRITEs whose floor is measured: octets, how many are outstanding, whether another thread waits for the file, and on
how many connections, each of which has a process."""
READ, OUTSTANDING = 4096, 32
"""Octets of a READ's data, and how many are outstanding."""


def floors(place: Place, seconds: float, chosen: Iterable[Scenario]) -> dict[str, float]:
    """Those of the chosen scenarios on a place: CPU in µs, and READs per second of what is not cached."""
    needs = {need for scenario in chosen for need in scenario.needs}
    found: dict[str, float] = {}
    if MANY in needs:
        found["look_us"] = looked(common(MANY, place.path))
    if place.device:
        found |= {name: stored(place, place.path / "limits", *how, seconds) for name, how in STORED.items()}
    if place.device and COLD in needs and not uring.hindrance():
        found["fetch_us"], found["fetch_per_s"] = fetched(place, common(COLD, place.path), seconds)
    return found


def stored(
    place: Place, file: Path, size: int, outstanding: int, by_worker: bool, connections: int, seconds: float
) -> float:
    """CPU microseconds of one WRITE's octets on their way from a socket into a cached file, if nothing else is done."""
    room = file.stat().st_size
    with file.open("rb+") as target:

        def serve(end: int) -> None:
            limits.store(end, target.fileno(), size, *WRITE, room, by_worker)

        asked = WRITE[0] + size, WRITE[1], outstanding, seconds
        return served(serve, *asked, place.kernel_seconds, connections)[0]


def fetched(place: Place, file: Path, seconds: float) -> tuple[float, float]:
    """CPU microseconds of one READ of 4 KiB that is not cached, from the disk to a socket, and how many a second."""
    uncache(file)
    room = file.stat().st_size
    with file.open("rb") as source:

        def serve(end: int) -> None:
            limits.fetch(end, source.fileno(), READ, REQUEST, REPLY, room)

        return served(serve, REQUEST, REPLY, OUTSTANDING, seconds, place.kernel_seconds)


def looked(directory: Path) -> float:
    """CPU microseconds of the attributes of one of many files, by its name."""
    limits.look(str(directory))
    begun = time.process_time()
    count = sum(limits.look(str(directory)) for _ in range(3))
    return (time.process_time() - begun) / count * 1e6
