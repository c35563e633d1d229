"""What every run of the test suite has."""

import gc
import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest

from rpcrdma import log_limits, turns

hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
"""The same examples in every run, unless others are asked for. None has a time, which a busy machine exceeds."""

os.umask(0o022)
"""Tests make files for other users to read, whatever the mask of who runs them."""

pytest_plugins = ["tests.rfc.plugin"]
pytest.register_assert_rewrite("tests.support", "tests.hostile", "tests.unit", "tests.vm")
"""What tests share says what it has found, too, when it is not as it should be."""


def pytest_collection_finish() -> None:
    """Ten thousand tests are some million objects, which each search for garbage went through again: 1.3 s of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Programs set up logging for their process: those that a test runs in this one must not, for the next test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    log_limits.LIMIT.reset()
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def alone() -> Iterator[None]:
    """Connections that behave as if each were the only one, though the test has both ends of some in this process."""
    turns.ignore_others(True)
    yield
    turns.ignore_others(False)
