"""Checks the text of the configuration before it is parsed: it must have a sensible size, and so must its expansion.

Owns the bounds; imports YAML's parser and :mod:`rpcrdma.plain_files`. Aliases (``*name``) can make a few lines stand
for more values than memory can hold. The parser follows nesting by recursion. This module counts both in the parser's
events, which keep nothing.
"""

from __future__ import annotations

from typing import Final

import yaml

from rpcrdma.plain_files import NotAFile, read

MOST_OCTETS: Final = 1 << 20
MOST_VALUES: Final = 50_000
"""Keys and values, counted as often as aliases repeat them."""
MOST_LEVELS: Final = 32
MOST_CHARACTERS: Final = 4096
"""Of one key or value: as long as the longest path."""


class BadText(Exception):
    """The text is not to be read; ``line`` is where that shows, 0 for the file as a whole."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def read_text(file: str) -> str:
    """The file's text. Raises BadText; waits for nothing that is no file, such as a pipe."""
    try:
        octets = read(file, MOST_OCTETS + 1)
    except NotAFile as error:
        raise BadText(0, f"{error.strerror}; name a file") from None
    except OSError as error:
        raise BadText(0, f"cannot be read: {error.strerror}") from None
    if len(octets) > MOST_OCTETS:
        raise BadText(0, f"is too large: a configuration has at most {MOST_OCTETS} octets")
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        raise BadText(line, f"is not UTF-8 text (octet {error.start})") from None


def check_size(text: str) -> None:
    """See that the values in the text are few enough. Raises BadText, yaml.YAMLError."""
    anchors: dict[str | None, int] = {}
    outer: list[tuple[str | None, int]] = []
    """Collections that have begun: their anchor, and how many values stood before them."""
    count = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            count += anchors.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                anchors[event.anchor] = 1
            if len(event.value) > MOST_CHARACTERS:
                raise BadText(line, f"is too long a value: at most {MOST_CHARACTERS} characters")
        elif isinstance(event, yaml.CollectionStartEvent):
            outer.append((event.anchor, count))
            count += 1
            if len(outer) > MOST_LEVELS:
                raise BadText(line, f"is nested too deeply: at most {MOST_LEVELS} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = outer.pop()
            if anchor is not None:
                anchors[anchor] = count - before
        if count > MOST_VALUES:
            raise BadText(line, f"is too much: at most {MOST_VALUES} values, with those that aliases (*name) repeat")
