"""The EXPORT blocks of a ganesha.conf as exports of ours (ganesha-export-config(8)).

Owns :func:`exports_of`; imports lines, notes and the rule for who is left out. A client that has less there than others
is never given more here: where that cannot be said, the whole export is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from nfsd.importing.lines import Line
from nfsd.importing.mapping import Import, Note, may_cover

_TOKEN: Final = re.compile(
    r'(?P<space>[ \t\r]+)|(?P<line>\n)|(?P<comment>#[^\n]*)|(?P<quoted>"[^"\n]*"|\'[^\'\n]*\')|(?P<mark>[{}=;,])'
    r"|(?P<word>[^\s{}=;,#\"']+)"
)
_FILE_SYSTEMS: Final = frozenset(("vfs", "xfs", "lustre", "gpfs"))
"""FSALs of what Linux has mounted."""
_SQUASH: Final = {
    "root": "root", "root_squash": "root", "rootsquash": "root", "rootid": "root", "root_id_squash": "root",
    "rootidsquash": "root", "all": "all", "all_squash": "all", "allsquash": "all", "all_anonymous": "all",
    "allanonymous": "all", "none": "none", "no_root_squash": "none", "noidsquash": "none",
}  # fmt: skip
_ACCESS: Final = {"rw": "rw", "ro": "ro", "none": "", "mdonly": "", "mdonly_ro": ""}
_NOBODY: Final = 65534
_TRUE: Final = frozenset(("1", "true", "yes", "on"))
_OF_CLIENT: Final = (
    "access_type",
    "squash",
    "anonymous_uid",
    "anonymous_gid",
    "privilegedport",
    "sectype",
    "protocols",
)
_WITHOUT_LOSS: Final = frozenset(("tag", "filesystem_id", "delegations", "transports", "attr_expiration_time"))
_LOCAL: Final = ("*", "0.0.0.0/0", "::/0")


class Unreadable(Exception):
    """The file is not of that form; the message says why, ``line`` where."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class Block:
    """A block, or the file itself."""

    name: str
    line: int
    values: dict[str, tuple[list[str], int]] = field(default_factory=dict)
    """By key in small letters: the words, and the line."""
    blocks: list[Block] = field(default_factory=list)


def parsed(text: str) -> Block:
    """The blocks of a file. Raises Unreadable."""
    tokens = list(_tokens(text))
    whole, at = Block("", 0), 0
    stack = [whole]
    while at < len(tokens):
        word, line = tokens[at]
        if word == "}" and len(stack) > 1:
            stack.pop()
            at += 1
        elif word == ";":
            at += 1
        elif at + 1 < len(tokens) and tokens[at + 1][0] == "{":
            stack.append(Block(word.lower(), line))
            stack[-2].blocks.append(stack[-1])
            at += 2
        elif at + 1 < len(tokens) and tokens[at + 1][0] == "=":
            end = at + 2
            while end < len(tokens) and tokens[end][0] not in (";", "{", "}"):
                end += 1
            stack[-1].values[word.lower()] = [one.strip("\"'") for one, _ in tokens[at + 2 : end] if one != ","], line
            at = end
        elif word.startswith("%"):
            at += 2
        else:
            raise Unreadable(line, f"{word!r} is not expected here")
    if len(stack) > 1:
        raise Unreadable(stack[-1].line, f"the block {stack[-1].name} does not end")
    return whole


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    line, at = 1, 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Unreadable(line, f"{text[at]!r} is not expected here")
        at = found.end()
        if found.lastgroup in ("quoted", "mark", "word"):
            yield found[0], line
        line += found[0].count("\n")


def exports_of(text: str, file: str) -> tuple[list[Import], list[Note]]:
    """The exports, and what is not as it was. Raises Unreadable."""
    whole = parsed(text)
    notes: list[Note] = []
    defaults: dict[str, tuple[list[str], int]] = {}
    for block in whole.blocks:
        if block.name == "export_defaults":
            defaults |= block.values
    for number, what in _others(whole, text):
        notes.append(Note(Line(file, number), what, False))
    imports = []
    for block in whole.blocks:
        if block.name == "export":
            made = _Export(block, defaults, file, notes).entry()
            if made is not None:
                imports.append(Import(made, Line(file, block.line)))
    return imports, notes


def _others(whole: Block, text: str) -> Iterator[tuple[int, str]]:
    for block in whole.blocks:
        if block.name not in ("export", "export_defaults"):
            yield block.line, f"{block.name.upper()} is left out: only EXPORT blocks are taken over"
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("%"):
            yield number, f"{line.strip()}: is not followed; import that file as well"


