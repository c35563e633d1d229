"""C declarations of DELEGRETURN and GET_DIR_DELEGATION in COMPOUNDs."""

from nfsd.v4.native_compound cimport Arguments
from nfsd.v4.opens cimport Nfs4Opens
from rpcrdma.place cimport Place


cdef class Nfs4Delegations(Nfs4Opens):
    """Names, attributes and opens too, and delegations that come back, or are of directories."""

    cdef int delegreturn(self, Arguments *arguments, Place place) except -1
    cdef int get_dir_delegation(self, Arguments *arguments, Place place) except -1
    cdef int unavailable(self, Place place) except -1
