"""Settings of nfs.conf(5) for Linux's server, as keys of ours.

Owns :func:`read_file` and :func:`server_keys`; imports lines and notes.

As there, the last file and line that name a key count. A key without a counterpart is reported with its line.
"""

from __future__ import annotations

import glob
import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nfsd.importing.lines import Line
from nfsd.importing.mapping import Note

PLACE: Final = "/etc/nfs.conf"
_SECTION: Final = re.compile(r"\[\s*([^\s\]\"]+)\s*(?:\"[^\"]*\")?\s*\]")
_REMARK: Final = re.compile(r"(^|\s+)[#;].*")
_YES: Final = frozenset(("1", "t", "true", "y", "yes", "on"))
_NO: Final = frozenset(("0", "f", "false", "n", "no", "off"))
_VERSIONS: Final = {"vers3": (3,), "vers4": (4.0, 4.1, 4.2), "vers4.0": (4.0,), "vers4.1": (4.1,), "vers4.2": (4.2,)}
_PORTS: Final = {("mountd", "port"): "mountd_port", ("lockd", "port"): "nlm_port", ("statd", "port"): "nsm_port"}
_TIMES: Final = {"grace-time": "grace_time", "lease-time": "lease_time"}
_ELSE: Final = "; where nothing is left, only 127.0.0.1 is listened at"
_NFS_PORT, _RDMA_PORT = 2049, 20049
_OF_SERVERS: Final = (
    "nfsd",
    "mountd",
    "exportd",
    "exports",
    "exportfs",
    "lockd",
    "statd",
    "nfsdcld",
    "nfsdcltrack",
    "svcgssd",
)
"""Sections that are about the server; the others are the client's."""
_WHY_NOT: Final = {
    "threads": "one event loop serves all; workers of each export go to its disk",
    "min-threads": "one event loop serves all; workers of each export go to its disk",
    "scope": "the server's identity is in its state directory",
    "debug": "set log.level",
}


class Setting(NamedTuple):
    """A key's value, and where it stands."""

    value: str
    line: Line


@dataclass(slots=True)
class ServerKeys:
    """What a configuration of ours is to have."""

    server: dict[str, Any] = field(default_factory=dict)
    """Keys of ``server``."""
    export: dict[str, Any] = field(default_factory=dict)
    """Keys of every export."""
    notes: list[Note] = field(default_factory=list)
    root: str = ""
    """Where the directories of the exports begin."""


def read_file(file: str) -> tuple[dict[tuple[str, str], Setting], list[Note]]:
    """The settings of a file, and of FILE.d/*.conf, by section and key. A file that is not there has none."""
    found: dict[tuple[str, str], Setting] = {}
    notes: list[Note] = []
    for one in (file, *sorted(glob.glob(glob.escape(file) + ".d/*.conf"))):
        _take(one, found, notes, depth=0)
    return found, notes


def _take(file: str, found: dict[tuple[str, str], Setting], notes: list[Note], *, depth: int) -> None:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            text = opened.read()
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(Note(Line(file, 0), error.strerror or str(error), False))
        return
    section = ""
    for number, line in _lines(text):
        place = Line(file, number)
        if begun := _SECTION.fullmatch(line):
            section = begun[1].lower()
            continue
        key, equals, value = (word.strip() for word in line.partition("="))
        if not equals:
            notes.append(Note(place, f"{line!r} is neither [SECTION] nor KEY = VALUE", False))
        elif key == "include":
            if depth < 4:
                name = os.path.join(os.path.dirname(file), value.removeprefix("-"))
                _take(name, found, notes, depth=depth + 1)
        else:
            if value[:1] not in ("'", '"'):
                value = _REMARK.sub("", value)
            found[section, key.lower()] = Setting(value.strip("\"'"), place)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with something in them, without comments; one that ends with a backslash goes on in the next."""
    begun, whole = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        whole += line
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        content = whole.strip()
        if content and content[0] not in "#;":
            yield begun, content
        begun, whole = 0, ""


def server_keys(settings: dict[tuple[str, str], Setting]) -> ServerKeys:
    """The keys that the settings of Linux's server become."""
    made = ServerKeys()
    used = {("nfsd", key) for key in ("host", "port", "tcp", "udp", "rdma", "rdma-port", *_VERSIONS, *_TIMES)}
    _listen(settings, made)
    _versions(settings, made)
    times = {}
    for key, name in _TIMES.items():
        if (seconds := _number(settings, "nfsd", key, made)) is not None:
            times[name] = seconds
    if times:
        made.server["nfs4"] = times
    for (section, key), name in _PORTS.items():
        used.add((section, key))
        if (port := _number(settings, section, key, made)) is not None:
            made.server[name] = port
    used.add(("mountd", "manage-gids"))
    if _flag(settings, "mountd", "manage-gids", made):
        made.export["manage_gids"] = True
    for (section, key), setting in settings.items():
        if section not in _OF_SERVERS or (section, key) in used:
            continue
        if (section, key) == ("exports", "rootdir"):
            made.root = setting.value
            continue
        why = _WHY_NOT.get(key, "this server does not know it")
        made.notes.append(Note(setting.line, f"[{section}] {key} is left out: {why}", False))
    return made


