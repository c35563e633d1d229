"""C declarations of LOCK and LOCKU in native COMPOUNDs."""

from nfsd.v4.direct_compound cimport Arguments
from nfsd.v4.direct_moves cimport DirectMoves
from rpcrdma.place cimport Place


cdef class DirectLocks(DirectMoves):
    """Names, attributes and opens too, and byte-range locks."""

    cdef bint may_lock(self, Place place) except -1
    cdef bint locked(self, Place place, int number, object done) except -1
    cdef bint lock(self, Arguments *arguments, Place place) except -1
    cdef bint unlock(self, Arguments *arguments, Place place) except -1
