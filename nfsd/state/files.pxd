"""C declarations of what the engine knows of one file."""


cdef class FileState:
    cdef readonly bytes key
    cdef public object gate
    cdef public object node
    cdef readonly set opens
    cdef readonly set reservations
    cdef readonly int access_read
    cdef readonly int access_write
    cdef readonly int deny_read
    cdef readonly int deny_write
    cdef public object locks
    cdef readonly dict lock_hosts
    cdef public tuple departed
    cdef public object pending_lock
    cdef public list dirty
    cdef public list waiters
    cdef readonly dict delegations

    cpdef void add_share(self, int access, int deny) noexcept
    cpdef void drop_share(self, int access, int deny) noexcept
    cdef bint is_idle(self) noexcept
    cdef bint stands_against(self, int access, int deny) noexcept
    cdef bint is_gated(self) except -1
