"""From a YAML file to :class:`nfsd.config.Config`, or to problems that name file, line, key and remedy.

Owns the checks; imports :mod:`nfsd.config` (the declarations), the document and :mod:`nfsd.exports`. One check finds
all problems of a file. Relative paths are relative to the directory of the file.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
from collections.abc import Iterator
from typing import Any

from nfsd import config, config_stable, versions
from nfsd.config import Config, ExportEntry, Location, Server
from nfsd.config_backends import backend_of, problems_of_backend
from nfsd.config_document import ConfigError as ConfigError
from nfsd.config_document import Document
from nfsd.config_document import Problem as Problem
from nfsd.config_security import problem_by_certificate, unmet_demands
from nfsd.config_text import BadText, read_text
from nfsd.exports import ClientOverride, Export, Place, derive_id
from nfsd.reach import real_paths
from rpcrdma.paces import Bound

_CLASSES: dict[Location, Any] = {
    (): config.File,
    ("server",): config.Server,
    ("server", "listen", "*"): config.Listen,
    ("server", "client_rate"): config.Rate,
    ("server", "kerberos"): config.Kerberos,
    ("server", "stable_storage"): config_stable.StableStorage,
    ("server", "stable_storage", "rados"): config_stable.RadosPool,
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
_RDMA_ONLY = ("provider", "send_size", "receive_size", "credits", "version_two", "crc", "tos")


def load(file: str) -> Config:
    """Read and check a configuration file. Raises ConfigError."""
    try:
        text = read_text(file)
    except BadText as error:
        raise ConfigError([Problem(file, error.line, "", str(error))]) from None
    return parse(text, file)


def parse(text: str, file: str) -> Config:
    """The configuration that ``text`` is; ``file`` names it and is where relative paths start. Raises ConfigError."""
    document = Document(file, "server: and exports:")
    found = document.validated(text, config.File, _CLASSES)
    base = os.path.dirname(os.path.abspath(file))
    server = _check_server(document, found.server, base)
    exports = _check_exports(document, found.exports, base, server.processes)
    for where, message in unmet_demands(found):
        document.problem(where, message)
    for index, export in enumerate(exports):
        if not export.versions & server.spoken:
            document.problem(("exports", index, "versions"), "names none of server.versions; add one")
    inner = os.path.realpath(server.state_dir)
    for outer in real_paths(export.path for export in exports if export.path).values():
        if os.path.commonpath((inner, outer)) == outer:
            # Whoever reads the handle key there can make handles for any file.
            document.problem(("server", "state_dir"), f"{inner} lies inside of the export {outer}; name another")
    document.fail_if_problems()
    return Config(file, server, exports, document.lines)


def _check_server(document: Document, server: Server, base: str) -> Server:
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
    count = server.processes
    if server.limits.memory // count < 16 << 20:
        document.problem(("server", "limits", "memory"), f"is too little for {count} processes; each takes 16MiB")
    if count > 1 and server.nfs4.delegations == "nfs":
        what = "takes one process: the others' clients would not be seen; write local, or off"
        document.problem(("server", "nfs4", "delegations"), what)
    for key, what in config_stable.problems_of_stable_storage(server.stable_storage, server.name, count):
        document.problem(("server", key), what)
    state_dir = os.path.join(base, server.state_dir)
    if os.path.lexists(state_dir) and not os.path.isdir(state_dir):
        document.problem(("server", "state_dir"), f"{state_dir} is not a directory; name another or move it away")
    audit = server.audit
    if audit.file is not None:
        audit = dataclasses.replace(audit, file=os.path.normpath(os.path.join(base, audit.file)))
    tls = server.tls
    if tls is not None:
        names = {key: getattr(tls, key) for key in ("certificate", "key", "client_roots", "revoked")}
        paths: dict[str, Any] = {
            key: name and os.path.normpath(os.path.join(base, name)) for key, name in names.items()
        }
        tls = dataclasses.replace(tls, **paths)
    kerberos = server.kerberos
    if kerberos is not None:
        kerberos = dataclasses.replace(kerberos, keytab=os.path.normpath(os.path.join(base, kerberos.keytab)))
    return dataclasses.replace(server, state_dir=os.path.normpath(state_dir), audit=audit, tls=tls, kerberos=kerberos)


def _check_exports(
    document: Document, entries: tuple[ExportEntry, ...], base: str, processes: int
) -> tuple[Export, ...]:
    exports = [
        _check_export(document, entry, ("exports", index), base, processes) for index, entry in enumerate(entries)
    ]
    paths: dict[str, int] = {}
    ids: dict[int, int] = {}
    real = real_paths(export.path for export in exports if export.path)
    for index, export in enumerate(exports):
        first = index if not export.path else paths.setdefault(real[export.path], index)
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


def _overlap(name: str, other: str) -> str:
    if name == other:
        return "is the name of another export already:"
    if name.startswith(other.rstrip("/") + "/"):
        return f"lies inside of {other}, the name of another export:"
    if other.startswith(name.rstrip("/") + "/"):
        return f"contains {other}, the name of another export:"
    return ""


def _check_export(document: Document, entry: ExportEntry, where: Location, base: str, processes: int) -> Export:
    path = os.path.normpath(os.path.join(base, entry.path or ""))
    if entry.referral:
        path = ""
        if entry.path is not None:
            document.problem((*where, "path"), "a referral has no directory here; remove path or referral")
        if entry.pseudo is None:
            document.problem((*where, "pseudo"), "is missing; give the referral a name, such as /projects")
        if entry.replicas:
            document.problem((*where, "replicas"), "list every place in referral; there are no files here to replicate")
    elif entry.backend is not None:
        path = ""
        for key, message in problems_of_backend(entry, processes):
            document.problem((*where, key), message)
    elif entry.path is None:
        document.problem((*where, "path"), "is missing; name the directory, a backend, or with referral other servers")
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
    nature = "referral" if entry.backend is None else "backend"
    return Export(
        id=entry.id if entry.id is not None else derive_id(path or f"{nature}:{pseudo}"),
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
        backend=backend_of(entry),
        secure=entry.secure,
        xprtsec=entry.xprtsec,
        sec=entry.sec,
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


def _places(document: Document, texts: tuple[str, ...], where: Location) -> tuple[Place, ...]:
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
        changed = (read_only, *squash, client.secure, client.umask, rate, client.weight, client.xprtsec, client.sec)
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
        if host.startswith("cert:"):
            if problem := problem_by_certificate(client):
                yield problem, index
        elif host.startswith("@"):
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
