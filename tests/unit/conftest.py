"""Fixtures for several files of tests."""

from typing import Any

import pytest

from nfsd.v4 import compound


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
