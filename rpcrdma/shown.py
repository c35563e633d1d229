"""Words for lines of text: what peers choose, made safe for the log (:func:`shown`, :func:`path_shown`), and counted
things (:func:`many`). Imports nothing of the project."""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 200
"""Characters of a path or name in a line."""
_PLAIN: Final = re.compile(r"[^\s:;,()]+")
"""A path that no other part of a line looks like."""


def many(count: int, word: str) -> str:
    """So many of something: ``1 open``, ``0 opens``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def shown(text: str | bytes) -> str:
    """A peer's text for a line: not too long, and escaped, so that it ends neither the line nor the quotes it is in."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    safe = "".join(map(_escaped, text[:_LONGEST]))
    return safe if len(text) <= _LONGEST else safe + "..."


def _escaped(one: str) -> str:
    if one in '"\\':
        return "\\" + one
    if one.isprintable():
        return one
    if "\udc80" <= one <= "\udcff":
        return f"\\x{ord(one) - 0xDC00:02x}"  # an octet that is no UTF-8
    return one.encode("unicode_escape", "surrogatepass").decode()


def path_shown(path: str | bytes) -> str:
    """A peer's path for a line: in quotes, if it could be taken for more of the line than a path."""
    safe = shown(path)
    return safe if _PLAIN.fullmatch(safe) else f'"{safe}"'
