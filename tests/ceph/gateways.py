"""Servers over one CephFS directory, each a process, and a client of each version of NFS at any of them.

Imports the clients. No client keeps anything in a cache: what one is told is what its gateway says.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nfsd.protocol import nfs4 as p
from nfsd.protocol import nlm4 as n
from rpcrdma.xdr import pack
from tests.ceph.process import Process
from tests.nfs3_client import Nfs3Client, Nfs3Failure
from tests.support.nfs4 import Client4, Failed, mode, values, wanted
from tests.support.over_tcp import OverTcp
from tests.support.ports import free_port
from tests.unit.test_v4_locks import locking, unlocking

HOST: Final = "127.0.0.1"
PLACE: Final = "/tried"
_names = itertools.count()


class Gateway(Process):
    """One server, with a state directory of its own."""

    def __init__(
        self, directory: Path, options: dict[str, Any], name: str, settings: dict[str, Any], **export: Any
    ) -> None:
        """``name``: what it is called in the cluster. ``settings``: of the server, beside what every gateway has;
        ``export``: likewise of its export."""
        self.name = name
        self.port, self.rdma, self.mountd, self.nlm = (free_port() for _ in range(4))
        server = {
            "listen": [f"tcp://{HOST}:{self.port}", f"rdma://{HOST}:{self.rdma}"], "mountd_port": self.mountd,
            "nlm_port": self.nlm, "rpcbind": False, "nfs4": {"grace_time": 0, "lease_time": 10}, "state_dir": "state",
            "name": name, **settings,
        }  # fmt: skip
        options = {**options, "gateway": name}
        super().__init__(
            directory / name,
            server,
            {"backend": "cephfs", "pseudo": PLACE, "squash": "none", "options": options, **export},
        )

    async def ready(self) -> None:
        """Wait until clients see the export."""
        while True:
            try:
                async with await Nfs3Client.connect(HOST, self.mountd) as client:
                    await client.mount(PLACE)
                    return
            except (OSError, EOFError, Nfs3Failure):
                self.check()
                await asyncio.sleep(0.2)

    async def client(self, version: str) -> Version3 | Version4:
        """A client of NFS ``3``, ``4.0``, ``4.1`` or ``4.2``, which has not been here before."""
        made = Version3(self) if version == "3" else Version4(self, int(version[-1]))
        await made.connect()
        return made


@contextlib.contextmanager
def gateways(directory: Path, options: dict[str, Any], *names: str, **settings: Any) -> Iterator[list[Gateway]]:
    """Several, until this ends."""
    made = [Gateway(directory, options, name, settings) for name in names]
    try:
        for gateway in made:
            gateway.start()
        yield made
    finally:
        for gateway in made:
            gateway.kill()


class Version3:
    """A client of NFSv3 and its lock manager."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._name = b"host-%d" % next(_names)

    async def connect(self) -> None:
        """Mount."""
        async with await Nfs3Client.connect(HOST, self._gateway.mountd) as client:
            self.root = await client.mount(PLACE)
        self._client = await Nfs3Client.connect(HOST, self._gateway.port)
        self._locks = await Nfs3Client.connect(HOST, self._gateway.nlm)

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()
        await self._locks.close()

    async def write(self, name: bytes, data: bytes) -> Any:
        """Write to a file, made if need be, from its beginning, and commit that; its handle."""
        try:
            handle = await self._client.create(self.root, name, 0o666)
        except Nfs3Failure:
            handle = await self._client.lookup(self.root, name)
        await self._client.write(handle, 0, data)
        await self._client.commit(handle)
        return handle

    async def read(self, handle: Any) -> bytes:
        """A file."""
        return bytes((await self._client.read(handle, 0, 1 << 16)).data)

    async def look(self, name: bytes) -> tuple[Any, int, int] | None:
        """Handle, size and mode; None: there is no such name."""
        try:
            handle = await self._client.lookup(self.root, name)
        except Nfs3Failure as failure:
            if failure.status.name != "NFS3ERR_NOENT":
                raise
            return None
        seen = await self._client.getattr(handle)
        return handle, seen.size, seen.mode & 0o7777

    async def rename(self, name: bytes, new: bytes) -> None:
        """In the directory."""
        await self._client.rename(self.root, name, self.root, new)

    async def remove(self, name: bytes) -> None:
        """A file."""
        await self._client.remove(self.root, name)

    async def is_stale(self, handle: Any) -> bool:
        """Whether a handle leads nowhere."""
        try:
            await self._client.getattr(handle)
        except Nfs3Failure as failure:
            return failure.status.name == "NFS3ERR_STALE"
        return False

    async def lock(self, handle: Any, start: int, length: int) -> bool:
        """Whether a range is to be had, exclusively."""
        args = n.nlm4_lockargs(b"", False, True, self._what(handle, start, length), False, 1)
        while True:
            packed = pack(n.nlm4_lockargs, args)
            answer = await self._locks.call(n.NLM_PROGRAM, 4, n.NLMPROC4_NM_LOCK, packed, n.nlm4_res)
            if answer.stat != n.nlm4_stats.NLM4_DENIED_GRACE_PERIOD:
                break
            await asyncio.sleep(0.5)
        assert answer.stat in (n.nlm4_stats.NLM4_GRANTED, n.nlm4_stats.NLM4_DENIED), answer
        return bool(answer.stat == n.nlm4_stats.NLM4_GRANTED)

    async def unlock(self, handle: Any, start: int, length: int) -> None:
        """Give it up."""
        args = n.nlm4_unlockargs(b"", self._what(handle, start, length))
        packed = pack(n.nlm4_unlockargs, args)
        answer = await self._locks.call(n.NLM_PROGRAM, 4, n.NLMPROC4_UNLOCK, packed, n.nlm4_res)
        assert answer.stat == n.nlm4_stats.NLM4_GRANTED

    def _what(self, handle: Any, start: int, length: int) -> n.nlm4_lock:
        return n.nlm4_lock(self._name, handle.data, b"1@" + self._name, 1, start, length)


