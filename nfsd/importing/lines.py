"""Reading files of exports(5). Owns :func:`read`; imports nothing of the project."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

_BY_NUMBER: Final = re.compile(r"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True)
class Line:
    """Where something stands."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


class Grant(NamedTuple):
    """A directory for one kind of clients."""

    path: str
    client: str
    """As it stands there; empty: everybody."""
    options: tuple[str, ...]
    """Those that stand for all clients of the line, then its own."""
    line: Line


class _Token(NamedTuple):
    text: str
    number: int


def read(text: str, file: str) -> tuple[list[Grant], list[tuple[Line, str]]]:
    """What a file grants; and what is no line of such a file, with the reason."""
    grants: list[Grant] = []
    wrong: list[tuple[Line, str]] = []
    for tokens in _lines(text):
        path, number = tokens[0]
        if not path.startswith("/"):
            wrong.append((Line(file, number), f"{path!r} is no absolute path"))
            continue
        shared: tuple[str, ...] = ()
        own = len(grants)
        for token in tokens[1:]:
            line = Line(file, token.number)
            if token.text.startswith("-"):
                shared = _options(token.text[1:])
                continue
            found = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", token.text)
            if found is None:
                wrong.append((line, f"{token.text!r} is not CLIENT(OPTIONS)"))
                continue
            grants.append(Grant(path, found[1], shared + _options(found[2] or ""), line))
        if len(grants) == own and not any(line.number == number for line, _ in wrong):
            grants.append(Grant(path, "", shared, Line(file, number)))
    return grants, wrong


def _options(text: str) -> tuple[str, ...]:
    """Separated by commas."""
    return tuple(option.strip() for option in text.split(",") if option.strip())


def _lines(text: str) -> Iterator[list[_Token]]:
    """The words of each line that has any. A backslash at the end of a line goes on in the next; a # begins a comment;
    a word in quotes may have spaces; ``\\040`` is a character by its number."""
    tokens: list[_Token] = []
    number, at = 1, 0
    while at <= len(text):
        if at == len(text) or text[at] == "\n":
            if tokens:
                yield tokens
            tokens = []
            number, at = number + 1, at + 1
        elif text.startswith("\\\n", at):
            number, at = number + 1, at + 2
        elif text[at].isspace():
            at += 1
        elif text[at] == "#":
            while at < len(text) and text[at] != "\n":
                at += 1
        else:
            word, at = _word(text, at)
            tokens.append(_Token(word, number))


def _word(text: str, at: int) -> tuple[str, int]:
    """A word, and where it ends. A character by its number is an octet of UTF-8."""
    word, quoted = bytearray(), False
    while at < len(text) and text[at] != "\n" and not text.startswith("\\\n", at):
        escaped = _BY_NUMBER.match(text, at)
        if escaped:
            word.append(int(escaped[1], 8))
            at += 4
            continue
        if text[at] == '"':
            quoted = not quoted
        elif text[at].isspace() and not quoted:
            break
        else:
            word += text[at].encode("utf-8", "surrogateescape")
        at += 1
    return word.decode("utf-8", "surrogateescape"), at
