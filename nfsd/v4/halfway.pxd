"""C declarations of COMPOUNDs that stand between two operations."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.owners cimport SeqidOwner
from nfsd.state.records cimport SessionRecord, Slot
from nfsd.vfs.native_files cimport Standing
from nfsd.vfs.records cimport Node
from rpcrdma.rpc.tally cimport Tally
from rpcrdma.rpc.work cimport Errand


cdef class Halfway:
    """What the operations of a COMPOUND have done, for those that go on."""

    cdef readonly size_t index          # of the operation to go on with
    cdef size_t offset                  # of its number in the COMPOUND's arguments
    cdef readonly bytes results         # COMPOUND4res so far
    cdef list payloads                  # of a general call: (where in the reply's head, Payload)
    cdef size_t beside                  # octets of these, padded
    cdef uint32_t failure               # the last operation's, with which the COMPOUND ends
    cdef Node current
    cdef Standing standing              # of the caller, there
    cdef object stateid                 # the current one; None: there is none
    cdef object pseudo                  # a place in the pseudo file system, instead of the current file
    cdef uint32_t foreign               # what is wrong with the current file's handle, where that is not said before it is used
    cdef Node saved                     # by SAVEFH, and what goes with it
    cdef object saved_pseudo
    cdef uint32_t saved_foreign
    cdef Standing saved_standing
    cdef object saved_stateid
    cdef Errand errand                  # what has been brought for the operation, or is on its way; None: nothing
    cdef SeqidOwner turn                # v4.0: the owner whose operation waits
    cdef object opened_by               # v4.0: the client whose OPEN is part of this; it does not know yet what it was given
    cdef size_t chunks_used             # of the call's
    cdef bint altered                   # an operation has been carried out that may change something
    cdef bint going                     # one has been begun that goes on whatever becomes of the call
    cdef list after                     # what is to be done once the reply is on its way
    # The request; without a session in NFSv4.0.
    cdef SessionRecord session
    cdef Slot slot                      # held
    cdef uint32_t sequenceid
    cdef uint32_t slotid
    cdef uint32_t highest_slotid
    cdef bint cachethis
    cdef size_t room                    # octets that the reply may have in all
    # What is counted.
    cdef uint32_t number                # of the last operation
    cdef uint32_t shown                 # the operation that the COMPOUND is about so far
    cdef Tally tally

    cdef Slot take_slot(self)
