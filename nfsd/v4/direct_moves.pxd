"""C declarations of SAVEFH and RESTOREFH in native COMPOUNDs."""

from nfsd.v4.name_changes cimport NameChanges
from rpcrdma.place cimport Place


cdef class DirectMoves(NameChanges):
    """What makes files too, and what remembers them."""

    cdef bint savefh(self, Place place) except -1
    cdef bint restorefh(self, Place place) except -1
