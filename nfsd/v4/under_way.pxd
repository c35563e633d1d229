"""C declarations of COMPOUNDs that are under way natively."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.owners cimport SeqidOwner
from nfsd.state.records cimport ClientRecord, SessionRecord, Slot
from nfsd.v4.counts cimport OperationCounts
from nfsd.v4.halfway cimport Halfway
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport Standing
from nfsd.vfs.native_names cimport NativeNames
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport NFS4_OPAQUE_LIMIT
from rpcrdma.octets cimport padded, store_opaque
from rpcrdma.place cimport Place
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.native_program cimport NativeProgram
from rpcrdma.rpc.offers cimport ReplyPlace
from rpcrdma.rpc.work cimport Errand, Work

cdef enum:
    # The longest result that an operation gives after it has waited without looking for room again: that of a LOCK that is
    # denied, with its number and status.
    UNCHECKED_RESULT = 8 + 32 + NFS4_OPAQUE_LIMIT

cdef struct Arguments:
    # What is left of the COMPOUND's arguments.
    const uint8_t *at
    const uint8_t *end


cdef inline size_t left(Arguments *arguments) noexcept nogil:
    return arguments.end - arguments.at


cdef inline bint room(Place place, size_t wanted) noexcept:
    return <size_t>(place.end - place.at) >= wanted


cdef class Learning(Errand):
    pass


cdef class UnderWay(NativeProgram):
    """One COMPOUND at a time."""

    cdef object server
    cdef NativeNames files
    # The COMPOUND at hand.
    cdef Caller caller
    cdef uint32_t minor
    cdef SessionRecord session  # None in NFSv4.0
    cdef ClientRecord client    # likewise
    cdef object opened_by       # v4.0: the client whose OPEN is part of this; it does not know yet what it was given
    cdef Slot slot              # which it holds; likewise
    cdef uint32_t sequenceid
    cdef uint32_t slotid
    cdef uint32_t highest_slotid
    cdef Halfway begun          # it goes on from here
    cdef Work brought           # for its next operation
    cdef bint cachethis
    cdef OperationCounts counts
    cdef ReplyPlace general     # where the reply of a general call is written; None: it is a transport's own path
    cdef uint32_t tag           # octets of it
    cdef size_t operations
    cdef size_t octets          # of the request, but for what came in chunks
    cdef bint chunked           # there are such
    cdef bint ended             # its operations are over
    cdef bint replayed          # the reply is one that a slot has kept
    cdef uint32_t refusal       # what the next operation is refused with, whatever it is; NFS4_OK
    cdef list after             # what is to be done once the reply is on its way
    cdef size_t counted         # so many operations are counted
    cdef uint8_t numbers[16]    # of those behind them
    cdef uint64_t octets_read
    cdef uint64_t octets_written
    cdef size_t index
    cdef uint32_t number        # of the operation
    cdef const uint8_t *part_at     # where that stands in the arguments; NULL: none has been begun
    cdef uint32_t failure       # its status, with which the COMPOUND ends
    cdef uint8_t *result_at     # where its result begins
    cdef uint8_t *start         # COMPOUND4res, in the reply
    cdef size_t limit           # octets that the reply may have
    cdef size_t beside          # of it that do not stand in the head
    cdef size_t beside_before   # likewise, before the present operation
    # On a transport's own path, the (first) READ whose data stand beside the results; NULL: there is none.
    cdef const uint8_t *data_at     # where it stands in the arguments
    cdef uint8_t *data_result_at
    cdef size_t data_index
    cdef uint64_t data_octets
    cdef Node current
    cdef Standing standing
    cdef object stateid         # the current one (RFC 8881 section 16.2.3.1.2); None: there is none
    cdef object pseudo          # a place in the pseudo file system, instead of the current file
    cdef uint32_t foreign       # what is wrong with the current file's handle, where that is not said before it is used
    cdef Node saved             # by SAVEFH, and what goes with it
    cdef object saved_pseudo
    cdef uint32_t saved_foreign
    cdef Standing saved_standing
    cdef object saved_stateid
    cdef SeqidOwner turn        # v4.0: an owner whose operation is under way
    cdef bint done              # by the present operation; it cannot be declined any more
    cdef bint seen              # ``status`` is the current file's
    cdef bint changed           # an operation has been carried out that may change something
    cdef bint going             # one has been begun that goes on whatever becomes of the call
    cdef statx_t status
    cdef const uint8_t *bulk_wanted     # where the data belong that an RDMA Read fetched; NULL: nowhere any more

    cdef bint resume(self, const uint8_t *whole, Arguments *arguments, Place place) except -1
    cdef bint same_standing(self) except -1
    cdef int learn(self) except -1
    cdef uint32_t learned(self) except? 0xFFFFFFFF
    cdef Halfway halt(self, const uint8_t *arguments)
    cdef int take_up(self, Work brought) except -1
    cdef int put_away(self) except -1
    cdef int tell(self) except -1
    cdef int give_back(self) except -1
    cdef int count_failure(self) except -1
    cdef bint hand_over(self, const uint8_t *arguments, Place place) except -1
    cdef int held_up(self, const uint8_t *arguments, Place place) except -1
    cdef int begin(self, Errand errand, bint changes=*) except -1
    cdef bint may_wait(self) except -1
    cdef Work brought_here(self)
    cdef void charge(self, Standing standing) noexcept
    cdef void leave(self) noexcept
    cdef uint32_t failed_in(self, Errand errand) except 0
    cdef void count(self, size_t operations) noexcept
