"""The targets, and the inputs that the repository keeps for each of them.

A kept corpus is one file, ``corpus/TARGET.bin``: inputs, shortest first, each behind its length in four octets. (As a
file for each input they would be several thousand files.) Broken inputs of the past are in ``regressions/TARGET-*``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

HERE = Path(__file__).parent
KEPT = HERE / "corpus"
REGRESSIONS = HERE / "regressions"


class Checked(Protocol):
    """A target that has been set up."""

    def one(self, data: bytes) -> None:
        """Check one input. Raises whatever is wrong."""

    def close(self) -> None:
        """Let go of what was set up."""


@dataclass(frozen=True)
class Target:
    """How to set a target up. Nothing of it is imported before."""

    name: str
    largest: int
    """Octets of an input."""
    make: Callable[[], Checked]
    room: int
    """Octets of its kept corpus."""

    def __call__(self) -> Checked:
        return self.make()

    def keep(self, directory: Path) -> str:
        """Keep the inputs in ``directory``, as far as there is room."""
        inputs = sorted((path.read_bytes() for path in directory.iterdir()), key=lambda data: (len(data), data))
        kept, size = [], 0
        for data in inputs:
            if size + 4 + len(data) <= self.room:
                size += 4 + len(data)
                kept.append(len(data).to_bytes(4, "big") + data)
        if not kept:
            raise FileNotFoundError(f"no inputs in {directory}")
        KEPT.mkdir(exist_ok=True)
        (KEPT / f"{self.name}.bin").write_bytes(b"".join(kept))
        return f"{len(kept)} of {len(inputs)} inputs, {size} octets"


def _transport(version: int) -> Checked:
    from tests.fuzz.transport import Target as Transport

    return Transport(version)


def _iwarp() -> Checked:
    from tests.fuzz.iwarp import Target as Iwarp

    return Iwarp()


def _calls() -> Checked:
    from tests.fuzz.calls import Target as Calls

    return Calls()


def _compounds() -> Checked:
    from tests.fuzz.compounds import Target as Compounds

    return Compounds()


def _callers() -> Checked:
    from tests.fuzz.callers import Target as Callers

    return Callers()


def _gss() -> Checked:
    from tests.fuzz.gss import Target as Gss

    return Gss()


def _protected() -> Checked:
    from tests.fuzz.protected import Target as Protected

    return Protected()


TARGETS = {
    target.name: target
    for target in (
        Target("version_one", 6000, lambda: _transport(1), 120_000),
        Target("version_two", 6000, lambda: _transport(2), 120_000),
        Target("iwarp", 2000, _iwarp, 100_000),
        Target("calls", 600, _calls, 60_000),
        Target("compounds", 400, _compounds, 60_000),
        Target("callers", 300, _callers, 40_000),
        Target("gss", 200, _gss, 20_000),
        Target("protected", 100, _protected, 20_000),
    )
}


def kept(name: str) -> Iterator[bytes]:
    """The kept inputs of a target."""
    path = KEPT / f"{name}.bin"
    data = path.read_bytes() if path.exists() else b""
    while data:
        size = int.from_bytes(data[:4], "big")
        yield data[4 : 4 + size]
        data = data[4 + size :]


def regressions(name: str) -> Iterator[tuple[str, bytes]]:
    """What once broke a target, by file name."""
    for path in sorted(REGRESSIONS.glob(f"{name}-*")):
        yield path.name, path.read_bytes()


def stored(name: str) -> Iterator[tuple[str, bytes]]:
    """Everything to begin from: kept inputs, regressions and seeds."""
    from tests.fuzz.seeds import SEEDS

    for data in [*kept(name), *(data for _, data in regressions(name)), *SEEDS[name]()]:
        yield hashlib.sha1(data).hexdigest(), data
