"""C declarations of COMPOUNDs that change hands."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.records cimport SessionRecord, Slot
from nfsd.vfs.records cimport Node
from rpcrdma.rpc.tally cimport Tally


cdef class Halfway:
    """What the native operations of a COMPOUND have done, for those that go on."""

    cdef readonly size_t index          # of the operation to go on with
    cdef readonly size_t offset         # of its number in the COMPOUND's arguments
    cdef readonly bytes results         # COMPOUND4res so far
    cdef readonly Node current
    cdef readonly Node saved
    cdef readonly SessionRecord session     # None in NFSv4.0
    cdef Slot slot                      # held; likewise
    cdef readonly tuple sequence        # SEQUENCE4args; likewise
    cdef readonly size_t room           # octets that the reply may have in all
    cdef readonly bint changed          # something that nothing but the replay cache tells from a retransmission
    cdef readonly uint32_t shown        # the operation that the COMPOUND is about so far
    cdef readonly Tally tally
