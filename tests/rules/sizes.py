"""How long files and functions are: the reader has both before the eyes at once, or reads something else.

Owns the counting, for Python and Cython alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MOST_IN_FILE = 500
MOST_IN_FUNCTION = 70
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd")

# ``cdef`` and ``cpdef`` begin functions only where a parenthesis comes before anything that they could be else.
_BEGIN = re.compile(r"( *)(?:async def|def|cdef|cpdef) (?!class\b|extern\b|struct\b|enum\b)[^=#]*?\b(\w+)\(")


def sources(root: Path) -> list[Path]:
    """The files that the rules are for: those that people write."""
    return [
        path
        for package in ("nfsd", "rpcrdma", "bench", "tests")
        for path in sorted((root / package).rglob("*"))
        if path.suffix in SUFFIXES and not path.read_text("utf-8").startswith("# Generated ")
    ]


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function, methods and nested ones too; decorators are not counted."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        begin = _BEGIN.match(line)
        if begin is None:
            continue
        margin = len(begin[1])
        last = number
        for at in range(number + 1, len(lines)):
            inside = lines[at].strip()
            if not inside or inside.startswith("#"):
                continue
            if len(lines[at]) - len(lines[at].lstrip()) <= margin and not inside.startswith(")"):
                break
            last = at
        yield begin[2], last - number + 1
