"""C declarations of what calls are counted in: an increment here and there, on the native path too."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.pace cimport Dues

cdef enum:
    ROWS = 128
    BUCKETS = 26

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil


cdef class Tally:
    """What some calls amount to."""

    cdef public uint64_t calls
    cdef public uint64_t errors
    cdef public uint64_t read
    cdef public uint64_t written
    cdef public double seconds
    cdef public Dues dues               # None: nobody is charged for them
    cdef public unsigned long priced    # when that was found out, by whoever does

    cdef inline void over(self, double seconds) noexcept:
        """A call is over; what it has moved has been added."""
        self.calls += 1
        self.seconds += seconds
        if self.dues is not None:
            self.dues.take(self.read + self.written)


    cdef inline void left(self) noexcept:
        """As :meth:`leave`."""
        if self.dues is not None:
            self.dues.take(self.read + self.written)


cdef class Counts:
    """Calls of one procedure that are over."""

    cdef public uint64_t calls
    cdef public uint64_t native_calls   # of them, those that were answered natively
    cdef public uint64_t errors         # of them, those that were answered with an RPC error, or not at all
    cdef public double seconds


cdef class Latencies:
    """How long calls took, by row, in buckets of which each has twice the bound of the one before."""

    cdef uint64_t buckets[ROWS][BUCKETS]
    cdef double seconds[ROWS]

    cdef inline void note(self, uint32_t row, double seconds) noexcept:
        cdef uint64_t units = <uint64_t>(seconds * 976562.5) if seconds > 0 else 0     # of 1.024 microseconds
        cdef int bucket = 64 - __builtin_clzll(units) if units else 0
        if bucket >= BUCKETS:
            bucket = BUCKETS - 1
        self.buckets[row & (ROWS - 1)][bucket] += 1
        self.seconds[row & (ROWS - 1)] += seconds
