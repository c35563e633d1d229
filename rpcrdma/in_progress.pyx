"""Calls in progress: how many there are, and whether another may begin (contract: ``in_progress.pyi``).

Owns the counts of a connection, of its host and of all hosts; imports :mod:`rpcrdma.pace`. What the bounds are for, and who
is told when there is room again, is :mod:`rpcrdma.hosts`'. Native because each call that waits is counted and counted off.
"""

from collections import deque


cdef class AllCalls:
    def __init__(self, long most, long most_of_host):
        self.most, self.most_of_host = most, most_of_host
        self.waiting = deque()


cdef class HostCalls:
    def __init__(self, AllCalls together not None):
        self.together = together

    def may_begin(self, long more=0):
        return self.has_room(more)

    cdef bint has_room(self, long more) noexcept:
        cdef long calls = self.calls + more
        cdef long most = self.together.most_of_host
        if calls == 0:
            return True
        if self.pace is not None and self.pace.most_calls:
            most = min(most, <long>self.pace.most_calls)
        return calls < most and self.together.calls < self.together.most


cdef class CountingSeat:
    def __init__(self, HostCalls counts not None):
        self.counts = counts

    def delayed(self):
        raise NotImplementedError

    def let_others(self):
        raise NotImplementedError

    def begin_call(self):
        return self.begin()

    def end_call(self):
        self.end()

    cdef bint begin(self) except -1:
        if not self.counts.has_room(0):
            if not self.queued:
                self.queued = True
                self.counts.together.waiting.append(self)
                self.delayed()
            return False
        self.counts.calls += 1
        self.counts.together.calls += 1
        return True

    cdef int end(self) except -1:
        self.counts.calls -= 1
        self.counts.together.calls -= 1
        if self.counts.together.waiting:
            self.let_others()
        return 0


cdef class CountingConnection:
    def __init__(self, CountingSeat seat not None, long most_calls):
        self.counted, self.most_calls = seat, most_calls

    def flush_soon(self):
        raise NotImplementedError

    def crashed(self):
        raise NotImplementedError

    def take_back(self, record, hold):
        raise NotImplementedError

    cpdef bint begin_held(self) except -1:
        if self.calls >= self.most_calls or self.draining or not self.counted.begin():
            return False
        self.calls += 1
        return True

    cdef int end_held(self) except -1:
        self.calls -= 1
        self.counted.end()
        if not self.closed and not self.flush_due:
            self.flush_soon()
        return 0
