"""A directory of a CephFS file system as the file service knows stores.

Owns the mount and the threads that use it; imports the extension, so it is there only where that was built. Ceph checks
permissions, as the caller of each call. A cluster that stalls holds these threads, and nothing else.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from nfsd.backends.cephfs.client import Client
from nfsd.backends.cephfs.files import CephData, CephFiles, CephLocks
from nfsd.backends.cephfs.mounting import Settings, identity_of, mounted, unmount
from nfsd.backends.cephfs.names import CephNames
from nfsd.backends.cephfs.others import CephAcls, CephCopies, CephFileSystems, CephSpace, CephXattrs
from nfsd.backends.keyed.others import KeyedQuotas
from nfsd.backends.pool import Pool

T = TypeVar("T")

_LAST_WAIT: Final = 10.0
"""Seconds that the end of the process waits for all mounts to be given back, so that the cluster need not find out."""
_mounts: set[Calls] = set()
"""Those that are not given back yet."""


class Calls:
    """The way to the cluster."""

    def __init__(self, client: Client, threads: int) -> None:
        self.client = client
        self._pool = Pool("cephfs", threads)
        self._over = threading.Event()
        self._closing = False
        self.before_end: Callable[[], object] | None = None
        """What is to be done before the client ends, on the last thread."""
        _mounts.add(self)

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a function that uses the client returns. Raises OSError."""
        result: T = await self._pool.run(function, *arguments)
        return result

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function run for which nobody waits."""
        self._pool.tell(function, *arguments)

    def close(self) -> None:
        """Unmount, once every thread has done what it has to do."""
        if not self._closing:
            self._closing = True
            self._pool.close(self._end)

    def wait(self, seconds: float) -> None:
        """Wait until that is done."""
        self._over.wait(seconds)

    def _end(self) -> None:
        try:
            if self.before_end is not None:
                self.before_end()
            unmount(self.client)
        finally:
            self._over.set()
            _mounts.discard(self)


class CephStore:
    """All of it; see :class:`nfsd.backends.interface.Store`."""

    def __init__(self, **options: Any) -> None:
        """Mount it. Waits for the cluster. ``options``: those of :class:`~nfsd.backends.cephfs.mounting.Settings`."""
        settings = Settings(**options)
        client = mounted(settings)
        try:
            root, _ = client.root()
            self.identity = identity_of(client, root)
        except BaseException:
            unmount(client)
            raise
        self.shared = True  # until delegations are backed by the cluster's own
        self.calls = calls = Calls(client, settings.threads)
        self.files = CephFiles(calls)
        self.data = CephData(calls)
        self.names = CephNames(calls, root, self.data)
        calls.before_end = self.names.close
        self.file_systems = CephFileSystems(calls)
        self.xattrs = CephXattrs(calls)
        self.acls = CephAcls(calls)
        self.space = CephSpace(calls, self.data)
        self.copies = CephCopies(calls, self.data)
        self.locks = CephLocks(calls)
        self.quota = KeyedQuotas()

    def close(self) -> None:
        """It is not used any more."""
        self.calls.close()


def _give_all_back() -> None:
    """At the end of the process, whoever still refers to a store: the cluster would take it for a client that hangs."""
    mounts = tuple(_mounts)
    for calls in mounts:
        calls.close()
    for calls in mounts:
        calls.wait(_LAST_WAIT / len(mounts))


atexit.register(_give_all_back)
