# distutils: extra_compile_args = -O2
"""Copies of messages and their data from one place in this process's memory to another, counted.

Owns the process's one count; imports nothing. All code that moves octets that the peer sent or is to get moves them by these
functions, so that the bench and the metrics can say how often each octet is copied. What encoding puts together (words,
names, handles, attributes) is not counted, and neither is what the kernel copies in system calls.
"""

from libc.string cimport memcpy, memmove

cdef extern from *:
    """
    static unsigned long long copied_so_far;

    /* Threads copy without the interpreter's lock. */
    static inline void count_copy(size_t size)
    {
        __atomic_fetch_add(&copied_so_far, size, __ATOMIC_RELAXED);
    }

    static inline unsigned long long copies_counted(void)
    {
        return __atomic_load_n(&copied_so_far, __ATOMIC_RELAXED);
    }
    """
    void count_copy(size_t size) noexcept nogil
    unsigned long long copies_counted() noexcept nogil


cdef void copy_octets(void *to, const void *source, size_t size) noexcept nogil:
    """memcpy(3)."""
    memcpy(to, source, size)
    count_copy(size)


cdef void move_octets(void *to, const void *source, size_t size) noexcept nogil:
    """memmove(3)."""
    memmove(to, source, size)
    count_copy(size)


def copied():
    return copies_counted()
