"""Why calls are not answered natively, and how often: numbers that native code adds to where it declines."""

from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    ROWS = 80               # procedures of a program, or operations of a COMPOUND
    NOBODY = 2              # the row of what is too large to be any of these, or has not been found out

cdef enum Reason:
    RARE                    # the rest: errors to be told, arguments that few clients send
    NODE                    # the file is not among those in use, nor in memory
    STANDING                # what the caller may do has to be found out
    OPEN                    # the file is not open for the caller
    DATA                    # not in memory
    MAY_WAIT                # this file system may wait for a disk
    RECALL                  # somebody has a delegation
    BUSY                    # another call changes the file, or synchronises it
    STATE                   # a session, a stateid or stable storage is not as expected
    SIZE                    # the reply, or what is asked, is too large
    TURN                    # so much is for a worker, while others have their turns; or too much waits to be sent
    MEMORY
    CALLER                  # new to the connection, or not AUTH_SYS
    GATE                    # the peer is to be turned away, or asked about
    REPLAY                  # answered before, or being answered
    ATTRIBUTES              # are asked for that native code does not know
    PROCEDURE               # no native code for this procedure or operation, or for what stands behind it
    VERSION                 # of the transport header, or the minor version of a COMPOUND
    SHAPE                   # of the message: a header that is cut short, or is none
    CHUNKS                  # more than one, or where native code expects none
    CREDITS                 # none can be granted
    FAILED                  # the kernel refused; the error is told elsewhere
    REASONS


cdef str word(int reason)


cdef class Declined:
    """Calls declined, by row (see ``names``) and reason."""

    cdef readonly list names
    cdef uint64_t counts[ROWS][REASONS]

    cdef void add(self, uint32_t row, int reason) noexcept
