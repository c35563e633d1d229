"""C declarations of open owners and lock owners."""

from nfsd.state.records cimport ClientRecord


cdef class SeqidOwner:
    """Who opens or locks; in NFSv4.0 its operations are ordered."""

    cdef readonly ClientRecord client
    cdef readonly bytes owner
    cdef public object gate
    cdef public object seqid            # an int; None before the first
    cdef readonly unsigned int pending_seqid
    cdef readonly bint busy
    # What it was answered last, to be given again (RFC 7530 section 9.1.9).
    cdef int status
    cdef bytes result                   # None: nothing
    cdef bytes filehandle
    cdef public bytes last_closed

    cpdef object begin(self, unsigned int seqid)
    cpdef int finish(self, int status, bytes result, bytes filehandle=*) except -1
    cpdef int abandon(self) except -1


cdef class OpenOwner(SeqidOwner):
    cdef public bint confirmed
    cdef readonly dict states           # OpenState by file key
    cdef public int pending


cdef class LockOwner(SeqidOwner):
    cdef public object states           # a set of LockState
    cdef readonly dict files
