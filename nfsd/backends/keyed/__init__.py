"""Stores in plain Python (:class:`nfsd.backends.simple.SimpleBackend`) as the file service knows stores."""

from __future__ import annotations

import os

from nfsd.backends.keyed.calls import Calls
from nfsd.backends.keyed.files import KeyedData, KeyedFiles
from nfsd.backends.keyed.names import KeyedNames
from nfsd.backends.keyed.others import (
    KeyedAcls,
    KeyedCopies,
    KeyedFileSystems,
    KeyedLocks,
    KeyedQuotas,
    KeyedSpace,
    KeyedXattrs,
)
from nfsd.backends.simple import SimpleBackend


class KeyedStore:
    """All of it; see :class:`nfsd.backends.interface.Store`."""

    def __init__(self, store: SimpleBackend) -> None:
        self.calls = Calls(store)
        self.identity = store.identity or os.urandom(16)
        self.shared = store.shared
        self.files = KeyedFiles(self.calls)
        self.file_systems = KeyedFileSystems(self.calls)
        self.names = KeyedNames(self.calls)
        self.data = KeyedData(self.calls)
        self.xattrs = KeyedXattrs(self.calls)
        self.acls = KeyedAcls(self.calls)
        self.space = KeyedSpace(self.calls, self.data)
        self.copies = KeyedCopies(self.calls, self.data)
        self.locks = KeyedLocks()
        self.quota = KeyedQuotas()

    def close(self) -> None:
        """It is not used any more."""
        self.calls.close()
