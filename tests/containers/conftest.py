"""These tests are run where they are asked for (``-m container``): they install engines and build an image."""

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave them out otherwise."""
    return None if "container" in config.option.markexpr else True
