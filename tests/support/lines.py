"""Work counted in lines executed: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any


def lines_of(modules: Iterable[ModuleType], work: Callable[[], object]) -> int:
    """How many lines of these modules ``work()`` executes."""
    files = {module.__file__ for module in modules}
    lines = 0

    def traced(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in files:
            return None
        lines += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines
