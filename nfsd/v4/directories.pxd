"""C declarations of READDIR in COMPOUNDs."""

from libc.stdint cimport uint8_t

from nfsd.v4.file_attributes cimport Nfs4Attributes
from nfsd.v4.native_compound cimport Arguments
from rpcrdma.memory cimport Lease
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand


cdef class Nfs4Directories(Nfs4Attributes):
    """Attributes too, and READDIR."""

    cdef int readdir(self, Arguments *arguments, Place place) except -1
    cdef int have_listed(self, Errand errand, const uint8_t *behind, Arguments *arguments, Place place) except -1
    cdef bint put_entries(self, object entries, Place place) except -1
    cdef bint set_beside(self, const uint8_t *octets, size_t size, Lease lease, Place place) except -1
