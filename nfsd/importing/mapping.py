"""Makes a configuration from exports(5). Owns :func:`configuration`; imports lines, options and the checks."""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from nfsd.importing.lines import Grant, Line
from nfsd.importing.options import Settings, settings

_OF_CLIENTS: Final = ("access", "squash", "anonuid", "anongid", "secure", "xprtsec", "sec")
_PLAIN: Final[dict[str, Any]] = {
    "access": "rw", "squash": "root", "anonuid": 65534, "anongid": 65534, "secure": False,
    "xprtsec": ("none", "tls", "mtls"), "sec": ("sys",),
}  # fmt: skip
"""The defaults of this server, which need not be written."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is not as it was."""

    line: Line
    message: str
    lost: bool
    """A client or a directory is left out."""

    def __str__(self) -> str:
        return f"{self.line}: {'NOT IMPORTED: ' if self.lost else ''}{self.message}"


@dataclass(slots=True)
class Import:
    """One export to be."""

    entry: dict[str, Any]
    line: Line


def configuration(grants: Iterable[Grant]) -> tuple[list[Import], list[Note]]:
    """The exports, in the order of their lines, and what is not as it was."""
    by_path: dict[str, list[Settings]] = {}
    refused: list[tuple[str, Settings]] = []
    notes: list[Note] = []
    for grant in grants:
        one, path = settings(grant), os.path.normpath(grant.path)
        notes += [Note(one.line, f"{path}: {what}", False) for what in one.notes]
        notes += [Note(one.line, f"{path}: {what}", True) for what in one.refused]
        if one.refused:
            refused.append((path, one))
        else:
            by_path.setdefault(path, []).append(one)
    for path, one in refused:
        other = next((kept for kept in by_path.get(path, ()) if may_cover(kept.host, one.host)), None)
        if other is not None:
            what = f"{path}: nor the rest of it: {other.host} would let in {one.host}, by looser settings than its own"
            notes.append(Note(one.line, what, True))
            del by_path[path]
    for path in list(by_path):
        by_path[path] = _distinct(path, by_path[path], notes)
    made = _named(by_path, notes)
    ids: Counter[int] = Counter()
    imports = []
    for path, pseudo in made:
        clients = by_path[path]
        entry = _entry(path, pseudo, clients, notes)
        number = _id(clients, path, notes)
        if number and not ids[number]:
            entry["id"] = number
            ids[number] += 1
        imports.append(Import(entry, clients[0].line))
    return imports, notes


def may_cover(kept: str, refused: str) -> bool:
    """Whether a client that is left out might be let in by what is kept. What goes by names cannot be known here."""
    if refused.startswith("gss/"):
        return False  # those are grants beside the others', to whom they stay
    if kept == "*":
        return True
    if refused.startswith("@"):
        return kept.startswith("@")  # all other kinds of clients come before netgroups there, too
    if refused == "*":
        return False
    if kept.startswith("@"):
        return True
    try:
        inner = ipaddress.ip_network(refused, strict=False)
    except ValueError:
        inner = None
    try:
        outer = ipaddress.ip_network(kept, strict=False)
    except ValueError:
        return any(one in kept for one in "*?") or (inner is not None and inner.num_addresses == 1)
    if inner is None:  # single hosts come first there, too
        return outer.num_addresses > 1 or not any(one in refused for one in "*?[")
    if isinstance(inner, ipaddress.IPv4Network):
        return isinstance(outer, ipaddress.IPv4Network) and inner != outer and inner.subnet_of(outer)
    return isinstance(outer, ipaddress.IPv6Network) and inner != outer and inner.subnet_of(outer)


def never_reached(host: str, before: str) -> bool:
    """Whether every client that ``host`` stands for is one of ``before``, for certain."""
    if before == "*" or host.casefold() == before.casefold():
        return True
    try:
        inner, outer = ipaddress.ip_network(host, strict=False), ipaddress.ip_network(before, strict=False)
    except ValueError:
        return False
    if isinstance(inner, ipaddress.IPv4Network):
        return isinstance(outer, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, ipaddress.IPv6Network) and inner.subnet_of(outer)


def _distinct(path: str, clients: list[Settings], notes: list[Note]) -> list[Settings]:
    """Each client once: the first counts, as with exportfs."""
    kept: dict[str, Settings] = {}
    for one in clients:
        if one.host in kept:
            notes.append(Note(one.line, f"{path}: {one.host} stands there before: what that line says counts", False))
        kept.setdefault(one.host, one)
    return list(kept.values())


