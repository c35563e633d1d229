"""C declarations of shared fsyncs."""

from nfsd.vfs.executor cimport Job
from rpcrdma.rpc.work cimport Errand


cdef class Sharer(Errand):
    """A call that waits for stable storage."""

    cdef Job depart(self, GroupSync group)
    cdef bint covered(self) except -1
    cdef int told(self, int error) except -1


cdef class GroupSync:
    cdef object start           # what begins the next fsync: a function, or one of the Sharers; None if nobody waits
    cdef readonly list waiting  # for the next one: futures and Sharers
    cdef list sharing           # the one under way, likewise
    cdef Job job                # that, if native code has begun it
    cdef readonly bint running
    cdef double began           # when the one under way did, in seconds
    cdef object delay           # of the next one: a timer; None: it is not delayed
    cdef Py_ssize_t expected    # how many may wait for it then
    cdef readonly tuple failures

    cdef int share(self, Sharer sharer) except -1
    cdef int joined(self) except -1
    cdef int begin(self) except -1
    cdef int go_on(self) except -1
    cdef int over(self, int error) except -1
