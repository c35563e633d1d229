"""C declarations of SEQUENCE in COMPOUNDs."""

from libc.stdint cimport uint32_t

from nfsd.v4.native_compound cimport Arguments, NativeCompound
from rpcrdma.place cimport Place


cdef class Nfs4Sequence(NativeCompound):
    """The frame of COMPOUNDs, and their slots."""

    cdef int sequence(self, Arguments *arguments, Place place) except -1
    cdef int replay(self, object kept, Place place) except -1
    cdef object kept(self, Place place, bint anyway)
    cdef uint32_t fingerprint(self, Arguments *arguments, size_t *octets, Place place) except? 0xFFFFFFFF
