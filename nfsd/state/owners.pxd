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
    cdef readonly object replay
    cdef public bytes last_closed


cdef class OpenOwner(SeqidOwner):
    cdef public bint confirmed
    cdef readonly dict states           # OpenState by file key
    cdef public int pending


cdef class LockOwner(SeqidOwner):
    cdef public object states           # a set of LockState
    cdef readonly dict files
