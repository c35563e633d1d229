"""What every run of the test suite has."""

import logging
from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.rfc.plugin"]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Programs set up logging for their process: those that a test runs in this one must not, for the next test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
