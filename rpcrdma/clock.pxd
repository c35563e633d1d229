"""The monotonic clock, for native code that must not hold up others for long."""

from libc.stdint cimport uint64_t

cdef extern from "time.h" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)
    const int CLOCK_MONOTONIC


cdef inline uint64_t nanoseconds() noexcept nogil:
    cdef timespec clock
    clock_gettime(CLOCK_MONOTONIC, &clock)
    return <uint64_t>clock.tv_sec * 1000000000 + clock.tv_nsec
