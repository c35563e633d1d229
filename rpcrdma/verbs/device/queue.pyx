"""The accounting of a Send queue: what may be posted now, what waits, and what a completion says.

Owns :class:`SendQueue`. Needs no device and no library, and knows nothing of what a work request holds.

Slots
    A queue pair takes ``depth`` work requests, of which ``max_reads`` may be RDMA Reads at a time (our negotiated
    ORD). The last request of what is posted together (a piece) is signalled, so slots come back by pieces.

Order
    Sends (with their Writes) are posted in the order in which they were submitted, and so are Reads. The two take
    turns, and whichever is short of slots is waited for, so that neither starves. Reads that wait for other Reads
    hold up no Send: a reply never depends on a Read posted before it (the call's own Reads have completed).

Pieces
    A job is posted whole, unless it is larger than the queue pair; then in pieces, each as large as there is room.
"""

from libc.stdlib cimport calloc, free
from cpython.ref cimport Py_DECREF, Py_INCREF


cdef class Job:
    """Work requests that complete together, reported by ``token``."""

    def __init__(self, token, int count, bint reads=False):
        if count < 1:
            raise ValueError("a job without work")
        self.token = token
        self.count = count
        self.reads = reads


cdef class JobQueue:
    """First in, first out. A job is in one queue at a time."""

    cdef int append(self, Job job) except -1:
        if self.first is None:
            self.first = job
        else:
            self.last.next = job
        self.last = job
        return 0

    cdef Job pop(self):
        """Take the first job, or None."""
        cdef Job job = self.first
        if job is not None:
            self.first = job.next
            job.next = None
            if self.first is None:
                self.last = None
        return job


