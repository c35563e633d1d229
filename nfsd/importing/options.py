"""The options of exports(5) as settings of ours. Owns :func:`settings`; imports the lines.

The import loosens nothing. It leaves out a client that must do what this server cannot demand, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from nfsd.importing.lines import Grant, Line

_DEFAULTS: Final[dict[str, Any]] = {
    "access": "ro", "squash": "root", "anonuid": 65534, "anongid": 65534, "secure": "tcp",
    "sec": ("sys",),
}  # fmt: skip
"""Of exports(5): every one of these differs from what this server takes for granted, but the anonymous user."""
_SET: Final[dict[str, tuple[str, Any]]] = {
    "ro": ("access", "ro"),
    "rw": ("access", "rw"),
    "secure": ("secure", "tcp"),
    "insecure": ("secure", False),
    "async": ("async", True),
    "sync": ("async", False),
    "crossmnt": ("cross_mounts", True),
    "nocrossmnt": ("cross_mounts", False),
    "security_label": ("security_labels", True),
    "mountpoint": ("mountpoint", True),
    "mp": ("mountpoint", True),
}
_AS_HERE: Final = frozenset(
    (
        "no_subtree_check",
        "hide",
        "wdelay",
        "secure_locks",
        "auth_nlm",
        "acl",
        "no_pnfs",
        "rdirplus",
        "reexport=none",
        "",
    )
)
"""What this server does anyway."""
_IGNORED: Final = {
    "no_wdelay": "writes are never held back",
    "subtree_check": "handles are not checked against paths: they cannot be made up",
    "nohide": "set cross_mounts: true for the export above, so that its clients walk in here",
    "insecure_locks": "lock requests need credentials as all calls do",
    "no_auth_nlm": "lock requests need credentials as all calls do",
    "no_acl": "clients see ACLs where the file system has them",
    "nordirplus": "READDIRPLUS is always answered",
    "pnfs": "there are no layouts of blocks",
}
SECURITY: Final = {one: one for one in ("krb5p", "krb5i", "krb5", "sys", "none")} | {"unix": "sys", "null": "none"}
"""Flavors by their names there and in Ganesha's files."""
_SQUASHES: Final = ("root_squash", "no_root_squash", "all_squash", "no_all_squash")
_MOST_ID: Final = 0xFFFFFFFF


@dataclass(slots=True)
class Settings:
    """One client's."""

    line: Line
    host: str
    client: dict[str, Any] = field(default_factory=lambda: dict(_DEFAULTS))
    """What may differ by client: keys of an export's ``clients``."""
    export: dict[str, Any] = field(default_factory=dict)
    """What may not: keys of the export itself."""
    fsid: str = ""
    seen: list[str] = field(default_factory=list)
    """The options so far."""
    notes: list[str] = field(default_factory=list)
    """What is not as it was."""
    refused: list[str] = field(default_factory=list)
    """Why this client is left out."""


def settings(grant: Grant) -> Settings:
    """What a line means for one client."""
    found = Settings(grant.line, _host(grant.client))
    if grant.client.startswith("gss/"):
        found.refused.append(f"{grant.client}: is not supported; give sec= to the clients it is for")
    elif "[" in found.host:
        found.refused.append(f"{grant.client}: names with [ ] are not supported; write them out, or use ? and *")
    if not grant.client:
        found.notes.append("no client is named: it is for everybody")
    squash = {"root": True, "all": False}
    for option in grant.options:
        name, _, value = option.partition("=")
        if option in _SQUASHES:
            squash["root" if option.endswith("root_squash") else "all"] = not option.startswith("no_")
        elif name in _SET and not value:
            key, setting = _SET[name]
            (found.client if key in _DEFAULTS else found.export)[key] = setting
        elif option in _IGNORED:
            found.notes.append(f"{option} is left out: {_IGNORED[option]}")
        elif option not in _AS_HERE:
            _with_value(found, name, value)
        found.seen.append(option)
    found.client["squash"] = "all" if squash["all"] else "root" if squash["root"] else "none"
    return found


def _host(client: str) -> str:
    """A client as the configuration has it."""
    if client in ("", "*"):
        return "*"
    return client.strip("[]") if client.startswith("[") and ":" in client else client


def _with_value(found: Settings, name: str, value: str) -> None:
    match name:
        case "anonuid" | "anongid":
            _take_id(found, name, value)
        case "fsid":
            found.fsid = "0" if value == "root" else value
        case "mountpoint" | "mp":
            found.export["mountpoint"] = value
        case "sec":
            _take_security(found, value)
        case "xprtsec":
            wanted = value.split(":")
            if not set(wanted) <= {"none", "tls", "mtls"}:
                found.refused.append(f"xprtsec={value}: what it demands is not known, and not loosened")
            elif wanted != ["none"]:
                found.client["xprtsec"] = tuple(wanted)
        case "refer" | "replicas":
            found.export["referral" if name == "refer" else "replicas"] = _places(found, name, value)
        case _:
            option = f"{name}={value}" if value else name
            found.notes.append(f"{option} is left out: this server does not know it")


def _take_security(found: Settings, value: str) -> None:
    """``sec=``, which has the options behind it hold for these flavors only."""
    words = value.split(":")
    if any(option.partition("=")[0] == "sec" for option in found.seen):
        found.refused.append(f"sec={value}: settings cannot differ by flavor here, so one sec= is all there may be")
    elif unknown := [one for one in words if one not in SECURITY]:
        found.refused.append(f"sec={value}: {unknown[0]} is not supported; what demands more is not loosened")
    else:
        found.client["sec"] = tuple(dict.fromkeys(SECURITY[one] for one in words))


def _take_id(found: Settings, name: str, value: str) -> None:
    try:
        number = int(value, 0) & _MOST_ID
    except ValueError:
        found.refused.append(f"{name}={value}: is no number")
        return
    if number == _MOST_ID:
        found.notes.append(f"{name}={value} means nobody to the system: 65534 stands for it")
        number = 65534
    found.client[name] = number


def _places(found: Settings, option: str, value: str) -> list[str]:
    """``path@host+host:path@host`` as places of ours."""
    places = []
    for one in value.split(":"):
        path, at, hosts = one.partition("@")
        if not at or not path.startswith("/"):
            found.refused.append(f"{option}={value}: is not PATH@HOST")
            continue
        places += [f"{host}:{path}" for host in hosts.split("+")]
    return places
