"""Fixtures for several files of tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.v4 import compound
from nfsd.vfs import recent_listings
from nfsd.vfs.child_events import ChildEvents
from tests.unit.recent_support import FILES
from tests.unit.vfs_support import directory_on


@pytest.fixture(params=[0, 1, 2])
def minor(request: Any) -> Any:
    """A minor version of NFSv4."""
    return request.param


@pytest.fixture(params=["disk", "memory"])
def kind(request: Any) -> Any:
    """A kind of file system (``vfs_support.directory_on``)."""
    return request.param


@pytest.fixture
def done_in_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The operations of NFSv4 that are carried out in Python, by number."""
    done: list[int] = []

    def carried_out(c, row, *arguments, original=compound.carry_out):  # type: ignore[no-untyped-def]
        done.append(row.number)
        return original(c, row, *arguments)

    monkeypatch.setattr(compound, "carry_out", carried_out)
    return done


@pytest.fixture(params=["disk", "memory"])
def files(request: Any, tmp_path: Path) -> Iterator[str]:
    """A directory of files of different sizes."""
    with directory_on(request.param, tmp_path) as path:
        for number in range(FILES):
            Path(path, f"file {number:02}").write_text("x" * number)
        yield path


@pytest.fixture
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of a directory is remembered until something speaks against it."""
    monkeypatch.setattr(recent_listings, "_LIFE", 3600.0)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard of what other processes do to files."""
    monkeypatch.setattr(ChildEvents, "heard", lambda self: [])
