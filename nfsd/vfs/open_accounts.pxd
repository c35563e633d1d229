"""C declarations of who has how many descriptors open."""

from nfsd.vfs.records cimport OpenFile
from rpcrdma.parts cimport Part


cpdef OpenFile held_by(OpenFile opened, str host)
cpdef int let_by(OpenFile opened, str host) except -1


cdef class Lane:
    cdef readonly long in_use


cdef class Network(Part):
    cdef readonly object queue          # an OrderedDict


cdef class Host(Network):
    cdef readonly long guests
    cdef readonly dict lanes            # Share by lane


cdef class Share:
    cdef object __weakref__
    cdef readonly Places shares
    cdef readonly Host host
    cdef readonly int lane
    cdef readonly Lane whole_lane
    cdef readonly long in_use
    cdef readonly long guests
    cdef readonly long leaving
    cdef readonly object cached         # an OrderedDict
    cdef readonly object waiters

    cpdef int give_back(self) except -1
    cpdef int remember(self, OpenFile opened) except -1
    cpdef int forget(self, OpenFile opened) except -1
    cpdef int leaves(self, OpenFile opened) except -1


cdef class Places:
    """All places for descriptors, as far as they are free or change hands."""

    cdef public long exports
    cdef readonly long limit
    cdef readonly long host_limit
    cdef public long leaving
    cdef public long waiting
    cdef readonly Network everybody
    cdef readonly dict _hosts
    cdef readonly dict _lanes
    cdef object _networks
    cdef readonly long _plenty

    cpdef bint has_room(self, str host, int lane) except -1
    cpdef Share at_once(self, str host, int lane)
    cpdef bint take(self, OpenFile opened, str host) except -1
    cpdef int hold(self, OpenFile opened, str host) except -1
    cpdef int let(self, OpenFile opened, str host) except -1
    cpdef int drop(self, Share share) except -1
    cpdef Share _share(self, str host, int lane)
    cpdef Share _charge(self, Share share)
    cdef int count_guest(self, Share share, int change) except -1
    cdef int move(self, OpenFile opened, Share share) except -1
