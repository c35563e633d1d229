"""One server's records in a pool of the tests' cluster."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nfsd.config_stable import RadosPool
from nfsd.stable.commits import GroupCommit
from nfsd.stable.rados.storage import RadosStorage
from nfsd.state import Recovered
from tests.ceph.cluster import Cluster

if TYPE_CHECKING:
    from nfsd.stable.rados.client import Cluster as Connection

POOL = "rdma-nfsd-records"
_numbers = itertools.count()


@functools.cache
def _make_pool(cluster: Cluster) -> None:
    cluster.command("osd", "pool", "create", POOL, "8")


class Rados:
    """See :class:`tests.support.stable_storage.Kind`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        _make_pool(cluster)
        self.cluster = cluster
        self.name = f"test-{os.getpid()}-{next(_numbers)}"
        # Servers of one namespace have their grace periods together.
        self.pool = RadosPool(config=str(cluster.conf), pool=POOL, namespace=self.name)
        self.directory = directory
        """The state directory."""
        self.lost: list[str] = []
        """Why servers would have ended."""

    def make(self, now: float = 100.5, *, directory: Path | None = None, **lock: float) -> RadosStorage:
        where = str(directory or self.directory)
        return RadosStorage(self.pool, self.name, where, self.lost.append, wall_clock=lambda: now, **lock)  # type: ignore[arg-type]

    async def crashed(self) -> Recovered:
        """The same server's next instance takes its own lock away."""
        storage = self.make()
        recovered = await storage.start()
        await storage.close()
        return recovered

    @contextlib.contextmanager
    def failing(self, storage: GroupCommit) -> Iterator[str]:
        self.cluster.pause("osd")
        try:
            yield "has not answered for"
        finally:
            self.cluster.resume("osd")

    def break_lock(self) -> None:
        """As if it had lapsed."""
        connection, name = self.connection(), f"server.{self.name}".encode()
        for holder in connection.lockers(name, b"rdma-nfsd"):
            connection.break_lock(name, b"rdma-nfsd", holder)
        connection.end()

    def connection(self) -> Connection:
        """Another one to the pool."""
        from nfsd.stable.rados.client import Cluster as Connection

        connection = Connection(self.pool.user.encode())
        connection.read_configuration(self.pool.config.encode())
        connection.connect()
        connection.open(POOL.encode(), self.pool.namespace.encode())
        return connection
