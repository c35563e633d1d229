"""The EXPORT blocks of a ganesha.conf as exports of ours (ganesha-export-config(8)).

Owns :func:`exports_of`; imports lines, notes and the rule that leaves clients out. A client never gets more here than
there. If that cannot be expressed, the whole export is left out.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from nfsd.importing.lines import Line
from nfsd.importing.mapping import Import, Note, may_cover, never_reached
from nfsd.importing.options import SECURITY

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
_VERSIONS: Final = {f"{prefix}{number}": number for number in (3, 4) for prefix in ("", "v", "nfs", "nfsv")}
_LOOSER: Final = {"access": ("ro", "rw"), "squash": ("all", "root", "none"), "secure": (True, False)}
"""Values, each looser than those before it."""
_PLAIN: Final = (("access", "rw"), ("sec", ("sys",)))
"""What need not be written."""


_LATE_NAMES: Final = (
    "changed names are on the disk here before they are answered, and later in Ganesha: async: names does as "
    "Ganesha does, and is faster"
)


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
            words, values = [one.strip("\"'") for one, _ in tokens[at + 2 : end] if one != ","], stack[-1].values
            if word.lower() == "clients" and "clients" in values:
                values["clients"][0].extend(words)  # repeated, it goes on
            else:
                values[word.lower()] = words, line
            at = end
        elif word.startswith("%"):
            what = "is not followed, and may say who is not let in: put what it stands for in its place"
            raise Unreadable(line, f"{word} {tokens[at + 1][0] if at + 1 < len(tokens) else ''}: {what}")
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
    defaults = Block("export_defaults", 0)
    for block in whole.blocks:
        if block.name == "export_defaults":
            defaults.values |= block.values
            defaults.blocks += block.blocks
        elif block.name != "export":
            what = f"{block.name.upper()} is left out: only EXPORT blocks are taken over"
            notes.append(Note(Line(file, block.line), what, False))
    imports, left_out = [], []
    for block in whole.blocks:
        if block.name == "export":
            export = _Export(block, defaults, file, notes)
            made = export.entry()
            if made is not None:
                imports.append(Import(made, Line(file, block.line)))
            else:
                left_out.append(export)
    for export in left_out:
        above = [one.entry["path"] for one in imports if _is_below(export.path, one.entry["path"])]
        if above:
            export.note(
                0, f"clients reach it all the same: {above[0]}, which it lies inside of, is exported", lost=True
            )
    for one in imports:
        for other in imports:
            path, above = one.entry["path"], other.entry["path"]
            if path != above and _is_below(path, above) and not _ways(other.entry) <= _ways(one.entry):
                what = f"{path}: clients reach it all the same: {above}, which it lies inside of, has another SecType"
                notes.append(Note(one.line, what, True))
    if imports:
        notes.append(Note(imports[0].line, _LATE_NAMES, False))
    return imports, notes


def _ways(entry: dict[str, Any]) -> set[str]:
    """How an export's callers may be known."""
    clients = (one for one in entry.get("clients", ()) if isinstance(one, dict))
    return {way for one in ({"sec": ("sys",)} | entry, *clients) for way in one.get("sec", ())}


def _is_below(path: str, above: str) -> bool:
    return (os.path.normpath(path) + "/").startswith(os.path.normpath(above).rstrip("/") + "/")


