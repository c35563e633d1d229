"""The file of rules: which calls something is done to, and what.

Owns the declarations and their reading. Imports the reader of the configuration: a mistake has a file, a line, a key
and a remedy here as there.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictStr

from nfsd.config import Location
from nfsd.config_document import ConfigError, Document, Problem
from nfsd.config_text import BadText, read_text
from nfsd.config_values import Integer, Seconds
from nfsd.faults.calls import ATTRIBUTES, PROGRAMS, names_of
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.protocol.nfs4 import nfsstat4
from nfsd.protocol.nfs4_ops import CALLBACK_OPERATIONS

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Wait = Annotated[Seconds, Field(le=3600)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: what it is for, when it acts, and what it does."""

    __pydantic_config__ = _STRICT

    name: StrictStr = ""
    """In the log and in the metrics; ``rule N`` by default."""
    clients: Annotated[tuple[StrictStr, ...], Field(min_length=1)] | None = None
    """Addresses and networks."""
    transports: Annotated[tuple[Literal["rdma", "tcp"], ...], Field(min_length=1)] | None = None
    connections: Annotated[tuple[Annotated[Integer, Field(ge=1)], ...], Field(min_length=1)] | None = None
    """Those of the clients and transports, counted from 1 in the order of their first calls under these rules."""
    exports: Annotated[tuple[StrictStr, ...], Field(min_length=1)] | None = None
    """By their names for clients: calls that name a file of one."""
    programs: Annotated[tuple[StrictStr, ...], Field(min_length=1)] = ("nfs",)
    versions: Annotated[tuple[Literal["1", "2", "3", "4", "4.0", "4.1", "4.2"], ...], Field(min_length=1)] | None = None
    calls: Annotated[tuple[StrictStr, ...], Field(min_length=1)] | None = None
    """Procedures, and operations of COMPOUNDs; of callbacks, CB_RECALL and the like."""

    skip: Annotated[Integer, Field(ge=0)] = 0
    """Calls that it is for, and that it lets pass before it begins."""
    every: Annotated[Integer, Field(ge=1)] = 1
    """It acts on the first call from then on, and then on each of so many."""
    times: Annotated[Integer, Field(ge=1)] | None = None
    """It acts so often at most."""
    seconds: Wait | None = None
    """It acts for so long, from when it acts first."""
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0

    delay: Wait | None = None
    delay_reply: Wait | None = None
    overtaken_by: Annotated[Integer, Field(ge=1, le=1000)] | None = None
    drop: Literal["call", "reply"] | None = None
    disconnect: Literal["before", "after"] | None = None
    error: StrictStr | None = None
    read_at_most: Annotated[Integer, Field(ge=0)] | None = None
    leave_out: Annotated[tuple[StrictStr, ...], Field(min_length=1)] | None = None
    """Attributes of NFSv4 that GETATTR and READDIR do not tell."""
    credits: Annotated[Integer, Field(ge=0, le=65535)] | None = None
    refuse: Literal["ERR_CHUNK", "ERR_VERS"] | None = None
    invalidate: Literal["none", "last", "wrong"] | None = None
    expire: StrictBool = False
    new_owner: StrictBool = False
    new_verifier: StrictBool = False
    callback: Literal["unsent", "unheard"] | None = None

    @property
    def actions(self) -> list[str]:
        """What it does, by key."""
        return [key for key in ACTIONS if (value := getattr(self, key)) is not None and value is not False]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A whole file."""

    __pydantic_config__ = _STRICT

    seed: Annotated[Integer, Field(ge=0)] = 0
    """With the same seed the same calls, in the same order, meet the same faults."""
    rules: tuple[Rule, ...] = ()


ACTIONS: Final = (
    "delay", "delay_reply", "overtaken_by", "drop", "disconnect", "error", "read_at_most", "leave_out", "credits",
    "refuse", "invalidate", "expire", "new_owner", "new_verifier", "callback",
)  # fmt: skip
"""The keys that say what is done."""
OF_RDMA: Final = ("credits", "refuse", "invalidate")
"""Those that say what is wrong with a transport header: rules with one are for RDMA connections only."""
_CLASSES: Final[Mapping[Location, Any]] = {(): Rules, ("rules", "*"): Rule}
_READS: Final = frozenset(("READ", "READ_PLUS"))
_TELLING: Final = frozenset(("GETATTR", "READDIR"))
_ALONE: Final = ("drop", "disconnect")
_CALLBACKS: Final = frozenset(row.name for row in CALLBACK_OPERATIONS.values())


def load(file: str) -> Rules:
    """Read and check a file of rules. Raises ConfigError."""
    try:
        text = read_text(file)
    except BadText as error:
        raise ConfigError([Problem(file, error.line, "", str(error))]) from None
    return parse(text, os.path.basename(file) if len(file) > 200 else file)


def parse(text: str, file: str) -> Rules:
    """The rules that ``text`` is; ``file`` names it in problems. Raises ConfigError."""
    document = Document(file, "rules:, as in rules: []")
    rules = document.validated(text, Rules, _CLASSES)
    seen: dict[str, int] = {}
    named = []
    for index, written in enumerate(rules.rules):
        rule = dataclasses.replace(written, name=written.name or f"rule {index + 1}")
        if seen.setdefault(rule.name, index) != index:
            document.problem(("rules", index, "name"), f"{rule.name!r} stands here twice; rename one")
        for key, message in _mistakes(rule):
            document.problem(("rules", index, key) if key else ("rules", index), message)
        named.append(rule)
    document.fail_if_problems()
    return dataclasses.replace(rules, rules=tuple(named))


def _mistakes(rule: Rule) -> list[tuple[str, str]]:
    """Key and message for each mistake in a rule."""
    found = []
    actions = rule.actions
    if not actions:
        found.append(("", f"does nothing; add one of {', '.join(ACTIONS)}"))
    for client in rule.clients or ():
        try:
            ipaddress.ip_network(client, strict=False)
        except ValueError:
            found.append(("clients", f"{client!r} is no address or network; write for example 192.0.2.7 or 10.0.0.0/8"))
    unknown = [program for program in rule.programs if program not in PROGRAMS]
    found += [("programs", f"there is no {program!r}; there are {', '.join(PROGRAMS)}") for program in unknown]
    for call in rule.calls or ():
        known = _CALLBACKS if rule.callback else names_of(rule.programs)
        if call not in known:
            close = difflib.get_close_matches(call, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else "write a name from the RFC, such as WRITE"
            found.append(("calls", f"there is no call {call!r} of {', '.join(rule.programs)}; {hint}"))
    if "tcp" in (rule.transports or ()):
        only = "is for RDMA connections only; write transports: [rdma]"
        found += [(key, only) for key in OF_RDMA if key in actions]
    if set(actions) - {"delay", "expire", "new_owner", "new_verifier"} - {*_ALONE}:
        nothing = "leaves no reply for the other action; make it a rule of its own"
        found += [(key, nothing) for key in _ALONE if key in actions]
    if rule.callback and len(actions) > 1:
        found.append(("callback", "is for callbacks, everything else for calls; make it a rule of its own"))
    if rule.read_at_most is not None and not (rule.calls and _READS.issuperset(rule.calls)):
        found.append(("read_at_most", "is for READ and READ_PLUS; write calls: [READ]"))
    if rule.leave_out is not None:
        if any(one[0] != "4" for one in rule.versions or ()):
            found.append(("leave_out", "is for NFSv4; write versions: [4], or leave them out"))
        if not (rule.calls and _TELLING.issuperset(rule.calls)):
            found.append(("leave_out", "is for GETATTR and READDIR; write calls: [GETATTR, READDIR]"))
    for name in rule.leave_out or ():
        if name not in ATTRIBUTES:
            close = difflib.get_close_matches(name, ATTRIBUTES, 1)
            hint = f"did you mean {close[0]!r}?" if close else "write a name from the RFC, such as FSID"
            found.append(("leave_out", f"there is no attribute {name!r}; {hint}"))
    return found + _mistakes_of_error(rule)


def _mistakes_of_error(rule: Rule) -> list[tuple[str, str]]:
    error = rule.error
    if error is None:
        return []
    known = [*nfsstat3.__members__, *nfsstat4.__members__]
    if error not in known or error in ("NFS3_OK", "NFS4_OK"):
        close = difflib.get_close_matches(error, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else "write a name from the RFC, such as NFS3ERR_JUKEBOX"
        return [("error", f"there is no error {error!r}; {hint}")]
    version = version_of(error)
    if rule.programs != ("nfs",):
        return [("error", "is for the program nfs; write programs: [nfs], or leave it out")]
    if any(one[0] != str(version) for one in rule.versions or ()):
        return [("error", f"is one of NFSv{version}; write versions: [{version}], or leave them out")]
    if version == 4 and not rule.calls:
        return [("error", "needs the operations that fail; write for example calls: [OPEN]")]
    return []


def version_of(error: str) -> int:
    """The version of NFS that has an error of this name."""
    return 3 if error.startswith("NFS3") else 4