class Version4:
    """A client of a minor version of NFSv4."""

    def __init__(self, gateway: Gateway, minor: int) -> None:
        self._gateway = gateway
        self._minor = minor
        self._opens: dict[bytes, p.stateid4] = {}
        self._held: dict[bytes, tuple[p.stateid4, int]] = {}

    async def connect(self) -> None:
        """Introduce it."""
        name = b"client-%d" % next(_names)
        self.client = await Client4(OverTcp(HOST, self._gateway.port), self._minor, name=name).connect()

    async def close(self) -> None:
        """Each call has hung up."""

    async def write(self, name: bytes, data: bytes) -> bytes:
        """Open a file, made if need be, write to its beginning, commit, and close; its handle."""
        stateid, handle = await self.client.open(PLACE, name, create=mode(0o666))
        written = p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, data)
        await self.client.on(handle, (p.OP_WRITE, written), (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        await self.client.close(stateid, handle)
        return handle

    async def read(self, handle: bytes) -> bytes:
        """A file, by the anonymous stateid. A grace period is waited for, in which clients of before may reclaim."""
        reading = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, 1 << 16))
        while True:
            try:
                [read] = await self.client.on(handle, reading)
            except Failed as failed:
                if failed.status != p.NFS4ERR_GRACE:
                    raise
                await asyncio.sleep(0.5)
            else:
                return bytes(read.resok4.data)

    async def look(self, name: bytes) -> tuple[bytes, int, int] | None:
        """Handle, size and mode; None: there is no such name."""
        lookup = (p.OP_LOOKUP, p.LOOKUP4args(name))
        asked = (p.OP_GETATTR, wanted(p.FATTR4_SIZE, p.FATTR4_MODE))
        try:
            *_, found, seen = await self.client.run(*self.client.path(PLACE), lookup, p.OP_GETFH, asked)
        except Failed as failed:
            if failed.status != p.NFS4ERR_NOENT:
                raise
            return None
        decoder = values(seen.resok4.obj_attributes)
        return found.resok4.object, decoder.uint64(), decoder.uint32() & 0o7777

    async def rename(self, name: bytes, new: bytes) -> None:
        """In the directory."""
        here = self.client.path(PLACE)
        await self.client.run(*here, p.OP_SAVEFH, *here, (p.OP_RENAME, p.RENAME4args(name, new)))

    async def remove(self, name: bytes) -> None:
        """A file."""
        await self.client.run(*self.client.path(PLACE), (p.OP_REMOVE, p.REMOVE4args(name)))

    async def is_stale(self, handle: bytes) -> bool:
        """Whether a handle leads nowhere."""
        asked = (p.OP_GETATTR, wanted(p.FATTR4_SIZE))
        return await self.client.status((p.OP_PUTFH, p.PUTFH4args(handle)), asked) == p.NFS4ERR_STALE

    async def opened(self, name: bytes, **how: Any) -> bytes:
        """Open a file and keep it; its handle."""
        stateid, handle = await self.client.open(PLACE, name, **how)
        self._opens[handle] = stateid
        return handle

    async def lock(self, handle: bytes, start: int, length: int) -> bool:
        """Whether a range is to be had, exclusively. The file must be open (:meth:`opened`)."""
        asked = locking(self.client, self._opens[handle], start, length, owner=b"locker-%d" % next(_names))
        try:
            [locked] = await self.client.on(handle, asked)
        except Failed as failed:
            if failed.status != p.NFS4ERR_DENIED:
                raise
            return False
        self._held[handle] = locked.resok4.lock_stateid, 1
        return True

    async def unlock(self, handle: bytes, start: int, length: int) -> None:
        """Give it up."""
        stateid, seqid = self._held.pop(handle)
        await self.client.on(handle, unlocking(stateid, seqid, start, length))
