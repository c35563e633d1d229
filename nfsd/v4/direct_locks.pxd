"""C declarations of LOCK and LOCKU in native COMPOUNDs."""

from libc.stdint cimport uint8_t

from nfsd.v4.direct_compound cimport Arguments
from nfsd.v4.direct_moves cimport DirectMoves
from rpcrdma.place cimport Place


cdef class DirectLocks(DirectMoves):
    """Names, attributes and opens too, and byte-range locks."""

    cdef tuple locking          # the arguments of a LOCK to be carried out at the end
    cdef tuple unlocking        # of a LOCKU
    cdef uint8_t *stateid_at    # in its result

    cdef bint may_lock(self, Place place) except -1
    cdef int locked(self, Place place, int number) except -1
    cdef bint lock(self, Arguments *arguments, Place place) except -1
    cdef bint unlock(self, Arguments *arguments, Place place) except -1
