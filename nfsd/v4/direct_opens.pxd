"""C declarations of OPEN and CLOSE in native COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.records cimport OpenState
from nfsd.v4.direct_compound cimport Arguments, DirectCompound
from nfsd.vfs.records cimport Credential, Node
from rpcrdma.place cimport Place


cdef class DirectOpens(DirectCompound):
    cdef bint prepared          # an OPEN or a CLOSE, to be carried out at the end
    # The OPEN.
    cdef Node opening
    cdef uint8_t *opening_at    # its result
    cdef bytes owner
    cdef Credential opener
    cdef uint32_t share
    cdef uint32_t denied
    # The CLOSE.
    cdef OpenState closing

    cdef bint open(self, Arguments *arguments, Place place) except -1
    cdef Node named(self, Arguments *arguments)
    cdef bint close(self, Arguments *arguments, Place place) except -1