class _Export:
    """One EXPORT block."""

    def __init__(self, block: Block, defaults: dict[str, tuple[list[str], int]], file: str, notes: list[Note]) -> None:
        self.block, self.file, self.notes = block, file, notes
        self.values = defaults | block.values
        self.path = " ".join(self.values.get("path", ([], 0))[0])

    def note(self, line: int, what: str, *, lost: bool = False) -> None:
        self.notes.append(Note(Line(self.file, line or self.block.line), f"{self.path}: {what}", lost))

    def entry(self) -> dict[str, Any] | None:
        """The export's entry; None: it is left out, and that has been noted."""
        fsal = next((one for one in self.block.blocks if one.name == "fsal"), None)
        kind = " ".join(fsal.values.get("name", ([], 0))[0]) if fsal is not None else ""
        if kind and kind.lower() not in _FILE_SYSTEMS:
            assert fsal is not None
            self.note(fsal.line, f"FSAL {kind} is not supported: mount it, and export where", lost=True)
            return None
        if not self.path.startswith("/"):
            self.note(self.block.line, "has no absolute Path", lost=True)
            return None
        pseudo = " ".join(self.values.get("pseudo", ([], 0))[0]) or self.path
        entry: dict[str, Any] = {"path": self.path, "pseudo": pseudo}
        number = " ".join(self.values.get("export_id", ([], 0))[0])
        if number.isdecimal() and 1 <= int(number) <= 0xFFFFFFFF:
            entry["id"] = int(number)
        clients = self._clients()
        if clients is None:
            return None
        shared = dict(clients[0][1])
        entry |= {key: value for key, value in shared.items() if key != "access" or value != "rw"}
        listed = [
            {"host": host, **own}
            if (own := {key: value for key, value in keys.items() if shared[key] != value})
            else host
            for host, keys in clients
        ]
        if listed != ["*"]:
            entry["clients"] = listed
        return entry | self._of_export()

    def _clients(self) -> list[tuple[str, dict[str, Any]]] | None:
        """Who may use it, and how; None: nobody, or not as it was."""
        kept: list[tuple[str, dict[str, Any]]] = []
        barred: list[tuple[str, int]] = []
        own = _Of(self, self.values, self.block.line)
        for block in (one for one in self.block.blocks if one.name == "client"):
            of = _Of(self, self.values | block.values, block.line)
            for key, (_, line) in block.values.items():
                if key == "protocols" or key not in ("clients", *_OF_CLIENT):
                    self.note(line, f"{key} of a CLIENT is left out: it cannot differ by client here")
            for host in (block.values.get("clients") or ([], 0))[0]:
                name = "*" if host in _LOCAL else host
                (barred.append((name, block.line)) if of.barred else kept.append((name, of.keys)))
        if not own.barred:
            kept.append(("*", own.keys))
        names = [host for host, _ in kept]
        kept = [one for at, one in enumerate(kept) if one[0] not in names[:at]]  # the first one that fits counts there
        for host, line in barred:
            other = next((name for name in names if may_cover(name, host)), None)
            if other is not None:
                self.note(line, f"is left out: {other} would let in {host}, which may not use it there", lost=True)
                return None
        if not kept:
            self.note(self.block.line, "is left out: nobody may use it (Access_Type is None by default)", lost=True)
            return None
        return kept

    def _of_export(self) -> dict[str, Any]:
        """What holds for all clients."""
        found: dict[str, Any] = {}
        for key, (words, line) in self.values.items():
            value = " ".join(words)
            if key in ("maxread", "maxwrite") and value.isdecimal():
                found["max_read" if key == "maxread" else "max_write"] = int(value)
            elif key == "manage_gids":
                found |= {"manage_gids": True} if value.lower() in _TRUE else {}
            elif key == "security_label":
                found |= {"security_labels": True} if value.lower() in _TRUE else {}
            elif key == "protocols":
                versions = [
                    int(one[-1]) for one in (word.lower() for word in words) if one in ("3", "4", "nfsv3", "nfsv4")
                ]
                if versions and set(versions) != {3, 4}:
                    found["versions"] = [3] if versions == [3] else [4.0, 4.1, 4.2]
            elif key not in ("path", "pseudo", "export_id", *_OF_CLIENT, *_WITHOUT_LOSS):
                self.note(line, f"{key} is left out: there is no such key here")
            elif key in _WITHOUT_LOSS:
                self.note(line, f"{key} is left out: this server has its own way")
        return found


class _Of:
    """What some clients may do."""

    def __init__(self, export: _Export, values: dict[str, tuple[list[str], int]], line: int) -> None:
        def word(key: str, default: str) -> tuple[str, int]:
            words, at = values.get(key, ([default], line))
            return " ".join(words).lower(), at

        access, at = word("access_type", "none")
        self.barred = not _ACCESS.get(access)
        if access.startswith("mdonly") or access not in _ACCESS:
            export.note(at, f"Access_Type = {access}: not supported; taken for None", lost=True)
        words, at = values.get("sectype", (["sys"], line))
        flavors = [one.lower() for one in words]
        if "sys" not in flavors:
            export.note(
                at,
                f"SecType = {', '.join(flavors)}: only sys is supported; what demands more is not loosened",
                lost=True,
            )
            self.barred = True
        squash, at = word("squash", "root_squash")
        if squash not in _SQUASH:
            export.note(at, f"Squash = {squash} is not known: all are squashed")
        elif "id" in squash:
            export.note(at, f"Squash = {squash}: root's group is squashed, too")
        self.keys: dict[str, Any] = {"access": _ACCESS.get(access) or "ro", "squash": _SQUASH.get(squash, "all")}
        for key, name in (("anonymous_uid", "anonuid"), ("anonymous_gid", "anongid")):
            number, _ = word(key, "-2")
            value = int(number) & 0xFFFFFFFF if re.fullmatch(r"-?\d+", number) else _NOBODY
            self.keys[name] = value if value < 0xFFFFFFFE else _NOBODY
        self.keys["secure"] = word("privilegedport", "false")[0] in _TRUE
