"""C declarations of what the current file is in native COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.directories cimport Nfs4Directories
from nfsd.v4.native_compound cimport Arguments
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place


cdef class FileHandles(Nfs4Directories):
    """Attributes and directories too, and what the current file is."""

    cdef int putfh(self, Arguments *arguments, Place place) except -1
    cdef int putrootfh(self, uint32_t number, Arguments *arguments, Place place) except -1
    cdef int to_arrive(self, bytes handle, uint64_t only) except -1
    cdef uint64_t for_machine(self, const uint8_t *at, const uint8_t *end) except? 0
    cdef bint is_foreign(self, const uint8_t *behind, const uint8_t *end) noexcept
    cdef int getfh(self, Place place) except -1
    cdef int lookup(self, Arguments *arguments, Place place) except -1
    cdef bint is_shadowed(self) except -1
    cdef int to_look_up(self, opaque_t *name) except -1
    cdef int savefh(self, Place place) except -1
    cdef int restorefh(self, Arguments *arguments, Place place) except -1
    cdef int renew(self, Arguments *arguments, Place place) except -1
    cdef int nowhere(self, uint32_t number, Arguments *arguments, Place place) except -1