def _flag(settings: dict[tuple[str, str], Setting], section: str, key: str, made: ServerKeys) -> bool | None:
    setting = settings.get((section, key))
    if setting is None:
        return None
    word = setting.value.lower()
    if word in _YES or word in _NO:
        return word in _YES
    made.notes.append(Note(setting.line, f"[{section}] {key}={setting.value} is left out: neither yes nor no", False))
    return None


def _number(settings: dict[tuple[str, str], Setting], section: str, key: str, made: ServerKeys) -> int | None:
    setting = settings.get((section, key))
    if setting is None:
        return None
    if setting.value.isdecimal():
        return int(setting.value)
    made.notes.append(Note(setting.line, f"[{section}] {key}={setting.value} is left out: no number", False))
    return None


def _listen(settings: dict[tuple[str, str], Setting], made: ServerKeys) -> None:
    """Where it listens: RDMA too, unless that is off there."""
    port, tcp = _number(settings, "nfsd", "port", made) or _NFS_PORT, _flag(settings, "nfsd", "tcp", made)
    if (udp := settings.get(("nfsd", "udp"))) is not None and udp.value.lower() in _YES:
        made.notes.append(Note(udp.line, "[nfsd] udp is left out: this server has no NFS over UDP", False))
    wanted = settings.get(("nfsd", "rdma"))
    rdma_port: int | None = _number(settings, "nfsd", "rdma-port", made) or _RDMA_PORT
    if wanted is not None and wanted.value.isdecimal() and int(wanted.value) > 1:
        rdma_port = int(wanted.value)
    elif wanted is not None and wanted.value.lower() not in ("nfsrdma", *_YES):
        rdma_port = None
    host = settings.get(("nfsd", "host"))
    hosts = []
    for name in re.split(r"[,\s]+", host.value) if host is not None else ["0.0.0.0"]:
        try:
            literal = ipaddress.ip_address(name)
        except ValueError:
            assert host is not None
            made.notes.append(Note(host.line, f"[nfsd] host={name} is left out: it must be an address{_ELSE}", True))
            continue
        hosts.append(f"[{literal}]" if literal.version == 6 else str(literal))
    listen = [f"rdma://{one}:{rdma_port}" for one in hosts if rdma_port is not None]
    listen += [f"tcp://{one}:{port}" for one in hosts if tcp is not False]
    keys = {("nfsd", key) for key in ("host", "port", "tcp", "rdma", "rdma-port")}
    if hosts and not listen:
        off = settings["nfsd", "tcp"].line
        made.notes.append(Note(off, f"[nfsd] neither tcp nor rdma is on, and there is nothing else here{_ELSE}", True))
    if keys & settings.keys():
        made.server["listen"] = listen or [f"tcp://127.0.0.1:{port}"]


def _versions(settings: dict[tuple[str, str], Setting], made: ServerKeys) -> None:
    served = [3, 4.0, 4.1, 4.2]
    for key, versions in _VERSIONS.items():
        if _flag(settings, "nfsd", key, made) is False:
            served = [version for version in served if version not in versions]
    if len(served) < 4:
        made.server["versions"] = served
