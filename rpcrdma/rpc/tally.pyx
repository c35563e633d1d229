"""What calls are counted in (contract: ``tally.pyi``). Imports what they are charged to."""

from libc.string cimport memset

BOUNDS = tuple(1.024e-6 * (1 << number) for number in range(BUCKETS - 1))


cdef class Tally:
    def add(self, double seconds, bint failed):
        self.over(seconds)
        self.errors += failed

    def leave(self):
        self.left()


cdef class Counts:
    pass


cdef class Latencies:
    def __cinit__(self):
        memset(self.buckets, 0, sizeof(self.buckets))
        memset(self.seconds, 0, sizeof(self.seconds))

    def observe(self, unsigned int row, double seconds):
        self.note(row, seconds)

    def of(self, unsigned int row):
        row &= ROWS - 1
        return [self.buckets[row][bucket] for bucket in range(BUCKETS)], self.seconds[row]

    def rows(self):
        cdef int row, bucket
        found = {}
        for row in range(ROWS):
            for bucket in range(BUCKETS):
                if self.buckets[row][bucket]:
                    found[row] = self.of(row)
                    break
        return found
