"""C declarations of what a call of NFSv3 waits for before it is carried out."""

from libc.stdint cimport uint32_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport Standing
from nfsd.vfs.records cimport Node, OpenFile
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.tally cimport Tally
from rpcrdma.rpc.work cimport Errand

cdef enum Kind:
    ARRIVAL                         # the file of a handle, and what the caller is there
    LOOK                            # the file's attributes
    OPENING                         # a descriptor, when no delegation is in the way
    PERMISSIONS                     # what the caller may do
    TEXT                            # of a symbolic link
    COMMITTING                      # whether the caller may have the file synchronised
    OTHER                           # as ARRIVAL, of the call's second handle
    RECALLED                        # that nobody has a delegation of these files
    ROOM                            # that fewer descriptors of the file have unstable writes


cdef class Progress:
    """What has been brought for one call so far. It is given back when the call is over."""

    cdef Node node
    cdef Standing standing
    cdef Node other                 # likewise of the call's second handle, if it has two
    cdef Standing other_standing
    cdef Tally tally
    cdef OpenFile opened            # a count of it
    cdef object hold                # while it lasts the file is not delegated
    cdef bint looked
    cdef bint blind                 # looking has failed
    cdef statx_t status             # what was seen then
    cdef int granted                # ACCESS3_*; -1: not known
    cdef bytes text                 # of a symbolic link; None: not known
    cdef bint asked                 # whether the file may be synchronised,
    cdef bint may_commit            # and it may
    cdef int tries                  # how often a change has been prepared in vain
    cdef uint32_t failure           # what is to be told once the file has been looked at


cdef class Need(Errand):
    """A call's wait for one of these."""

    cdef Kind kind
    cdef object service
    cdef object delegations
    cdef Caller caller
    cdef bytes handle               # of an arrival
    cdef tuple files                # to be recalled; None among them is nobody's
    cdef bint write                 # of an opening
    cdef bint looking               # of an arrival: only to get attributes
    cdef Progress progress

    cdef int settle(self, result) except -1


cdef Progress progress_of(Node node, Standing standing)
