"""What native code may touch of :mod:`rpcrdma.memory`: a lease's address, and taking and dropping counts."""


cdef struct FreeStack:
    char **items
    size_t length
    size_t capacity


cdef class Pool:
    cdef readonly size_t limit
    cdef readonly size_t in_use
    cdef readonly size_t mapped
    cdef readonly size_t leaked
    cdef FreeStack classes[13]
    cdef char **arenas
    cdef size_t arena_count
    cdef size_t arena_limit
    cdef list waiters
    cdef bint pumping
    cdef bint pump_again

    cdef char *take(self, int size_class) noexcept
    cdef int give(self, int size_class, char *block) noexcept
    cdef bint add_arena(self) noexcept
    cdef void coalesce(self) noexcept
    cdef void pump(self)


cdef class Account:
    cdef readonly Pool pool
    cdef readonly size_t limit
    cdef readonly size_t in_use

    cpdef Lease lease(self, Py_ssize_t size)


cdef class Lease:
    cdef readonly size_t capacity
    cdef readonly size_t address
    cdef int count
    cdef int size_class
    cdef Account account
    cdef object cached_view

    cpdef Lease retain(self)
    cpdef int release(self) except -1
    cdef void hand_back(self) noexcept
