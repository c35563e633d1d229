"""C declarations of the ledger of credits."""


cdef class Credits:
    cdef readonly long limit                # calls a peer may have outstanding when nothing is short
    cdef readonly long target               # Receives to keep posted
    cdef readonly long unfinished_limit
    cdef readonly long most                 # what the limit may become
    cdef public long asked                  # what the peer's last call asks for
    cdef public long taken                  # calls since the limit was set
    cdef public long posted
    cdef public long outstanding            # messages received and not answered yet, those being read included
    cdef public long unsent                 # replies, errors and backward calls whose Send has not completed
    cdef public long backward               # backward calls that await their reply

    cpdef bint due(self) noexcept
    cpdef int grow(self) except -1
    cdef bint crowded(self) noexcept
    cpdef long wanted(self) noexcept
    cpdef long grant(self, long apart=*) noexcept
    cpdef bint can_call_back(self) noexcept