class _Export:
    """One EXPORT block."""

    def __init__(self, block: Block, defaults: Block, file: str, notes: list[Note]) -> None:
        self.block, self.file, self.notes = block, file, notes
        self.values = defaults.values | block.values
        self.clients = _clients_of(block) or _clients_of(defaults)
        """Those of EXPORT_DEFAULTS count for an EXPORT that has none."""
        self.versions = {3, 4}
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
        entry |= {key: value for key, value in shared.items() if (key, value) not in _PLAIN}
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
        listed: list[_Entry] = []
        for block in self.clients:
            of = _Of(self, self.values | block.values, block.line)
            for key, (_, line) in block.values.items():
                if key == "protocols" or key not in ("clients", *_OF_CLIENT):
                    self.note(line, f"{key} of a CLIENT is left out: it cannot differ by client here")
            hosts = (block.values.get("clients") or ([], 0))[0]
            listed += [_Entry("0.0.0.0/0" if host == "0.0.0.0" else host, of, block.line) for host in hosts]
        listed.append(_Entry("*", _Of(self, self.values, self.block.line), self.block.line))
        # There the first that fits counts, here the most specific.
        listed = [
            one for at, one in enumerate(listed) if not any(never_reached(one.host, of.host) for of in listed[:at])
        ]
        kept = [one for one in listed if not one.of.barred]
        for at, first in enumerate(listed):
            for one in listed[at + 1 :]:
                if why := _loosened(first, one):
                    self.note(first.line, f"is left out: {why}", lost=True)
                    return None
        self.versions = self.versions.intersection(*(one.of.versions for one in kept))
        if not kept or not self.versions:
            self.note(self.block.line, "is left out: nobody may use it (Access_Type is None by default)", lost=True)
            return None
        return [(one.host, one.of.keys) for one in kept]

    def _of_export(self) -> dict[str, Any]:
        """What holds for all clients."""
        found: dict[str, Any] = {}
        if len(self.versions) == 1:
            found["versions"] = [3] if 3 in self.versions else [4.0, 4.1, 4.2]
        for key, (words, line) in self.values.items():
            value = " ".join(words)
            if key in ("maxread", "maxwrite") and value.isdecimal():
                found["max_read" if key == "maxread" else "max_write"] = int(value)
            elif key == "manage_gids":
                found |= {"manage_gids": True} if value.lower() in _TRUE else {}
            elif key == "security_label":
                found |= {"security_labels": True} if value.lower() in _TRUE else {}
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
        if unknown := [one for one in flavors if one not in SECURITY]:
            export.note(at, f"SecType = {', '.join(flavors)}: {unknown[0]} is not supported", lost=True)
            self.barred = True
        words, at = values.get("protocols", (["3", "4"], line))
        self.versions = {_VERSIONS[one.lower()] for one in words if one.lower() in _VERSIONS}
        if not self.versions:
            export.note(at, f"Protocols = {', '.join(words)}: is no NFS", lost=True)
            self.barred = True
        squash, at = word("squash", "root_squash")
        if squash not in _SQUASH:
            export.note(at, f"Squash = {squash} is not known: all are squashed")
        elif "id" in squash:
            export.note(at, f"Squash = {squash}: root's group is squashed, too")
        self.keys: dict[str, Any] = {"access": _ACCESS.get(access) or "ro", "squash": _SQUASH.get(squash, "all")}
        for key, name in (("anonymous_uid", "anonuid"), ("anonymous_gid", "anongid")):
            number, _ = word(key, "-2")
            value = int(number) & 0xFFFFFFFF if re.fullmatch(r"-?[1-9]\d*|0", number) else _NOBODY
            self.keys[name] = value if value < 0xFFFFFFFE else _NOBODY
        self.keys["secure"] = word("privilegedport", "false")[0] in _TRUE
        self.keys["sec"] = tuple(dict.fromkeys(SECURITY[one] for one in flavors if one in SECURITY))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A client, in the order of the list."""

    host: str
    of: _Of
    line: int


def _clients_of(block: Block) -> list[Block]:
    return [one for one in block.blocks if one.name == "client"]


def _loosened(first: _Entry, later: _Entry) -> str:
    """How some client of the first entry would have more here, by the later one."""
    if later.of.barred:
        return ""
    if first.of.barred:
        if may_cover(later.host, first.host) or may_cover(first.host, later.host):
            return f"{later.host} would let in {first.host}, which may not use it there"
        return ""
    if first.host.startswith("@") and later.host.startswith("@"):
        return ""  # here, too, the first of these counts
    if _single(first.host) or not may_cover(first.host, later.host) or not _more(later.of.keys, first.of.keys):
        return ""  # a single address counts first
    return f"{later.host} may do more than {first.host}, which stands before it and may count for it there"


def _single(host: str) -> bool:
    try:
        return ipaddress.ip_network(host, strict=False).num_addresses == 1
    except ValueError:
        return False


def _more(keys: dict[str, Any], than: dict[str, Any]) -> bool:
    ranks = _LOOSER.items()
    return (
        any(order.index(keys[key]) > order.index(than[key]) for key, order in ranks)
        or any(keys[key] != than[key] for key in ("anonuid", "anongid"))
        or not set(keys["sec"]) <= set(than["sec"])
    )
