"""C declarations of what slows hosts down: rates, what is due for calls, and whose turn to go on it is."""

from libc.stdint cimport uint64_t


cdef class Rate:
    """What may be done in a second, and until when what has been done is paid for."""

    cdef readonly double octets         # in a second; 0: any number
    cdef readonly double calls
    cdef double octet_time              # nanoseconds
    cdef double call_time
    cdef uint64_t octets_paid           # by the clock
    cdef uint64_t calls_paid

    cdef uint64_t charge(self, uint64_t octets, uint64_t now) noexcept


cdef class Pace:
    """How fast one host goes."""

    cdef readonly bint limited          # if not, nobody looks further
    cdef readonly bint gone             # nobody asks for it any more
    cdef readonly unsigned int most_calls   # in progress; 0: any number
    cdef readonly uint64_t times_held   # that somebody had to wait
    cdef uint64_t held_since            # by the clock; 0: nobody waits
    cdef uint64_t held_before           # nanoseconds
    cdef uint64_t held_last             # by the clock: when somebody waited last
    cdef uint64_t until                 # by the clock: nothing of the host is read before
    cdef uint64_t hurried_until         # but until then it is
    cdef bint hurried                   # and what came then is not paid for yet
    cdef double octet_time              # nanoseconds, by its slowest rate
    cdef readonly dict rates            # what it is charged by itself, by whatever the rates are for
    cdef dict waiting                   # members, the first one first
    cdef object schedule
    cdef object timer

    cdef bint over(self) noexcept
    cdef void promise(self, uint64_t octets) noexcept
    cdef int arm(self) except -1
    cdef int at_once(self) except -1
    cdef int ended(self) except -1


cdef class Dues:
    """What calls of one client on one export are charged to."""

    cdef readonly Pace pace
    cdef readonly Rate own              # None: there is none
    cdef readonly Rate shared           # with all other clients
    cdef uint64_t charged               # octets so far

    cdef void take(self, uint64_t octets) noexcept
