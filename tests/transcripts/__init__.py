"""The transcripts of the documents: what commands print, by running them.

A document has a transcript between a mark and the end of its block:

    <!-- transcript NAME -->
    ```console
    $ rdma-nfsd ls rdma://127.0.0.1/data
    hello.txt
    ```

The commands are the document's own. NAME says where they run (:mod:`tests.transcripts.stages`); all blocks of a name
in a document run there in order. ``python -m tests.transcripts`` writes what the commands print now, and a test fails
where a document says something else: but for times, numbers that the kernel gives, and ports. ``guest transcript``
instead of ``transcript`` marks what boots guests (:mod:`tests.transcripts.guest`), ``container transcript`` what runs
a container (:mod:`tests.containers`). Programs that a document shows
behind ``<!-- file NAME -->`` are there for its commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[2]
_BLOCK = r"^<!-- {kind} (?P<name>\S+) -->\n+```console\n(?P<text>.*?)^```$"
BLOCK = re.compile(_BLOCK.format(kind="transcript"), re.MULTILINE | re.DOTALL)
CONTAINER_BLOCK = re.compile(_BLOCK.format(kind="container transcript"), re.MULTILINE | re.DOTALL)
GUEST_BLOCK = re.compile(_BLOCK.format(kind="guest transcript"), re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:console|text)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """A transcript in a document."""

    document: Path
    name: str
    begin: int
    """Where its text is in the document, and where it ends."""
    end: int
    steps: tuple[tuple[str, str], ...]
    """Each command, with what it prints."""


def documents() -> list[Path]:
    """All that may have transcripts."""
    return [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]


def blocks(document: Path, marked: re.Pattern[str] = BLOCK) -> Iterator[Block]:
    """The transcripts of a document, in order."""
    for found in marked.finditer(document.read_text()):
        yield Block(document, found["name"], *found.span("text"), tuple(steps(found["text"])))


def steps(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a transcript; a line that ends with a backslash goes on. Raises ValueError for text before the
    first."""
    before, *commands = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if before:
        raise ValueError(f"a transcript begins with a command, not with {before[:40]!r}")
    for each in commands:
        command = re.match(r"(?:.*\\\n)*.*\n", each)
        assert command is not None
        yield command[0].rstrip("\n"), each[command.end() :]


def programs(document: Path) -> dict[str, str]:
    """The programs and other files that a document shows, by the names that it gives them: ``<!-- file NAME -->``
    before a block."""
    block = re.compile(r"^<!-- file (\S+) -->\n+```(?:python|sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return dict(block.findall(document.read_text()))


def written(done: Sequence[tuple[str, str]]) -> str:
    """The text of a transcript."""
    return "".join(f"{PROMPT}{command}\n{printed}" for command, printed in done)


def replace(document: Path, found: Sequence[tuple[Block, str]]) -> bool:
    """Put new texts into a document; whether that changes it. A block that differs in nothing but what is no matter
    stays as it is."""
    text = document.read_text()
    new = text
    for block, printed in sorted(found, key=lambda each: -each[0].begin):
        if essence(printed) != essence(new[block.begin : block.end]):
            new = new[: block.begin] + printed + new[block.end :]
    document.write_text(new)
    return new != text


_CHANGES = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: \+\d{4}|Z)?", "TIME"),
    (r"\b[A-Z][a-z]{2} [ \d]\d (?:\d\d:\d\d| \d{4})", "DATE"),
    (r"\b\d+\.\d{6,}\b", "SECONDS"),
    (r"0x[0-9a-f]+", "HEX"),
    (r"(Inode|Blocks): \d+", r"\1: N"),
    (r"Device: [0-9a-f]+", "Device: N"),
    (r"^total \d.*", "total N"),
    (r"^(d\S+ +\d+ \S+ +\S+ +)\S+", r"\1SIZE"),  # a directory's size is its file system's affair
    (r"(127\.0\.0\.1|\[::1\]):\d+", r"\1:PORT"),
    (r"\b(nlm tcp|nsm tcp|udp)://(\S+):\d+", r"\1://\2:PORT"),  # the ready line's that nobody has chosen
    (r"\b\d{4,5} > \d{4,5}\b", r"PORT > PORT"),
    (r"\b\d+(?:\.\d+)? ?(?:ns|µs|us|ms|s|MB/s)\b", "SOME"),
    (r"^(\d+ +)\d+( +serving )", r"\1PID\2"),
    (r"-{3,}", "---"),
    (r"[ \t]+", " "),
    (r" $", ""),
)


def essence(text: str) -> str:
    """What must be the same in every run."""
    for pattern, instead in _CHANGES:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def unmarked(document: Path) -> list[str]:
    """First lines of blocks that look like transcripts, and have no mark; and indented commands."""
    text = document.read_text()
    marked = {found.start("text") for form in (BLOCK, CONTAINER_BLOCK, GUEST_BLOCK) for found in form.finditer(text)}
    fenced = [
        found["text"].partition("\n")[0]
        for found in SHELL.finditer(text)
        if found.start("text") not in marked and re.search(r"^[$#] [a-z/.]", found["text"], re.MULTILINE)
    ]
    return fenced + re.findall(r"^ {4}[$#] [a-z/.].*", text, re.MULTILINE)
