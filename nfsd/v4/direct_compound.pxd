"""C declarations of native COMPOUNDs: what their operations share."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.direct cimport DirectState
from nfsd.state.records cimport ClientRecord, SessionRecord, Slot
from nfsd.state.sequence cimport Sequencer
from nfsd.v4.counts cimport OperationCounts
from nfsd.v4.direct_attributes cimport DirectAttributes
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport Standing
from nfsd.vfs.direct_names cimport DirectNames
from nfsd.vfs.records cimport Node
from rpcrdma.octets cimport padded, store_opaque
from rpcrdma.place cimport Place
from rpcrdma.rpc.direct cimport Caller, DirectProgram
from rpcrdma.rpc.work cimport Work

cdef struct Arguments:
    # What is left of the COMPOUND's arguments.
    const uint8_t *at
    const uint8_t *end


cdef inline size_t left(Arguments *arguments) noexcept nogil:
    return arguments.end - arguments.at


cdef inline bint room(Place place, size_t wanted) noexcept:
    return <size_t>(place.end - place.at) >= wanted


cdef class Begun:
    """A COMPOUND that waits, and holds its slot meanwhile."""

    cdef SessionRecord session  # None in NFSv4.0
    cdef Slot slot              # likewise
    cdef uint32_t flags         # SEQUENCE's, as it was then
    cdef size_t index           # of the operation that waits
    cdef Node current           # as it was then, and what the caller is there
    cdef Standing standing
    cdef Node saved             # likewise
    cdef Standing saved_standing
    cdef object turn            # v4.0: the owner whose operation waits
    cdef int offers


cdef class DirectCompound(DirectProgram):
    """One COMPOUND after the other."""

    cdef object server
    cdef DirectNames files
    cdef DirectState state
    cdef Sequencer sequencer
    cdef DirectAttributes attributes
    cdef object delegations
    cdef size_t max_transfer
    cdef size_t max_reply
    # The COMPOUND at hand.
    cdef Caller caller
    cdef SessionRecord session  # None in NFSv4.0
    cdef ClientRecord client    # likewise
    cdef object opened_by       # v4.0: the client whose OPEN is part of this; it does not know yet what it was given
    cdef Slot slot              # which it holds; likewise
    cdef uint32_t flags         # SEQUENCE's
    cdef uint32_t slotid
    cdef uint32_t highest_slotid
    cdef Begun begun            # it has waited
    cdef Work brought           # for the operation that has
    cdef bint cachethis
    cdef uint32_t minor
    cdef uint32_t versions          # that are spoken
    cdef OperationCounts counts
    cdef uint8_t numbers[8]     # of the operations so far
    cdef uint64_t octets_read
    cdef uint64_t octets_written
    cdef size_t operations
    cdef size_t index
    cdef uint32_t number        # of the operation
    cdef const uint8_t *part_at     # where that stands in the arguments; NULL: none is under way
    cdef uint32_t failure       # its status, with which the COMPOUND ends
    cdef uint8_t *result_at     # where its result begins
    cdef uint8_t *start         # COMPOUND4res, in the reply
    cdef size_t limit           # octets that the reply may have
    cdef size_t beside          # of it that do not stand in the head
    cdef Node current
    cdef Standing standing
    cdef Node saved             # by SAVEFH
    cdef Standing saved_standing
    cdef object turn            # v4.0: an owner whose operation is under way
    cdef bint done              # something has been changed that is not changed twice
    cdef bint seen              # ``status`` is the current file's
    cdef bint changing          # something has been done, or is being, that may not be done twice
    cdef statx_t status
    cdef const uint8_t *bulk_wanted     # where the data belong that an RDMA Read fetched; NULL: nowhere any more

    cdef int compound(self, Arguments *arguments, size_t octets, Place place) except -1
    cdef bint begins(self, Arguments *arguments, uint32_t *tag) except -1
    cdef int give_back(self) except -1
    cdef int end(self, size_t operations, Place place) except -1
    cdef int fail(self, uint32_t status, Place place) except -1
    cdef int count_failure(self) except -1
    cdef bint parts(self) noexcept
    cdef bint hand_over(self, const uint8_t *arguments, Place place) except -1
    cdef bint sequence(self, Arguments *arguments, size_t octets, Place place) except -1
    cdef bytes kept(self, Place place)
    cdef int held_up(self) except -1
    cdef Work brought_here(self)
    cdef int operation(self, uint32_t number, Arguments *arguments, Place place) except -1
    cdef void count(self, size_t operations) noexcept
    cdef size_t size(self, Place place) noexcept
    cdef uint32_t fingerprint(self, Arguments *arguments, Place place) except? 0xFFFFFFFF
    cdef bint carry_out(self) except -1
    cdef int forget(self) except -1
    cdef bint told_by_us(self) except -1
    cdef bint look(self) except -1
