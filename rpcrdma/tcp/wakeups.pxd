"""C declarations of a connection that is woken."""

from rpcrdma.in_progress cimport CountingConnection, CountingSeat
from rpcrdma.tcp.stream cimport RecordStream


cdef class WokenConnection(CountingConnection):
    """A TCP connection of the server, as far as every wake-up concerns it."""

    cdef readonly RecordStream stream
    cdef readonly object waiting        # records, with their holds, that have yet to be dispatched
    cdef object time                    # the loop's
    cdef public bint reading            # whether it is woken when something can be read, or written
    cdef public bint writing
    cdef public bint resuming           # whether it is woken in the loop's next turn to go on
    cdef readonly Py_ssize_t served
    cdef public double last_call

    cdef int take(self, bint readable) except -1
    cdef bint settle(self) except -1
