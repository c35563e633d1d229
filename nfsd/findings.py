"""Finds what on this host is in the way of a correct configuration, before the server starts and as the start would.

Owns :func:`examine`, whose findings ``rdma-nfsd check`` prints. It tries each part with the server's own code: the
state directory's checks, the listeners' sockets (which do not listen here), and the file service with a state of its
own. It changes nothing and serves nobody. Imports the configuration and those parts.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from nfsd import state_dir
from nfsd.config import Config, Location, dotted, split_host_port
from nfsd.exports import ExportTable
from nfsd.kerberos import KerberosError, make_acceptor
from nfsd.listeners import may_be_on_device, remedy_for
from nfsd.planned import planned
from nfsd.vfs.places import LIMITS
from nfsd.vfs.service import FileService
from nfsd.vfs.syscalls import Naming
from rpcrdma.server.sockets import bind
from rpcrdma.tls.certificates import TlsError, make_context


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the server would not do as it is told, or not as well as elsewhere."""

    file: str
    line: int
    """0: the configuration does not speak of it."""
    key: str
    """Dotted, as ``exports[0].path``."""
    severity: str
    """``error``: something would not be served; ``warning``: it would, within limits."""
    message: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.message}; {self.remedy}"


class _Socket(NamedTuple):
    """A socket that the server would have."""

    key: Location
    kind: str
    """``tcp`` or ``udp``."""
    host: str
    port: int


def examine(config: Config) -> list[Finding]:
    """Everything that is found, in the order of the configuration's lines."""
    running, found = _of_state_dir(config)
    found += _of_sockets(config, running)
    found += _of_tls(config)
    found += _of_kerberos(config)
    # Last, since the file service gives up privileges of this process.
    found += asyncio.run(_of_exports(config))
    return sorted(found, key=lambda finding: finding.line)


def _finding(config: Config, where: Location, message: str, remedy: str, severity: str = "error") -> Finding:
    return Finding(config.file, config.line(where), dotted(where), severity, message, remedy)


# -- the state directory ---------------------------------------------------------------------------------------------
def _of_state_dir(config: Config) -> tuple[bool, list[Finding]]:
    """Whether a server is running there, and what keeps one from it."""
    path, where = config.server.state_dir, ("server", "state_dir")
    try:
        return state_dir.examine(path), []
    except state_dir.StateDirError as error:
        message, _, remedy = str(error).rpartition("; ")
        return False, [_finding(config, where, message, remedy)]
    except OSError as error:
        message = f"{error.filename or path}: {(error.strerror or str(error)).lower()}"
        return False, [_finding(config, where, message, "let the server's user write there, or name another directory")]


# -- TLS -------------------------------------------------------------------------------------------------------------
def _of_tls(config: Config) -> Iterator[Finding]:
    tls = config.server.tls
    if tls is not None:
        try:
            make_context(tls.files())
        except TlsError as error:
            message, _, remedy = str(error).rpartition("; ")
            yield _finding(config, ("server", "tls"), message, remedy)


# -- Kerberos --------------------------------------------------------------------------------------------------------
def _of_kerberos(config: Config) -> Iterator[Finding]:
    settings = config.server.kerberos
    if settings is not None:
        try:
            make_acceptor(settings).close()
        except KerberosError as error:
            message, _, remedy = str(error).rpartition("; ")
            yield _finding(config, ("server", "kerberos", "keytab"), message, remedy)


# -- sockets ---------------------------------------------------------------------------------------------------------
def _of_sockets(config: Config, running: bool) -> Iterator[Finding]:
    """``running``: what is in use is taken to be the running server's."""
    seen: list[_Socket] = []
    for one in _sockets(config):
        twin = next((other for other in seen if _overlap(one, other)), None)
        seen.append(one)
        shown = f"{one.kind} port {one.port} of {one.host}"
        if twin is not None:
            line = config.line(twin.key)
            message = f"{shown} is that of {dotted(twin.key)} already" + (f", in line {line}" if line else "")
            yield _finding(config, one.key, message, "choose another port")
            continue
        try:
            _try(one)
        except OSError as error:
            if not (running and error.errno == errno.EADDRINUSE):
                what = (error.strerror or str(error)).lower()
                yield _finding(
                    config, one.key, f"cannot listen on {shown}: {what}", remedy_for(error, one.host, one.port)
                )


def _try(one: _Socket) -> None:
    kind = socket.SOCK_STREAM if one.kind == "tcp" else socket.SOCK_DGRAM
    try:
        bind(one.host, one.port, kind, listening=False).close()
    except OSError as error:
        if one.host != "::" or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        bind("0.0.0.0", one.port, kind, listening=False).close()  # as the listener does


def _sockets(config: Config) -> Iterator[_Socket]:
    """What the server would bind. Ports that are chosen for it, and devices', are left out."""
    server = config.server
    entries = list(server.listen)
    found = [
        _Socket(key, "udp" if place.kind == "udp" else "tcp", place.host, place.port)
        for key, place in planned(config)
        if place.port and not (place.kind == "rdma" and may_be_on_device(entries[int(key[-1])]))
    ]
    yield from (one for one in found if one.key[1] == "listen")
    if server.metrics.listen is not None:
        host, port = split_host_port(server.metrics.listen)
        if port:
            yield _Socket(("server", "metrics", "listen"), "tcp", host, port)
    yield from (one for one in found if one.key[1] != "listen")


def _overlap(one: _Socket, other: _Socket) -> bool:
    """Whether both cannot be had."""
    if (one.kind, one.port) != (other.kind, other.port):
        return False
    if one.host == other.host or "::" in (one.host, other.host):
        return True
    return "0.0.0.0" in (one.host, other.host) and not (":" in one.host or ":" in other.host)


# -- exports -----------------------------------------------------------------------------------------------------------
async def _of_exports(config: Config) -> list[Finding]:
    index = {export.id: number for number, export in enumerate(config.exports)}
    with tempfile.TemporaryDirectory(prefix="rdma-nfsd-check-") as own:
        exports = ExportTable(config.exports)
        service = FileService(exports, own)
        silent = logging.getLogger("nfsd.vfs")
        level = silent.level
        silent.setLevel(logging.CRITICAL)  # what it would say is said here
        try:
            await service.start()
            found = [
                _finding(
                    config, ("exports", index[id_], "backend" if one.export.backend else "path"), one.why, one.remedy
                )
                for id_, one in service.absent.items()
            ]
            for export in exports.exports:
                mount = (await service.root(export)).mount
                if mount.by_place:
                    found += _by_place(config, index[export.id], mount)
        finally:
            await service.close()
            silent.setLevel(level)
            await exports.close()
    return found


def _by_place(config: Config, number: int, mount: Any) -> Iterator[Finding]:
    path, where = config.exports[number].path, ("exports", number, "path")
    if mount.naming == Naming.HANDLE:
        what, remedy = "this user may not open files by handle", "run the server with CAP_DAC_READ_SEARCH"
    else:
        what, remedy = f"the file system of {path} has no file handles", "export one that has, if that matters"
    message = f"{what}: it is remembered in the state directory where files are; {LIMITS}"
    yield _finding(config, where, message, remedy, "warning")
    if config.server.processes > 1:
        message = f"{what}, and each of {config.server.processes} processes remembers files for its own clients alone"
        yield _finding(config, where, message, f"{remedy}; or set server.processes to 1", "warning")
