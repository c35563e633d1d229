"""One fsync for many callers (contract: ``syncing.pyi``).

Owns :class:`GroupSync` and what its native users derive from; knows no descriptor. Imports the executor's jobs, asyncio for
its futures, and contexts, in which it is known who calls.

An fsync under way may have passed a caller's pages already, so those who ask meanwhile all wait for the next one. One that
native code has begun is not under way before the loop's turn ends: who asks in the same turn shares it.

Those whom a long one has been for often ask again soon. If the next one began before, they would wait for the one after it,
and each would be for half of the callers. So after a long one, the next waits for them for a moment, or until all are there.
"""

import asyncio
import contextvars

from libc.errno cimport EIO

from time import monotonic

from rpcrdma.firewall import contain, report

cdef double LONG = 5e-3     # seconds that an fsync takes before the next one is delayed: most disks with a cache that forgets
cdef double MOMENT = 1e-3   # by which it is: what a client takes to ask again, and little beside that


cdef class Sharer(Errand):
    cdef Job depart(self, GroupSync group):
        """Begin an fsync on behalf of all who wait: a job that has been submitted, and calls ``group.over``."""
        raise NotImplementedError

    cdef bint covered(self) except -1:
        """Whether an fsync that another one has begun, and that has not started yet, is what this one needs."""
        return False

    cdef int told(self, int error) except -1:
        """The fsync is over, with this errno or 0."""
        raise NotImplementedError


cdef class GroupSync:
    def __cinit__(self):
        self.waiting = []
        self.failures = (0, 0)

    def join(self, start):
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        # Whose it is, too: it may begin at the end of another's.
        context = contextvars.copy_context()
        self.start = lambda finished: context.run(start, finished)
        self.joined()
        return future

    cdef int joined(self) except -1:
        """Somebody else waits for the next one. What raises is not waited for."""
        if self.delay is not None and len(self.waiting) >= self.expected:
            self.delay.cancel()
            self.delayed()  # others wait as well: what raises is told to all
        if self.running:
            return 0
        try:
            self.begin()
        except Exception:
            self.running, self.sharing = False, None
            raise
        return 0

    cdef int share(self, Sharer sharer) except -1:
        """Wait for the next fsync, as :meth:`join`."""
        if self.job is not None and not self.job.departed and sharer.covered():
            self.sharing.append(sharer)
            return 0
        self.waiting.append(sharer)
        self.start = sharer
        return self.joined()

    cdef int begin(self) except -1:
        start, self.start = self.start, None
        self.sharing, self.waiting = self.waiting, []
        self.running, self.began = True, monotonic()
        if isinstance(start, Sharer):
            self.job = (<Sharer>start).depart(self)
        else:
            start(self.finished)
        return 0

    def finished(self, int error):
        """The fsync that a function has begun is over."""
        self.over(error)

    cdef int over(self, int error) except -1:
        cdef list sharing = self.sharing
        self.sharing, self.job = None, None
        if error:
            self.failures = (self.failures[0] + 1, error)
        # First the next one: who is told may go on to wait once more.
        self.running = False
        self.expected = len(sharing) + len(self.waiting)
        if self.expected > 1 and monotonic() - self.began > LONG:
            self.running = True
            self.delay = asyncio.get_running_loop().call_later(MOMENT, contain, None, self.delayed)
        elif self.waiting:
            self.go_on()
        for each in sharing:
            try:
                if isinstance(each, Sharer):
                    (<Sharer>each).told(error)
                elif not each.done():
                    each.set_result(error)
            except Exception as failure:
                report(self, failure)  # the others are over as well
        return 0

    def delayed(self):
        """Nobody else is to be waited for."""
        self.delay, self.running = None, False
        if self.waiting:
            self.go_on()

    cdef int go_on(self) except -1:
        """Begin the next one, for those who wait."""
        try:
            self.begin()
        except Exception as failure:
            report(self, failure)
            asyncio.get_running_loop().call_soon(contain, None, self.finished, EIO)
        return 0
