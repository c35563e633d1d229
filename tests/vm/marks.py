"""The versions of NFSv4 that guests mount with: in ``make test``, and in ``make test-long`` besides."""

from __future__ import annotations

import pytest

V4 = ("4.0", pytest.param("4.1", marks=pytest.mark.long), "4.2")
"""Version 4.2 is 4.1 with more operations, while 4.0 keeps state another way. So ``make test`` leaves 4.1 out where
a test has all three."""

ANY_V4 = (*(pytest.param(version, marks=pytest.mark.long) for version in ("4.0", "4.1")), "4.2")
"""Where what is asked is a matter of the file service, and hardly of the version's state."""
