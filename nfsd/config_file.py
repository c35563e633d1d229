"""From a YAML file to :class:`nfsd.config.Config`, or to problems that name file, line, key and remedy.

Owns reading and checking; imports :mod:`nfsd.config` (the declarations) and :mod:`nfsd.exports`. One check finds all
problems of a file. Relative paths are relative to the directory of the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from nfsd import config, versions
from nfsd.config import Config, ExportEntry, Location, Server, dotted
from nfsd.config_text import BadText, check_size, read_text
from nfsd.exports import ClientOverride, Export, Place, derive_id
from nfsd.reach import real_paths
from rpcrdma.paces import Bound

_CLASSES: dict[Location, Any] = {
    (): config.File,
    ("server",): config.Server,
    ("server", "listen", "*"): config.Listen,
    ("server", "client_rate"): config.Rate,
    ("server", "nfs4"): config.Nfs4,
    ("server", "nfs4", "limits"): config.Nfs4Limits,
    ("server", "limits"): config.Limits,
    ("server", "log"): config.Log,
    ("server", "audit"): config.Audit,
    ("server", "metrics"): config.Metrics,
    ("exports", "*"): config.ExportEntry,
    ("exports", "*", "rate"): config.Rate,
    ("exports", "*", "clients", "*"): config.Client,
    ("exports", "*", "clients", "*", "rate"): config.Rate,
}
_ALIASES = {"asynchronous": "async"}
_AS_WRITTEN = frozenset(("umask", "versions"))
"""Keys whose values are text however they look: YAML takes 022 for an octal number, 22 for another one, 4.0 for 4."""
_RDMA_ONLY = ("provider", "send_size", "receive_size", "credits", "version_two", "crc", "tos")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the file."""

    file: str
    line: int
    key: str
    """Dotted, as ``exports[0].squash``; empty for the file as a whole."""
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class ConfigError(Exception):
    """The file cannot be used; ``problems`` says why, in the order of their lines."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(map(str, self.problems)))


def load(file: str) -> Config:
    """Read and check a configuration file. Raises ConfigError."""
    try:
        text = read_text(file)
    except BadText as error:
        raise ConfigError([Problem(file, error.line, "", str(error))]) from None
    return parse(text, file)


def parse(text: str, file: str) -> Config:
    """The configuration that ``text`` is; ``file`` names it and is where relative paths start. Raises ConfigError."""
    document = _Document(file)
    data = document.read(text)
    document.fail_if_problems()
    try:
        found = TypeAdapter(config.File).validate_python(data)
    except ValidationError as error:
        for detail in error.errors():
            if detail["type"] == "too_short" and detail["input"]:
                continue  # a list shortened by elements with problems of their own
            document.problem(detail["loc"], _message(detail))
        document.fail_if_problems()
        raise
    base = os.path.dirname(os.path.abspath(file))
    server = _check_server(document, found.server, base)
    exports = _check_exports(document, found.exports, base)
    _check_security(document, found)
    for index, export in enumerate(exports):
        if not export.versions & server.spoken:
            document.problem(("exports", index, "versions"), "names none of server.versions; add one")
    inner = os.path.realpath(server.state_dir)
    for outer in real_paths(export.path for export in exports if not export.referral).values():
        if os.path.commonpath((inner, outer)) == outer:
            # Whoever reads the handle key there can make handles for any file.
            document.problem(("server", "state_dir"), f"{inner} lies inside of the export {outer}; name another")
    document.fail_if_problems()
    return Config(file, server, exports, document.lines)


class _Document:
    """A YAML document that remembers the line of every key."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.lines: dict[Location, int] = {}

    def read(self, text: str) -> Any:
        loader = None
        try:
            check_size(text)
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            if node is None:
                self.problem((), "is empty; it needs server: and exports:")
                return None
            return self._construct(loader, node, (), frozenset())
        except BadText as error:
            self.lines[()] = error.line
            self.problem((), str(error))
        except yaml.reader.ReaderError as error:
            self.lines[()] = text.count("\n", 0, error.position) + 1
            self.problem((), f"is not YAML: {error.reason}")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.lines[()] = mark.line + 1 if mark else 0
            self.problem((), f"is not YAML: {error.problem or error.context}")
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.problem((), f"is not YAML: {error}")
        finally:
            if loader is not None:
                loader.dispose()
        return None

    def _construct(self, loader: yaml.SafeLoader, node: yaml.Node, where: Location, outer: frozenset[int]) -> Any:
        self.lines.setdefault(where, node.start_mark.line + 1)
        if id(node) in outer:
            self.problem(where, "refers to itself")
            return None
        outer |= {id(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self._construct(loader, item, (*where, index), outer) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self._scalar(loader, node, where)
        self._check_duplicates(node, where)
        loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.lines[*where, "?"] = key_node.start_mark.line + 1
                self.problem((*where, "?"), "a key must be text")
                continue
            key = str(key_node.value)
            self.lines[*where, key] = key_node.start_mark.line + 1
            result[key] = self._construct(loader, value_node, (*where, key), outer)
        return result

    def _scalar(self, loader: yaml.SafeLoader, node: yaml.Node, where: Location) -> Any:
        if not _AS_WRITTEN.isdisjoint(where[-2:]):
            return str(node.value)
        try:
            value = loader.construct_object(node, deep=True)
        except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError):
            # PyYAML's constructors take a value that is tagged, or looks, like one of a type for one.
            self.problem(where, f"{str(node.value)[:40]!r} cannot be read as {node.tag.rpartition(':')[2]}; quote it")
            return None
        if isinstance(value, int) and value.bit_length() > 64:
            self.problem(where, "is too large a number; at most 64 bits")
            return None
        if isinstance(value, str) and not _is_text(value):
            self.problem(where, "holds what no path or name may (NUL, or half of a surrogate pair)")
            return None
        return value

    def _check_duplicates(self, node: yaml.MappingNode, where: Location) -> None:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in first:
                self.lines[*where, key] = line
                self.problem((*where, key), f"stands here twice, first in line {first[key]}; remove one")
            first.setdefault(key, line)

    def line(self, where: Location) -> int:
        """The line of a key, or of what it is missing from."""
        while where not in self.lines and where:
            where = where[:-1]
        return self.lines.get(where, 0)

    def problem(self, where: Location, message: str) -> None:
        self.problems.append(Problem(self.file, self.line(where), dotted(where), message))

    def fail_if_problems(self) -> None:
        if self.problems:
            raise ConfigError(self.problems)


def _is_text(value: str) -> bool:
    """Whether the kernel takes it for a path or a name. YAML's escapes make characters that the file may not hold."""
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _keys(where: Location) -> list[str]:
    """The keys there may be in the mapping at ``where``."""
    known = _CLASSES.get(tuple("*" if isinstance(part, int) else part for part in where))
    return [_ALIASES.get(f.name, f.name) for f in dataclasses.fields(known)] if known else []


def _message(detail: Any) -> str:
    """What is wrong and what to do, for an error that pydantic found."""
    kind, where, value, context = detail["type"], detail["loc"], detail["input"], detail.get("ctx") or {}
    match kind:
        case "unexpected_keyword_argument":
            keys = _keys(where[:-1])
            close = difflib.get_close_matches(str(where[-1]), keys, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(keys)}"
            return f"unknown key; {hint}"
        case "missing":
            return "is missing; add it"
        case "literal_error":
            given = "false (YAML reads no and off so; quote it)" if value is False else repr(value)
            close = difflib.get_close_matches(str(value), re.findall(r"'([^']+)'", context["expected"]), 1)
            return f"must be {context['expected']}, not {given}" + (f"; did you mean {close[0]!r}?" if close else "")
        case "dataclass_type" | "dict_type":
            keys = _keys(where)
            return f"must be a mapping with {', '.join(keys)}; found {_name(value)}"
        case "tuple_type":
            return f"must be a list, as in [...]; found {_name(value)}"
        case "too_short":
            return "must have at least one entry"
        case "int_type":
            return f"must be a whole number; found {_name(value)}"
        case "float_parsing" | "float_type":
            return f"must be a number of seconds; found {_name(value)}"
        case "string_type":
            return f"must be text; found {_name(value)}" + ("" if value is None else "; put it in quotes")
        case "bool_type":
            return f"must be true or false; found {_name(value)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}; found {value}"
        case "less_than_equal":
            return f"must be at most {context['le']}; found {value}"
        case "greater_than":
            return f"must be more than {context['gt']}; found {value}"
        case "multiple_of":
            return f"must be a multiple of {context['multiple_of']}; found {value}"
        case "value_error":
            return f"{value!r} {context['error']}"
    return f"{detail['msg']}; found {_name(value)}"


def _name(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)


def _check_server(document: _Document, server: Server, base: str) -> Server:
    listen: Location = ("server", "listen")
    if not server.listen:
        document.problem(listen, "is empty; add an address such as tcp://127.0.0.1:2049")
    seen: dict[config.Address, int] = {}
    for index, entry in enumerate(server.listen):
        try:
            address = entry.address
        except ValueError as error:
            document.problem((*listen, index), f"{entry.url!r}: {error}")
            continue
        if address.port and seen.setdefault(address, index) != index:
            document.problem((*listen, index), f"{address} stands here twice; remove one")
        if address.scheme == "tcp":
            for key in _RDMA_ONLY:
                default = next(f.default for f in dataclasses.fields(entry) if f.name == key)
                if getattr(entry, key) != default:
                    document.problem((*listen, index, key), "is for rdma:// addresses only; remove it")
    if server.metrics.listen is not None:
        try:
            config.split_host_port(server.metrics.listen)
        except ValueError as error:
            document.problem(("server", "metrics", "listen"), f"{server.metrics.listen!r}: {error}")
    domain = server.nfs4.domain
    if domain is not None and not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?", domain):
        document.problem(("server", "nfs4", "domain"), f"{domain!r} is no domain; write for example example.org")
    if server.limits.connection_memory > server.limits.memory:
        document.problem(("server", "limits", "connection_memory"), "must not be more than memory")
    if (server.limits.host_memory or 0) > server.limits.memory:
        document.problem(("server", "limits", "host_memory"), "must not be more than memory")
    state_dir = os.path.join(base, server.state_dir)
    if os.path.lexists(state_dir) and not os.path.isdir(state_dir):
        document.problem(("server", "state_dir"), f"{state_dir} is not a directory; name another or move it away")
    audit = server.audit
    if audit.file is not None:
        audit = dataclasses.replace(audit, file=os.path.normpath(os.path.join(base, audit.file)))
    tls = server.tls
    if tls is not None:
        names = {field.name: getattr(tls, field.name) for field in dataclasses.fields(tls)}
        tls = config.Tls(**{key: name and os.path.normpath(os.path.join(base, name)) for key, name in names.items()})
    return dataclasses.replace(server, state_dir=os.path.normpath(state_dir), audit=audit, tls=tls)


def _check_exports(document: _Document, entries: tuple[ExportEntry, ...], base: str) -> tuple[Export, ...]:
    exports = [_check_export(document, entry, ("exports", index), base) for index, entry in enumerate(entries)]
    paths: dict[str, int] = {}
    ids: dict[int, int] = {}
    real = real_paths(export.path for export in exports if not export.referral)
    for index, export in enumerate(exports):
        first = index if export.referral else paths.setdefault(real[export.path], index)
        if first != index:
            line = document.line(("exports", first, "path"))
            document.problem(
                ("exports", index, "path"), f"{export.path} is exported already in line {line}; remove one"
            )
            continue
        first = ids.setdefault(export.id, index)
        if first != index:
            line = document.line(("exports", first))
            document.problem(
                ("exports", index, "id"), f"is {export.id}, as in line {line}; give this export another id:"
            )
    for index, export in enumerate(exports):
        for other_index, other in enumerate(exports[:index]):
            message = _overlap(export.pseudo, other.pseudo)
            if message:
                line = document.line(("exports", other_index, "pseudo"))
                document.problem(("exports", index, "pseudo"), f"{export.pseudo} {message} line {line}; choose another")
    return tuple(exports)


def _check_security(document: _Document, file: config.File) -> None:
    """See that what clients must do can be done: nobody could use the export otherwise."""
    tls = file.server.tls
    for index, entry in enumerate(file.exports):
        demands: list[tuple[Location, tuple[str, ...]]] = [((), entry.xprtsec)]
        demands += [(("clients", number), client.xprtsec or ()) for number, client in enumerate(entry.clients)]
        for where, wanted in demands:
            place = ("exports", index, *where, "xprtsec")
            if wanted and "none" not in wanted and tls is None:
                document.problem(place, "demands TLS, which takes a certificate; set server.tls")
            elif wanted == ("mtls",) and tls is not None and tls.client_roots is None:
                document.problem(place, "demands clients' certificates; set server.tls.client_roots, which checks them")


def _overlap(name: str, other: str) -> str:
    if name == other:
        return "is the name of another export already:"
    if name.startswith(other.rstrip("/") + "/"):
        return f"lies inside of {other}, the name of another export:"
    if other.startswith(name.rstrip("/") + "/"):
        return f"contains {other}, the name of another export:"
    return ""


def _check_export(document: _Document, entry: ExportEntry, where: Location, base: str) -> Export:
    path = os.path.normpath(os.path.join(base, entry.path or ""))
    if entry.referral:
        path = ""
        if entry.path is not None:
            document.problem((*where, "path"), "a referral has no directory here; remove path or referral")
        if entry.pseudo is None:
            document.problem((*where, "pseudo"), "is missing; give the referral a name, such as /projects")
        if entry.replicas:
            document.problem((*where, "replicas"), "list every place in referral; there are no files here to replicate")
    elif entry.path is None:
        document.problem((*where, "path"), "is missing; name the directory, or with referral other servers")
    elif not entry.path or "\0" in entry.path:
        document.problem((*where, "path"), "must name a directory")
    pseudo = entry.pseudo if entry.pseudo is not None else "/" + os.path.basename(path)
    parts = [part for part in pseudo.split("/") if part]
    if not pseudo.startswith("/"):
        document.problem((*where, "pseudo"), f"{pseudo!r} must begin with a slash: {'/' + pseudo!r}")
    elif ".." in parts or "." in parts or "\0" in pseudo:
        document.problem((*where, "pseudo"), f"{pseudo!r} must be a plain name, without . and ..")
    elif any(len(os.fsencode(part)) > 255 for part in parts) or len(os.fsencode(pseudo)) > 1023:
        # RFC 1813 appendix I: MNTPATHLEN is 1024.
        document.problem((*where, "pseudo"), "is too long; at most 255 octets a name and 1023 in all")
    mountpoint = entry.mountpoint
    if isinstance(mountpoint, str):
        mountpoint = os.path.normpath(os.path.join(base, mountpoint))
    for message, index in _bad_clients(entry):
        document.problem((*where, "clients", index), message)
    return Export(
        id=entry.id if entry.id is not None else derive_id(path or f"referral:{pseudo}"),
        path=path,
        pseudo="/" + "/".join(parts),
        # The file system below knows no clients: where one of them may write, the others are kept from it one by one.
        read_only=_read_only(entry),
        squash=entry.squash,
        anonuid=entry.anonuid,
        anongid=entry.anongid,
        clients=tuple(client.host for client in entry.clients),
        asynchronous=entry.asynchronous,
        cross_mounts=entry.cross_mounts,
        mountpoint=mountpoint,
        workers=entry.workers,
        overrides=_overrides(entry),
        security_labels=entry.security_labels,
        referral=_places(document, entry.referral, (*where, "referral")),
        replicas=_places(document, entry.replicas, (*where, "replicas")),
        secure=entry.secure,
        xprtsec=entry.xprtsec,
        umask=entry.umask,
        manage_gids=entry.manage_gids,
        versions=versions.of_names(entry.versions),
        max_read=entry.max_read,
        max_write=entry.max_write,
        rate=bound_of(entry.rate),
        origin=f"{document.file}:{document.line((*where, 'secure'))}",
        source=f"{document.file}:{document.line((*where, 'clients'))}",
        place=f"{document.file}:{document.line((*where, 'path'))}",
    )


def bound_of(rate: config.Rate) -> Bound:
    """A rate as the server goes by it."""
    return Bound(rate.octets or 0, rate.calls or 0)


def _places(document: _Document, texts: tuple[str, ...], where: Location) -> tuple[Place, ...]:
    """The places that entries such as ``server.example.org:/export`` name."""
    places = []
    for index, text in enumerate(texts):
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+)):(/[^\0]*)", text)
        if found is None:
            document.problem((*where, index), f"{text!r} is no place; write HOST:/PATH, an IPv6 address in brackets")
        else:
            places.append(Place(found[1] or found[2], found[3]))
    return tuple(places)