# -- names -------------------------------------------------------------------------------------------------------------
def _named(by_path: dict[str, list[Settings]], notes: list[Note]) -> list[tuple[str, str]]:
    """The paths that are exported, and the names that clients know them by."""
    root = next((path for path, clients in by_path.items() if any(one.fsid == "0" for one in clients)), None)
    names = {path: path for path in by_path}
    if root is not None and len(by_path) == 1:
        names[root] = "/"
        what = f"{root} with fsid=0 is /, for NFSv3 as well, whose clients mounted {root}"
        notes.append(Note(by_path[root][0].line, what, False))
    elif root is not None:
        _under_root(root, names, by_path[root][0].line, notes)
    found: list[tuple[str, str]] = []
    for path, name in names.items():
        above = next((one for one in names if one != path and _is_below(name, names[one])), None)
        if above is None:
            found.append((path, name))
            continue
        line = by_path[path][0].line
        notes.append(
            Note(line, f"{path} lies inside of {above}, which is exported: clients reach it through that, by the "
                 "settings of that; with cross_mounts: true if a file system is mounted there", True)
        )  # fmt: skip
    return found


def _under_root(root: str, names: dict[str, str], line: Line, notes: list[Note]) -> None:
    """With fsid=0 the names of NFSv4 begin at that directory, and NFSv3's do not. There is one name here."""
    below = [path for path in names if _is_below(path, root)]
    for path in below:
        names[path] = path[len(root.rstrip("/")) :]
    del names[root]
    shown = ", ".join(f"{path} is {names[path]}" for path in below) or "none lies below it"
    what = (
        f"{root} with fsid=0 is the root of NFSv4's names, which this server makes itself: what lies in it beside "
        f"other exports is not served ({shown}; NFSv3 mounts by these names, too)"
    )
    notes.append(Note(line, what, True))


def _is_below(path: str, above: str) -> bool:
    return path.startswith(above.rstrip("/") + "/") and path != above


# -- settings ----------------------------------------------------------------------------------------------------------
def _entry(path: str, pseudo: str, clients: list[Settings], notes: list[Note]) -> dict[str, Any]:
    settings_of = [_PLAIN | one.client for one in clients]
    shared = {key: Counter(one[key] for one in settings_of).most_common(1)[0][0] for key in _OF_CLIENTS}
    entry: dict[str, Any] = {"path": path, "pseudo": pseudo}
    export = _of_export(path, clients, notes)
    if "referral" in export:
        del entry["path"]
        export.pop("replicas", None)
        export.pop("mountpoint", None)
    entry |= {key: _written(value) for key, value in shared.items() if value != _PLAIN[key]}
    listed: list[Any] = []
    for one, settings_here in zip(clients, settings_of, strict=True):
        own = {key: _written(value) for key, value in settings_here.items() if value != shared[key]}
        listed.append({"host": one.host, **own} if own else one.host)
    if listed != ["*"]:
        entry["clients"] = listed
    return entry | export


def _written(value: Any) -> Any:
    """A setting as YAML has it."""
    return list(value) if isinstance(value, tuple) else value


def _of_export(path: str, clients: list[Settings], notes: list[Note]) -> dict[str, Any]:
    """What holds for all clients of an export here. Where they differ, the first one's, but nothing that loosens."""
    found: dict[str, Any] = {}
    for key in ("async", "cross_mounts", "security_labels", "mountpoint", "referral", "replicas"):
        values = [one.export.get(key, False) for one in clients]
        if all(value == values[0] for value in values):
            value = values[0]
        else:
            value = next((one for one in values if one), False) if key == "mountpoint" else False
            what = f"{key} is {value if value else 'left out'}, for it cannot differ by client"
            notes.append(Note(clients[0].line, f"{path}: {what}", key in ("referral", "replicas")))
        if value:
            found[key] = value
    return found


def _id(clients: list[Settings], path: str, notes: list[Note]) -> int:
    """The number that handles know the export by; 0: it is derived from the path."""
    wanted = next((one for one in clients if one.fsid and one.fsid != "0"), None)
    if wanted is None:
        return 0
    try:
        number = int(wanted.fsid, 0)
    except ValueError:
        number = 0
    if 1 <= number <= 0xFFFFFFFF:
        return number
    notes.append(Note(wanted.line, f"{path}: fsid={wanted.fsid} is left out: an id is made of the path", False))
    return 0
