"""The records of one server as an object of a RADOS pool, which moves with its name to any host of the cluster.

Owns :class:`RadosStorage`. Imports the connection, the group commit, and what servers do together.

The object (:mod:`nfsd.stable.rados.records`) is called after the server. Two things keep it one server's:

- a lock of the cluster's with an end, which is renewed: no second server starts while one lives;
- the attribute ``holder``, which every change compares: who has lost the lock unawares changes nothing any more.

A server that finds that it has lost the records, or cannot find out for as long as the lock lasts, must not answer any
more: another may have its clients.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nfsd import state_dir
from nfsd.config_stable import RadosPool
from nfsd.stable.commits import GroupCommit
from nfsd.stable.interface import lease_to_keep, next_epoch
from nfsd.stable.rados.connecting import connected, failure
from nfsd.stable.rados.records import (
    CLIENT,
    FORMAT,
    HOLDER,
    INSTANCE,
    LOCK,
    LOCK_SECONDS,
    client_pair,
    cookie_of,
    host_of,
    instance_pair,
    key_of,
    object_of,
    place_of,
    record_of,
    same_holder,
)  # fmt: skip
from nfsd.stable.rados.together import Together
from nfsd.state.engine import StateEngine
from nfsd.state.recovery import Recovered, StoreWrite
from nfsd.vfs.handles import load_key

if TYPE_CHECKING:
    from nfsd.stable.rados.client import Cluster

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

RENEWAL: Final = 10.0
_SECRETS: Final = {b"handle-key": "handle.key", b"server-id": "server-id"}


class Fenced(OSError):
    """The records are another server's now."""


