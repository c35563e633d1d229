"""As whom a call acts: a running server of three exports, callers of every kind, and the expected user of each.

:func:`model` is written from exports(5) and credentials(7), not from the code under test. :class:`Served` has a daemon
with the exports ``root``, ``none`` and ``all`` (by what they squash), on a disk or in memory, and asks the kernel who
it took a caller for: by the owner of what was made, and by what was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nfsd.config_file import load
from nfsd.daemon import Daemon
from nfsd.protocol import nfs3
from nfsd.protocol import nfs4 as p
from rpcrdma.rpc.messages import auth_flavor, opaque_auth
from rpcrdma.rpc.rpcbind import Rpcbind
from tests.nfs3_client import Nfs3Client, attributes, auth_sys
from tests.support.nfs4 import Client4, mode
from tests.support.nfs_work import OverTcp

NOBODY: Final = 0xFFFFFFFF
"""An id that no one has."""
ANONUID, ANONGID = 4242, 4343
EDGES: Final = (0, 1, 1001, 65534, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
SHARED: Final = (0, 1, ANONGID, 65534, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE)
"""Groups that have a file of their own."""
SQUASHES: Final = ("root", "none", "all")
VERSIONS: Final = (30, 40, 41, 42)
"""NFSv3, and the minor versions of NFSv4."""
ACTIONS: Final = ("make", "read secret", "make private", "look inside", "access secret", "read shared")
OK, ACCESS = 0, 13
"""As both versions number them."""
PATIENCE: Final = 60
_AUTH_SYS_GROUPS: Final = 16
_ZEROS: Final = p.stateid4(0, bytes(12))


@dataclass(frozen=True)
class Step:
    """One call."""

    squash: str
    version: int
    action: str
    uid: int
    gid: int
    gids: tuple[int, ...] = ()
    shared: int = 0
    """For "read shared": the group whose file it is."""
    raw: bytes | None = None
    """Octets to be sent for an NFSv3 credential that says all this, or says nothing."""


@dataclass(frozen=True)
class Person:
    """Somebody, as the kernel knows them."""

    uid: int
    gid: int
    gids: frozenset[int]

    def may(self, group: int) -> bool:
        """Whether a file of root and this group that only the group may read is to be had."""
        return self.uid == 0 or group == self.gid or group in self.gids


def model(step: Step) -> Person:
    """Who the caller must be."""
    if step.squash == "all":
        return Person(ANONUID, ANONGID, frozenset())
    uid, gid = step.uid, step.gid
    gids = [group for group in step.gids if group != NOBODY]
    if gid == NOBODY:
        gid = ANONGID
    if uid == NOBODY:
        uid = ANONUID
    elif len(gids) >= _AUTH_SYS_GROUPS:
        with contextlib.suppress(KeyError, OverflowError):
            gids = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    if step.squash == "root":
        uid, gid = uid or ANONUID, gid or ANONGID
        gids = [group or ANONGID for group in gids]
    return Person(uid, gid, frozenset(gids))


class Served:
    """A daemon, its directories, and one connection for each version."""

    def __init__(self, memory: bool) -> None:
        self.base = Path(tempfile.mkdtemp(dir="/dev/shm" if memory else None))
        self.numbers = itertools.count()
        for squash in SQUASHES:
            self._lay_out(self.base / squash)
        file = self.base / "config.yaml"
        exports = "".join(
            f"  - {{path: {squash}, pseudo: /{squash}, squash: {squash}, anonuid: {ANONUID}, anongid: {ANONGID}}}\n"
            for squash in SQUASHES
        )
        file.write_text(
            f"server:\n  listen: ['tcp://127.0.0.1:0']\n  mountd_port: 0\n  state_dir: {self.base / 'state'}\n"
            f"  nlm: false\n  nfs4: {{grace_time: 0}}\nexports:\n{exports}"
        )
        self.daemon = Daemon(load(str(file)), Rpcbind((), None))

    @staticmethod
    def _lay_out(export: Path) -> None:
        export.mkdir()
        export.chmod(0o755)
        (export / "open").mkdir()
        (export / "open").chmod(0o1777)
        (export / "private").mkdir(mode=0o700)
        (export / "private" / "inner").write_text("inner")
        (export / "secret").write_text("secret")
        (export / "secret").chmod(0o600)
        for group in SHARED:
            path = export / f"shared{group}"
            path.write_text("shared")
            os.chown(path, 0, group)
            path.chmod(0o040)

    async def __aenter__(self) -> Served:
        await self.daemon.start()
        ports = {service: self.daemon.listeners.of(service)[0].address.port for service in ("nfs", "mountd")}
        self.tcp = await Nfs3Client.connect("127.0.0.1", ports["nfs"])
        self.handles: dict[str, dict[str, nfs3.nfs_fh3]] = {}
        async with await Nfs3Client.connect("127.0.0.1", ports["mountd"]) as mountd:
            for squash in SQUASHES:
                root = await mountd.mount(f"/{squash}")
                names = ("open", "private", "secret", *(f"shared{group}" for group in SHARED))
                self.handles[squash] = {name: await self.tcp.lookup(root, name.encode()) for name in names}
        self.clients = {}
        for minor in (0, 1, 2):
            client = Client4(OverTcp(self.tcp), minor, name=b"client %d" % minor, transport=OverTcp(self.tcp))  # type: ignore[arg-type]
            self.clients[40 + minor] = await client.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tcp.close()
        await self.daemon.stop()
        shutil.rmtree(self.base)

    async def check(self, step: Step) -> None:
        """Make one call. Raises AssertionError when the caller was taken for somebody else."""
        person = model(step)
        name = f"made{next(self.numbers)}"
        outcome = await self.outcome(step, name)
        match step.action:
            case "make":
                path = self.base / step.squash / "open" / name
                assert outcome == OK, (step, outcome)
                made = path.lstat()
                assert (made.st_uid, made.st_gid) == (person.uid, person.gid), step
                _remove(path)
            case "make private":
                path = self.base / step.squash / "private" / name
                assert path.exists() == (person.uid == 0), step
                assert outcome == (OK if person.uid == 0 else ACCESS), (step, outcome)
                if path.exists():
                    _remove(path)
            case "read shared":
                assert outcome == (OK if person.may(step.shared) else ACCESS), (step, outcome)
            case _:
                assert outcome == (OK if person.uid == 0 else ACCESS), (step, outcome)

    async def outcome(self, step: Step, name: str = "made") -> int:
        """Make one call. Its status, and of an ACCESS that grants nothing what would be that of another call."""
        async with asyncio.timeout(PATIENCE):
            return await (self._call3(step, name) if step.version == 30 else self._call4(step, name))

    # -- NFSv3 ---------------------------------------------------------------------------------------------------
    async def _call3(self, step: Step, name: str) -> int:
        handles, tcp = self.handles[step.squash], self.tcp
        tcp.credential = auth_sys(step.uid, step.gid, step.gids)
        if step.raw is not None:
            tcp.credential = opaque_auth(auth_flavor.AUTH_SYS, step.raw)
        match step.action:
            case "make" | "make private":
                directory = handles["open" if step.action == "make" else "private"]
                how = nfs3.createhow3(nfs3.createmode3.GUARDED, obj_attributes=attributes(mode=0o644))
                where = nfs3.diropargs3(directory, name.encode())
                return int((await tcp.nfs("CREATE", nfs3.CREATE3args(where, how))).status)
            case "read secret" | "read shared":
                file = handles["secret" if step.action == "read secret" else f"shared{step.shared}"]
                return int((await tcp.nfs("READ", nfs3.READ3args(file, 0, 10))).status)
            case "look inside":
                where = nfs3.diropargs3(handles["private"], b"inner")
                return int((await tcp.nfs("LOOKUP", nfs3.LOOKUP3args(where))).status)
            case _:
                granted = (await tcp.nfs("ACCESS", nfs3.ACCESS3args(handles["secret"], 0x3F))).resok.access
                return OK if granted else ACCESS

    # -- NFSv4 ---------------------------------------------------------------------------------------------------
    async def _call4(self, step: Step, name: str) -> int:
        client = self.clients[step.version]
        client.credential = (step.uid, step.gid, step.gids)
        *_, (_, result) = (await client.raw(*client.in_session(*self._operations(step, name))))[1]
        if step.action == "access secret" and result.status == OK:
            return OK if result.resok4.access else ACCESS
        return int(result.status)

    def _operations(self, step: Step, name: str) -> list[Any]:
        def at(name: str) -> tuple[int, Any]:
            return (p.OP_PUTFH, p.PUTFH4args(self.handles[step.squash][name].data))

        match step.action:
            case "make" | "make private":
                kind = p.createtype4(p.nfs_ftype4.NF4DIR)
                making = (p.OP_CREATE, p.CREATE4args(kind, name.encode(), mode(0o755)))
                return [at("open" if step.action == "make" else "private"), making]
            case "read secret" | "read shared":
                file = "secret" if step.action == "read secret" else f"shared{step.shared}"
                return [at(file), (p.OP_READ, p.READ4args(_ZEROS, 0, 10))]
            case "look inside":
                return [at("private"), (p.OP_LOOKUP, p.LOOKUP4args(b"inner"))]
            case _:
                return [at("secret"), (p.OP_ACCESS, p.ACCESS4args(0x3F))]


def _remove(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