def _read_only(entry: ExportEntry) -> bool:
    return entry.access == "ro" and all(client.access != "rw" for client in entry.clients)


def _overrides(entry: ExportEntry) -> tuple[ClientOverride, ...]:
    overrides = []
    for client in entry.clients:
        access = client.access
        if access is None and entry.access == "ro" and not _read_only(entry):
            access = "ro"
        read_only = None if access is None else access == "ro"
        rate = None if client.rate is None else bound_of(client.rate)
        squash = (client.squash, client.anonuid, client.anongid)
        changed = (read_only, *squash, client.secure, client.umask, rate, client.weight, client.xprtsec)
        if any(setting is not None for setting in changed):
            overrides.append(ClientOverride(client.host, *changed))
    return tuple(overrides)


def _bad_clients(entry: ExportEntry) -> Iterator[tuple[str, int]]:
    seen: set[str] = set()
    for index, client in enumerate(entry.clients):
        host = client.host
        if host in seen:
            yield f"{host!r} stands here twice; remove one", index
        seen.add(host)
        if host.startswith("@"):
            if not re.fullmatch(r"@[^\s@,()/:*?#]{1,255}", host):
                yield f"{host!r} is no netgroup; write for example @trusted", index
        elif "/" in host or ":" in host or re.fullmatch(r"[\d.]+", host):
            try:
                ipaddress.ip_network(host, strict=False)
            except ValueError:
                yield (
                    f"{host!r} is no address or network; write for example 10.0.0.1, 10.0.0.0/8 or 2001:db8::/32",
                    index,
                )
        elif not re.fullmatch(r"[A-Za-z0-9_*?]([A-Za-z0-9_*?.-]{0,252}[A-Za-z0-9_*?.])?", host):
            yield f"{host!r} is no address, network, host name, netgroup or *", index
