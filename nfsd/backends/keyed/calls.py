"""Calling a store in plain Python: on its threads, or on the loop if it never waits.

Owns the store, its pool, and the count of opens by which removed files are forgotten.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, TypeVar

from nfsd.backends.interface import Found
from nfsd.backends.looks import look_of
from nfsd.backends.pool import Pool, contained
from nfsd.backends.simple import SimpleBackend, Status, error
from nfsd.vfs.store_mounts import check_key
from rpcrdma.firewall import contain

T = TypeVar("T")


class Calls:
    """The way to the store."""

    def __init__(self, store: SimpleBackend) -> None:
        self.store = store
        self._pool = None if store.at_once else Pool(type(store).__name__, store.threads)
        self._opens: dict[bytes, int] = {}
        self._nameless: set[bytes] = set()
        """Removed, and still open."""

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a function that uses the store returns. Raises OSError."""
        if self._pool is not None:
            result: T = await self._pool.run(function, *arguments)
            return result
        try:
            return function(*arguments)
        except Exception as failure:
            raise contained(f"backend {type(self.store).__name__}", failure) from None

    def close(self) -> None:
        """The store is not used any more."""
        if self._pool is None:
            contain(None, self.store.close)
        else:
            self._pool.close(self.store.close)

    # -- used by functions that run there ------------------------------------------------------------------------
    def status(self, key: bytes) -> Status:
        """A file as it is. ESTALE when there is none."""
        try:
            return self.store.status(key)
        except FileNotFoundError:
            raise error(errno.ESTALE) from None

    def look(self, key: bytes) -> bytearray:
        """The same as a ``struct statx``."""
        return look_of(self.status(key))

    def keep(self, key: bytes) -> None:
        """Have the store put by what is open, and about to lose its last name."""
        if key in self._opens:
            self.store.keep(key)

    def found(self, key: bytes) -> Found:
        """A file that a name or the store has led to."""
        return Found(check_key(key), self.look(key))

    # -- on the loop ---------------------------------------------------------------------------------------------
    def opened(self, key: bytes) -> None:
        """A file is used from now on, even without a name."""
        self._opens[key] = self._opens.get(key, 0) + 1

    def closed(self, key: bytes) -> None:
        """One use of it is over."""
        left = self._opens.pop(key) - 1
        if left:
            self._opens[key] = left
        elif key in self._nameless:
            self._nameless.remove(key)
            self._forget(key)

    def removed(self, key: bytes) -> None:
        """A file has lost its last name."""
        if key in self._opens:
            self._nameless.add(key)
        else:
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        if self._pool is not None:
            self._pool.tell(self.store.forget, key)
        else:
            contain(None, self.store.forget, key)