class RadosStorage(GroupCommit):
    """See the module."""

    def __init__(
        self,
        pool: RadosPool,
        name: str,
        directory: str,
        lost: Callable[[str], None],
        *,
        wall_clock: Callable[[], float] = time.time,
        seconds: int = LOCK_SECONDS,
        renewal: float = RENEWAL,
    ) -> None:
        """``name``: the server's. ``directory``: its state directory, which it has locked. ``lost``: ends the server;
        is told why. ``wall_clock``: seconds since 1970. ``seconds``, ``renewal``: of the lock."""
        super().__init__()
        self._pool, self._directory, self._lost, self._wall_clock = pool, directory, lost, wall_clock
        self._seconds, self._renewal = seconds, renewal
        self._name = object_of(name)
        self.place = place_of(pool, name)
        self._cluster: Cluster | None = None
        self._cookie = b""
        self._holder = b""
        self._lease = 0.0
        self._records: dict[bytes, int] = {}
        """Keys of the clients on record, and the instances in which they were written."""
        self._renewed = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._together = Together(name, self.place, self._in_use, self._run, lost)

    async def start(self, *, lease: float = 90.0) -> Recovered:
        """See the interface. Waits until the other servers of the namespace grant nothing that clients may reclaim."""
        self._renewed = time.monotonic()
        recovered = await super().start(lease=lease)
        self._renewing = asyncio.create_task(self._keep())
        try:
            if not await self._together.join(bool(recovered.records)):
                await self._run(lambda: self._apply([StoreWrite("grace_done", epoch=recovered.epoch)]))
                recovered = replace(recovered, records=(), forfeited=recovered.records)
                await self._together.join(False)
        except BaseException:
            await self.close()
            raise
        return recovered

    def follow(self, engine: StateEngine) -> None:
        """See the interface."""
        self._together.follow(engine, lambda: self.flush(engine))

    async def part(self) -> None:
        """See the interface."""
        await self._together.part(bool(self._records))

    async def close(self) -> None:
        """See the interface."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        await super().close()

    async def _run(self, job: Callable[[], _T]) -> _T:
        """The loss of the records ends the server."""
        try:
            return await super()._run(lambda: self._telling(job))
        except Fenced as error:
            self._lost(str(error))
            raise

    async def _keep(self) -> None:
        """Renew the lock, or end the server in time."""
        while True:
            left = self._renewed + self._seconds - time.monotonic()
            await asyncio.sleep(max(0.0, min(self._renewal, left)))
            began = time.monotonic()
            try:
                await asyncio.wait_for(self._run(self._renew), self._renewed + self._seconds - began)
                self._renewed = began
            except Fenced:
                return
            except OSError as error:  # TimeoutError is one
                if time.monotonic() - self._renewed >= self._seconds:
                    self._lost(f"{self.place}: the lock could not be renewed for {self._seconds} seconds")
                    return
                _log.warning("%s: the lock is not renewed: %s", self.place, error.strerror or "no answer")

    # -- in the thread -------------------------------------------------------------------------------------------
    def _telling(self, job: Callable[[], _T]) -> _T:
        """Errors say where."""
        try:
            return job()
        except OSError as error:
            if error.filename:
                raise
            raise failure(error, error.strerror or str(error), self._pool, self.place) from None

    def _open(self, lease: float) -> Recovered:
        try:
            return self._begin(lease)
        except BaseException:
            self._close()
            raise

    def _begin(self, lease: float) -> Recovered:
        self._cluster = cluster = connected(self._pool, self.place)
        self._cookie = cookie_of(self._directory)
        self._take_lock(cluster)
        former = cluster.attribute(self._name, HOLDER)
        pairs = cluster.pairs(self._name) if former else {}
        instance = self._instance(pairs)
        records = [record_of(value) for key, value in pairs.items() if key.startswith(CLIENT)]
        epoch = next_epoch(instance["epoch"], self._wall_clock())
        self._lease, self._holder = lease, b"%s:%d" % (self._cookie, epoch)
        kept = lease_to_keep(lease, instance["lease"], bool(records))
        secrets = self._secrets()
        news = {key: value for key, value in secrets.items() if key not in pairs}
        try:
            changes = {INSTANCE: instance_pair(epoch, kept), **news}
            cluster.change(self._name, (HOLDER, former), {HOLDER: self._holder}, changes, [])
        except OSError as error:
            if error.errno == errno.ECANCELED:
                raise OSError(
                    errno.EBUSY, "another server has taken the records at the same time", self.place
                ) from None
            raise
        for key, file in _SECRETS.items():
            if key in pairs and pairs[key] != secrets[key]:
                state_dir.keep(self._directory, file, pairs[key])
        self._records = {key_of(record.minor, record.owner, record.principal): record.epoch for record in records}
        return Recovered(epoch, tuple(records), instance["lease"])

    def _take_lock(self, cluster: Cluster) -> None:
        try:
            self._lock(cluster)
            return
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                what = f"the key of client.{self._pool.user} does not let it write there and lock"
                raise OSError(error.errno, what, self.place) from None
            if error.errno != errno.EBUSY:
                raise
        for holder in cluster.lockers(self._name, LOCK):
            if not same_holder(holder.cookie, self._cookie):
                what = f"is in use by the server on {host_of(holder)}, or was less than {self._seconds} seconds ago"
                raise OSError(errno.EBUSY, what, self.place)
            # This server's own before it died: whoever has locked the state directory is its only heir.
            cluster.break_lock(self._name, LOCK, holder)
        self._lock(cluster)

    def _lock(self, cluster: Cluster) -> None:
        cluster.lock(self._name, LOCK, self._cookie, b"rdma-nfsd", self._seconds)

    def _renew(self) -> None:
        cluster = self._in_use()
        # The lock may have lapsed, been another's, and lapsed again: then it is not to be taken.
        if cluster.attribute(self._name, HOLDER) != self._holder:
            raise Fenced(errno.EBUSY, "another server has the records, or had them", self.place)
        try:
            self._lock(cluster)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise Fenced(errno.EBUSY, "another server has the lock", self.place) from None
            raise

    def _in_use(self) -> Cluster:
        if self._cluster is None:
            raise OSError(errno.ENOTCONN, "not open", self.place)
        return self._cluster

    def _instance(self, pairs: dict[bytes, bytes]) -> dict[str, Any]:
        if INSTANCE not in pairs:
            return {"epoch": 0, "lease": 0.0}
        found: dict[str, Any] = json.loads(pairs[INSTANCE])
        if found["format"] != FORMAT:
            what = f"written by another version of the server (format {found['format']})"
            raise OSError(errno.EINVAL, what, self.place)
        return found

    def _secrets(self) -> dict[bytes, bytes]:
        """Those of the state directory."""
        return {b"handle-key": load_key(self._directory), b"server-id": state_dir.identity(self._directory)}

    def _apply(self, batch: list[StoreWrite]) -> None:
        cluster = self._in_use()
        after, pairs, gone = dict(self._records), dict[bytes, bytes](), set[bytes]()
        for write in batch:
            key = key_of(write.minor, write.owner, write.principal)
            if write.action == "record":
                after[key], pairs[key] = write.epoch, client_pair(write)
                gone.discard(key)
                continue
            if write.action == "remove":
                former = {key}
            else:
                former = {one for one, epoch in after.items() if epoch < write.epoch}
                pairs[INSTANCE] = instance_pair(int(self._holder.rpartition(b":")[2]), self._lease)
            for one in former:
                after.pop(one, None)
                pairs.pop(one, None)
            gone |= former
        try:
            cluster.change(self._name, (HOLDER, self._holder), {}, pairs, sorted(gone))
        except OSError as error:
            if error.errno == errno.ECANCELED:
                raise Fenced(errno.EBUSY, "another server has the records", self.place) from None
            raise
        self._records = after

    def _close(self) -> None:
        if self._cluster is None:
            return
        try:
            if self._holder:
                self._cluster.unlock(self._name, LOCK, self._cookie)
        except OSError as error:
            _log.warning("%s: the lock is left to lapse in %d seconds: %s", self.place, self._seconds, error.strerror)
        finally:
            self._cluster.end()
            self._cluster = None
