"""Turns on one file: one operation at a time, or a train of writes (contract: ``serial.pyi``).

Owns no descriptor; imports the executor's jobs, and asyncio for its futures.

A train is jobs that one worker runs one behind the other. Writes to one file get into each other's way in the
kernel when several threads make them; and nobody else's are to come between the looks at the file around one. So those that
arrive while a train is under way are the next train. An operation that waits for its turn gets it between two trains.
"""

import asyncio
from collections import deque

from libc.errno cimport EIO

from rpcrdma.callers import CALLING_HOST
from rpcrdma.firewall import contain, report


cdef class Serial:
    @property
    def waited_for(self):
        return bool(self.waiters) or self.next_head is not None

    async def acquire(self):
        if not self.busy:
            self.busy = True
            return
        if self.waiters is None:
            self.waiters = deque()
        turn = asyncio.get_running_loop().create_future()
        self.waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self):
        if self.next_head is not None and self.head is None:
            self.depart()  # it has waited for the operation that is over
            return
        self.head = self.tail = None
        while self.waiters:
            turn = self.waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        if self.next_head is not None:
            self.depart()
        else:
            self.busy = False

    cdef int join(self, Job job) except -1:
        """Run a job in its turn. The first job of each train has :meth:`release` called when all of it is over. What
        raises has not taken the job."""
        if job.host is None:
            job.host = CALLING_HOST.get()  # whoever lets the train depart later
        if not self.busy:
            job.executor.submit(job, job.lane)
            self.busy = True
            self.head = self.tail = job
            return 0
        if self.head is not None and not self.head.departed and not self.waiters:
            self.tail.behind = job
            self.tail = job
            return 0
        if self.next_head is None:
            self.next_head = job
        else:
            self.next_tail.behind = job
        self.next_tail = job
        return 0

    cdef int depart(self) except -1:
        """The next train's turn has come."""
        cdef Job head = self.next_head
        self.head, self.tail = head, self.next_tail
        self.next_head = self.next_tail = None
        try:
            head.executor.submit(head, head.lane)
        except Exception as error:
            report(head, error)
            head.departed = True
            asyncio.get_running_loop().call_soon(contain, None, self.refuse)
        return 0

    def refuse(self):
        """No worker takes the train: its jobs fail, as if none could act as their callers."""
        cdef Job head = self.head
        cdef Job job = head
        cdef Job behind
        while job is not None:
            behind, job.behind = job.behind, None
            job.job.refused = EIO
            try:
                job.finished()
            except Exception as error:
                report(job, error)
            job = behind
        head.train_finished()

    cdef bint moving(self) noexcept:
        """Whether a train is under way: what is seen of the file may be its doing."""
        return self.writing or self.head is not None


async def take_both(one, other):
    """The turns on two files, in this order. While the second one is waited for, others are kept from the first."""
    await one.acquire()
    try:
        await other.acquire()
    except BaseException:
        one.release()
        raise
