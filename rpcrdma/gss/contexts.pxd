"""C declarations of established contexts."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.gss.mechanism cimport MAX_MIC, Sealer

cdef enum:
    WINDOW = 1024           # sequence numbers that may come out of order
    WORDS = 16              # of 64 bits, one for each

    # What becomes of a sequence number.
    FRESH = 0
    STALE = 1               # below the window, or seen: not to be answered
    EXHAUSTED = 2


cdef class Context:
    """An established context, with its sequence window and whose it is."""

    cdef readonly bytes handle
    cdef readonly tuple labels          # by service, for a dict that has octets of other kinds, and is not to keep the context
    cdef readonly str principal
    cdef readonly str host
    cdef readonly uint64_t digest       # of the principal, for the replay cache
    cdef public double expires          # on the clock of time.monotonic
    cdef public double known_until      # then the principal is looked up again
    cdef public bint recent             # used since it was last looked at
    cdef public bint gone               # destroyed, or evicted
    cdef public object identity
    cdef public tuple credentials       # by service
    cdef readonly Sealer sealer         # the loop's
    cdef bytes exported
    cdef list spare             # sealers for workers,
    cdef int spares             # so many
    cdef uint32_t highest
    cdef uint64_t seen[WORDS]

    cdef int take(self, uint32_t sequence) noexcept
    cdef ssize_t verifier(self, uint32_t sequence, uint8_t *at, size_t room) noexcept
    cdef Sealer lend(self)
    cdef int take_back(self, Sealer sealer) except -1
