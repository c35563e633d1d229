"""Established contexts, with their sequence windows and sealers (contract: ``contexts.pyi``).

Owns :class:`Context`; imports :mod:`rpcrdma.gss.mechanism` and digests.
"""

import os
from contextlib import contextmanager

from libc.string cimport memset

from rpcrdma.gss.mechanism cimport Sealer
from rpcrdma.octets cimport store32

from rpcrdma.digest import digest_of

SEQUENCE_WINDOW = WINDOW
MAX_SEQUENCE = 1 << 31       # MAXSEQ (RFC 2203 section 5)


MOST_SPARES = 1024           # sealers kept for workers, in all: each has about 4 KiB
cdef int spares = 0          # those there are


def new_handle():
    return os.urandom(16)


cdef class Context:
    def __init__(self, bytes exported not None, str principal not None, str host not None, double expires):
        self.exported, self.sealer, self.spare = exported, Sealer(exported), []
        self.principal, self.host, self.expires = principal, host, expires
        self.handle = new_handle()
        self.labels = tuple([(self.handle, service) for service in (1, 2, 3)])
        self.digest = digest_of(b"RPCSEC_GSS", principal.encode())
        self.credentials = ()

    cdef int take(self, uint32_t sequence) noexcept:
        """Note that a call with this number has come whose header was verified (RFC 2203 section 5.3.3.1)."""
        cdef uint32_t number
        cdef uint64_t bit = <uint64_t>1 << (sequence % 64)
        cdef size_t word = sequence % WINDOW // 64
        if sequence >> 31:
            return EXHAUSTED
        if sequence > self.highest:
            if sequence - self.highest >= WINDOW:
                memset(self.seen, 0, sizeof(self.seen))
            else:
                for number in range(self.highest + 1, sequence):
                    self.seen[number % WINDOW // 64] &= ~(<uint64_t>1 << (number % 64))
            self.highest = sequence
        elif self.highest - sequence >= WINDOW or self.seen[word] & bit:
            return STALE
        self.seen[word] |= bit
        return FRESH

    cdef ssize_t verifier(self, uint32_t sequence, uint8_t *at, size_t room) noexcept:
        """Write the reply's verifier, padded, without its flavor and length. The MIC's length; -1: it cannot be made."""
        cdef uint8_t number[4]
        cdef ssize_t length
        store32(number, sequence)
        length = self.sealer.sign_to(number, 4, at, room)
        if length < 0 or length + (-length & 3) > <ssize_t>room:
            return -1
        memset(at + length, 0, -length & 3)
        return length

    def admit(self, uint32_t sequence):
        return self.take(sequence)

    cdef Sealer lend(self):
        """A sealer for one thread, to be given back. Raises GssError."""
        global spares
        if not self.spares:
            return Sealer(self.exported)
        self.spares -= 1
        spares -= 1
        return self.spare.pop()

    cdef int take_back(self, Sealer sealer) except -1:
        global spares
        if spares < MOST_SPARES and not self.gone:
            self.spares += 1
            spares += 1
            self.spare.append(sealer)
        return 0

    @contextmanager
    def lent(self):
        sealer = self.lend()
        try:
            yield sealer
        finally:
            self.take_back(sealer)

    def __dealloc__(self):
        global spares
        spares -= self.spares
