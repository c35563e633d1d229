"""C declarations of RENAME and LINK in native COMPOUNDs."""

from libc.stdint cimport uint8_t

from nfsd.v4.direct_compound cimport Arguments
from nfsd.v4.direct_creates cimport DirectCreates
from rpcrdma.place cimport Place


cdef class DirectMoves(DirectCreates):
    """What makes files too, and what gives them other names."""

    cdef bint savefh(self, Place place) except -1
    cdef bint restorefh(self, Place place) except -1
    cdef int rename(self, Arguments *arguments, Place place) except -1
    cdef int link(self, Arguments *arguments, Place place) except -1
