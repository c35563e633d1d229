"""C declarations of what each host makes the server remember."""


cdef class Figures:
    """What all accounts come to, and the bounds below which there is room for anybody."""

    cdef readonly long long octets
    cdef readonly long long share
    cdef readonly long long easy

    cdef bint is_easy(self, HostAccount account, long long octets) noexcept


cdef class HostAccount:
    cdef readonly Figures ledger
    cdef readonly str host
    cdef readonly str address
    cdef readonly tuple networks        # Part of those that it is in, the smallest first
    cdef readonly long long octets
    cdef readonly dict clients
    cdef public long delegations
    cdef public long copies
    cdef public long long cached_octets
    cdef public double relieved

    cpdef int charge(self, long long octets) except -1
