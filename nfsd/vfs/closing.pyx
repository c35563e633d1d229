"""Descriptors that a worker closes (contract: ``closing.pyi``).

Owns :class:`Closing`; imports the executor. A removal on a disk lets go of two or three descriptors, so that this is part of it:
those of one turn of the loop go to a worker together, in native code.
"""

import os

from libc.errno cimport errno

from nfsd.vfs.kernel cimport c_close
from nfsd.vfs.lanes cimport job_t

on_close = None


cdef void close_all(job_t *job) noexcept nogil:
    """What the worker does."""
    cdef closes_t *data = <closes_t *>job.data
    cdef int position
    for position in range(data.count):
        # The descriptor is gone even when that was interrupted.
        data.errors[position] = errno if c_close(data.descriptors[position]) != 0 else 0


cdef class Closes(Job):
    def __cinit__(self):
        self.data.count = 0
        self.job.run = close_all
        self.job.data = &self.data
        self.freed = []

    cdef int finished(self) except -1:
        cdef int position
        if self.job.refused:
            close_all(&self.job)  # no worker that could has had them
        self.closing.under_way.discard(self)
        if self.closing.latest.get(self.lane) is self:
            del self.closing.latest[self.lane]
        if self.future is not None and not self.future.done():
            self.future.set_result(None)
        for position in range(self.data.count):
            freed = self.freed[position]
            if freed is not None:
                freed()
            if self.data.errors[position]:  # file systems over a network, or in a process, may write back in close(2)
                self.closing.failed_in(self.lane, self.data.errors[position])
        return 0


cdef class Closing:
    def __init__(self, failed_in):
        self.failed_in = failed_in
        self.working = False
        self.latest, self.under_way = {}, set()

    def start(self, loop, Executor executor not None):
        self.loop, self.executor, self.working = loop, executor, True

    def stop(self):
        self.working = False

    def later(self, int descriptor, lane=0, freed=None):
        cdef Closes closes
        if not self.working or self.executor.closed or self.loop.is_closed():
            os.close(descriptor)
            return
        closes = self.latest.get(lane)
        if closes is None or closes.departed or closes.data.count == AT_ONCE:
            closes = Closes.__new__(Closes)
            closes.closing, closes.executor, closes.lane = self, self.executor, lane
            self.executor.submit(closes, lane)
            self.latest[lane] = closes
            self.under_way.add(closes)
        if on_close is not None:
            on_close(descriptor)
        closes.data.descriptors[closes.data.count] = descriptor
        closes.data.count += 1
        closes.freed.append(freed)

    def under_way_in(self, lane):
        cdef Closes closes
        cdef list found = []
        for closes in self.under_way:
            if closes.lane == lane:
                if closes.future is None:
                    closes.future = self.loop.create_future()
                found.append(closes.future)
        return found
