"""Counts of what native code declines (contract: ``declined.pyi``). Layer 0: imports nothing of the project.

Each place that declines says why with a number; whoever had it asked adds that up. A call is counted each time it is
offered and declined, also by those who then count it once more in another row (as an operation of a COMPOUND).
"""

from libc.string cimport memset

cdef dict WORDS = {
    RARE: "rare", NODE: "file not in use", STANDING: "standing unknown", OPEN: "not open", DATA: "data not in memory",
    MAY_WAIT: "may wait", RECALL: "delegation", BUSY: "busy", STATE: "state", SIZE: "size", TURN: "turn used up",
    MEMORY: "memory", CALLER: "caller", GATE: "gate", REPLAY: "replay", ATTRIBUTES: "attributes", PROCEDURE: "procedure", VERSION: "version",
    SHAPE: "shape", CHUNKS: "several chunks", CREDITS: "credits", FAILED: "failed",
}
assert list(WORDS) == list(range(REASONS))


cdef str word(int reason):
    return WORDS[reason]


cdef class Declined:
    def __cinit__(self):
        memset(self.counts, 0, sizeof(self.counts))
        self.names = [None] * ROWS

    cdef void add(self, uint32_t row, int reason) noexcept:
        self.counts[row if row < ROWS else NOBODY][reason] += 1

    def counted(self):
        cdef int row, reason
        return [
            (self.names[row] or str(row), WORDS[reason], self.counts[row][reason])
            for row in range(ROWS)
            for reason in range(REASONS)
            if self.counts[row][reason]
        ]
