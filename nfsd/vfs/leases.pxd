"""C declarations of leases."""

from nfsd.vfs.records cimport OpenFile
from nfsd.vfs.watches cimport Watches


cdef class Lease:
    cdef object __weakref__
    cdef Leases leases
    cdef tuple place                # what the watches know the file by
    cdef readonly OpenFile opened
    cdef readonly bint write
    cdef public bint broken         # somebody waits for it, or it is gone
    cdef readonly set holds


cdef class LeaseHold:
    cdef Lease lease
    cdef str host
    cdef object on_break

    cpdef int release(self) except -1


cdef class DirectoryWatch:
    cdef Leases leases
    cdef object node
    cdef object on_change


cdef class Leases:
    cdef object _loop
    cdef object _identify
    cdef dict _by_fd                # those the kernel knows of
    cdef set _all
    cdef int _signals
    cdef int _thread                # whose signals they are
    cdef object _blocked
    cdef readonly Watches _watches
    cdef public bint refused

    cpdef Lease lock(self, OpenFile opened, bint write)
    cpdef int unlock(self, Lease lease) except -1