cdef class SendQueue:
    """The accounting of one queue pair."""

    def __cinit__(self, int depth, int max_reads):
        if depth < 1 or max_reads < 0:
            raise ValueError(f"a Send queue of {depth} with {max_reads} Reads")
        self.depth = self.free = depth
        self.max_reads = self.free_reads = min(max_reads, depth)
        self.sends = JobQueue()
        self.reads = JobQueue()
        self.ring = <Piece *>calloc(depth, sizeof(Piece))
        if self.ring == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.ring != NULL:
            while self.completed < self.posted:
                Py_DECREF(<object>self.ring[self.completed % self.depth].job)
                self.completed += 1
            free(self.ring)

    cdef int submit(self, Job job) except -1:
        """Queue a job. Raises ValueError for Reads where the peer allows none."""
        if job.reads:
            if self.max_reads == 0:
                raise ValueError("the peer allows no RDMA Reads")
            self.reads.append(job)
        else:
            self.sends.append(job)
        return 0

    cdef int room(self, Job job) noexcept:
        """How many of the job's requests may be posted now."""
        cdef int left = job.count - job.taken
        cdef int most = self.free
        cdef int whole = self.depth
        if job.reads:
            most = min(most, self.free_reads)
            whole = self.max_reads
        if left <= most:
            return left
        # Only what can never be posted whole is posted in pieces.
        return most if left > whole else 0

    cdef Piece *take(self) noexcept:
        """What is to be posted next, or NULL. Its sequence number is ``posted - 1`` from then on."""
        cdef Job sends = self.sends.first
        cdef Job reads = self.reads.first
        cdef Job job
        cdef Piece *piece
        cdef int count
        if reads is not None:
            count = reads.count - reads.taken
            # A chain of more Reads than there may ever be goes on as soon as half of them are over.
            if self.free_reads < (count if count <= self.max_reads else (self.max_reads + 1) // 2):
                reads = None  # it waits for other Reads, and holds up nobody
        if sends is None and reads is None:
            return NULL
        if sends is None or (reads is not None and self.reads_next):
            job = reads
        else:
            job = sends
        count = self.room(job)
        if count == 0:
            return NULL
        self.reads_next = not job.reads
        piece = self.ring + self.posted % self.depth
        piece.job = <void *>job
        piece.first = job.taken
        piece.count = count
        piece.done = False
        Py_INCREF(job)
        job.taken += count
        job.open_pieces += 1
        self.posted += 1
        self.free -= count
        if job.reads:
            self.free_reads -= count
        if job.taken == job.count:
            if job.reads:
                self.reads.pop()
            else:
                self.sends.pop()
        return piece

    cdef int finish(self, uint64_t sequence, bint flushed, list jobs) except -1:
        """A piece has completed. Appends the jobs that are over with it, oldest first.

        A piece's completion says nothing of those before it: siw completes a Send that was posted behind a Read while
        the Read still waits for its data. Only an error ends all that came before (``flushed``).
        """
        cdef Job job
        cdef uint64_t earlier
        if sequence < self.completed or sequence >= self.posted:
            return 0
        self.ring[sequence % self.depth].done = True
        if flushed:
            for earlier in range(self.completed, sequence):
                self.ring[earlier % self.depth].done = True
        while self.completed < self.posted and self.ring[self.completed % self.depth].done:
            job = self.complete_one()
            if job is not None:
                jobs.append(job)
        return 0

    cdef Job complete_one(self):
        """The oldest posted piece has completed. Returns its job when that was the last of it, else None."""
        cdef Piece *piece = self.ring + self.completed % self.depth
        cdef Job job = <Job>piece.job
        Py_DECREF(job)
        piece.job = NULL
        self.completed += 1
        self.free += piece.count
        if job.reads:
            self.free_reads += piece.count
        job.open_pieces -= 1
        if job.open_pieces == 0 and job.taken == job.count:
            return job
        return None

    cdef int unpost(self, uint64_t first, list jobs) except -1:
        """The pieces from sequence number ``first`` on were refused. Appends their jobs, oldest first, once each.

        A job that is partly posted is appended too, and its earlier pieces complete without being reported.
        """
        cdef Piece *piece
        cdef Job job
        cdef list refused = []
        while self.posted > first:
            self.posted -= 1
            piece = self.ring + self.posted % self.depth
            job = <Job>piece.job
            Py_DECREF(job)
            piece.job = NULL
            self.free += piece.count
            if job.reads:
                self.free_reads += piece.count
            job.open_pieces -= 1
            # What is left of it must not be posted, nor reported twice.
            if job is self.sends.first:
                self.sends.pop()
            elif job is self.reads.first:
                self.reads.pop()
            if not job.broken:
                job.broken = True
                job.taken = 0
                refused.append(job)
        refused.reverse()
        jobs.extend(refused)
        return 0

    cdef Job waiting(self):
        """Take a job that was not posted, or only in part; None when there is none. For the end of a connection."""
        cdef Job job = self.sends.pop()
        return job if job is not None else self.reads.pop()

    @property
    def idle(self):
        """Nothing is posted and nothing waits."""
        return self.posted == self.completed and self.sends.first is None and self.reads.first is None

    # -- For tests: the same from Python -------------------------------------------------------------------------

    def put(self, Job job):
        """Queue a job. Raises ValueError for Reads where the peer allows none."""
        self.submit(job)

    def post(self):
        """What may be posted now, in order: (token, first request, number of requests) of each piece."""
        cdef Piece *piece
        pieces = []
        while True:
            piece = self.take()
            if piece == NULL:
                return pieces
            pieces.append(((<Job>piece.job).token, piece.first, piece.count))

    def done(self, int pieces=1):
        """The oldest ``pieces`` have completed. Returns the tokens of the jobs that are over."""
        jobs = []
        for _ in range(min(pieces, self.posted - self.completed)):
            self.finish(self.completed, False, jobs)
        return [(<Job>job).token for job in jobs]

    def done_at(self, uint64_t sequence, bint flushed=False):
        """The piece of this sequence number has completed. Returns the tokens of the jobs that are over."""
        jobs = []
        self.finish(sequence, flushed, jobs)
        return [(<Job>job).token for job in jobs]

    def refuse(self, uint64_t first):
        """The device refused the pieces from this sequence number on. Returns their tokens."""
        jobs = []
        self.unpost(first, jobs)
        return [(<Job>job).token for job in jobs]

    def abandon(self):
        """Take all that waits. Returns the tokens."""
        cdef Job job
        tokens = []
        while True:
            job = self.waiting()
            if job is None:
                return tokens
            tokens.append(job.token)
