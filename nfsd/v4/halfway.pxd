"""C declarations of COMPOUNDs that stand between two operations."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.records cimport SessionRecord, Slot
from nfsd.vfs.native_files cimport Standing
from nfsd.vfs.records cimport Node
from rpcrdma.rpc.tally cimport Tally
from rpcrdma.rpc.work cimport Errand

cdef enum:
    OPERATIONS = 16         # of one COMPOUND that are carried out natively, one behind the other


cdef class Halfway:
    """What the operations of a COMPOUND have done, for those that go on."""

    cdef readonly size_t index          # of the operation to go on with
    cdef readonly size_t offset         # of its number in the COMPOUND's arguments
    cdef readonly bytes results         # COMPOUND4res so far
    cdef readonly uint32_t failure      # the last operation's, with which the COMPOUND ends
    cdef readonly Node current
    cdef Standing standing              # of the caller, there
    cdef readonly object stateid        # the current one; None: there is none
    cdef readonly object pseudo         # a place in the pseudo file system, instead of the current file
    cdef readonly uint32_t foreign      # what is wrong with the current file's handle, where that is not said before it is used
    cdef readonly Node saved            # by SAVEFH, and what goes with it
    cdef readonly object saved_pseudo
    cdef readonly uint32_t saved_foreign
    cdef Standing saved_standing
    cdef readonly object saved_stateid
    cdef Errand errand                  # of the operation, which goes on by itself; None: there is none
    cdef object turn                    # v4.0: the owner whose operation waits
    cdef readonly object opened_by      # v4.0: the client whose OPEN is part of this; it does not know yet what it was given
    cdef readonly bint used             # the data that an RDMA Read fetched have been used
    cdef readonly bint changed          # an operation has been carried out that may change something
    cdef readonly bint driven           # by nfsd.v4.compound, which has the slot and the results before ``base``
    cdef readonly bint alone            # the operation to go on with; the next is not for those who carry it out
    cdef readonly size_t base           # the first operation whose result is in ``results``
    cdef readonly size_t elsewhere      # octets of the reply that are not in ``results``
    # The request; without a session in NFSv4.0.
    cdef readonly SessionRecord session
    cdef Slot slot                      # held
    cdef uint32_t sequenceid
    cdef uint32_t slotid
    cdef uint32_t highest_slotid
    cdef bint cachethis
    cdef readonly size_t room           # octets that the reply may have in all
    # What is counted.
    cdef uint8_t numbers[OPERATIONS]    # of the operations from ``base`` on
    cdef size_t counted                 # so many of them have been
    cdef uint64_t octets_read           # and have not been counted
    cdef uint64_t octets_written
    cdef readonly uint32_t number       # of the last one
    cdef readonly uint32_t shown        # the operation that the COMPOUND is about so far
    cdef readonly Tally tally
