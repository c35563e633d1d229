"""C declarations of operations in Python, in COMPOUNDs."""

from libc.stdint cimport uint8_t

from nfsd.v4.native_compound cimport Arguments
from nfsd.v4.sequence cimport Nfs4Sequence
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand


cdef class InPython(Errand):
    """An operation is carried out by :mod:`nfsd.v4.compound`."""

    cdef object context         # nfsd.v4.compound.Compound
    cdef object decoder         # behind its arguments
    cdef object issued          # what the state engine had written before


cdef class PythonOperations(Nfs4Sequence):
    """The frame of COMPOUNDs, their slots, and operations without a native body."""

    cdef object context(self, Place place)
    cdef bint is_barred(self, const uint8_t *at, const uint8_t *end) noexcept
    cdef int have_done(self, InPython errand, Arguments *arguments, Place place) except -1
