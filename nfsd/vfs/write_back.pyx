"""What is lost of data that clients were told is written, and how they learn of it (contract: ``write_back.pyi``).

Owns the verifiers (RFC 1813 section 3.3.7) and the counts of failures. Each store and each file system has its own, so
that what one has lost makes nobody send again what others have. Every reply to a WRITE has one in it.
"""

import contextlib
import os

from rpcrdma.log_limits import limited_logger
from rpcrdma.shown import path_shown

_log = limited_logger(__name__)


cdef class WriteBack:
    def __cinit__(self):
        self.verifier, self.lanes = os.urandom(8), set()

    def renew(self):
        self.verifier = os.urandom(8)

    def failed(self, int error, int descriptor=-1):
        self.renew()
        self.failures += 1
        what = "a file"
        with contextlib.suppress(OSError):
            what = path_shown(os.readlink(f"/proc/self/fd/{descriptor}"))
        _log.error("data written to %s is lost: %s (%d failures there so far)", what, os.strerror(error), self.failures)


class WriteBacks:
    def __init__(self):
        self._by_store = {}

    def of(self, store, lane):
        found = self._by_store.setdefault(store, WriteBack())
        found.lanes.add(lane)
        return found

    def failed_in(self, lane, error):
        for one in self._by_store.values():
            if lane in one.lanes:
                one.failed(error)

    def renew(self):
        for one in self._by_store.values():
            one.renew()

    @property
    def failures(self):
        return sum([one.failures for one in self._by_store.values()])
