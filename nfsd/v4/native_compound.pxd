"""C declarations of native COMPOUNDs: what their operations share."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.lookups cimport StateLookups
from nfsd.state.sequence cimport Sequencer
from nfsd.v4.fattr cimport Fattr
from nfsd.v4.under_way cimport Arguments, UnderWay, left, padded, room, store_opaque
from nfsd.vfs.records cimport Node
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand


cdef enum:
    RPC_HEADER = 24         # octets of an accepted reply's
    FAILURE = 12            # the longest result of an operation that fails without looking for room


cdef class NativeCompound(UnderWay):
    """COMPOUNDs, their SEQUENCE and the rules for all operations."""

    cdef StateLookups state
    cdef Sequencer sequencer
    cdef Fattr attributes
    cdef object delegations
    cdef size_t max_transfer
    cdef size_t max_reply
    cdef uint8_t kinds[128]     # by operation: what is known of it
    cdef uint32_t versions      # that are spoken

    cdef int fault(self, object error, Arguments *arguments, Place place) except -1
    cdef int compound(self, Arguments *arguments, Place place) except -1
    cdef bint begins(self, Arguments *arguments) except -1
    cdef int anew(self, const uint8_t *whole, const uint8_t *end, Place place) except -1
    cdef int run(self, Arguments *arguments, Place place) except -1
    cdef int over(self) except -1
    cdef int conclude(self, Arguments *arguments, Place place) except -1
    cdef int step(self, Arguments *arguments, Place place) except -1
    cdef uint32_t admit(self, uint8_t kind, Place place) noexcept
    cdef int carried_out(self, bint changing, Arguments *arguments, Place place) except -1
    cdef int declined_here(self, int outcome, Place place) except -1
    cdef int fail(self, uint32_t status, Place place) except -1
    cdef int not_brought(self, Errand errand, Place place) except -1
    cdef uint32_t too_big(self) noexcept
    cdef int fail_too_big(self, Place place) except -1
    cdef int forget_data(self, Place place) except -1
    cdef int keep(self, Place place) except -1
    cdef int keep_back(self, object error, Place place) except -1
    cdef int in_python(self, Arguments *arguments, Place place) except -1
    cdef bint put(self, object octets, object payloads, Place place) except -1
    cdef bint chunk_is_astray(self, const uint8_t *at) except -1
    cdef size_t size(self, Place place) noexcept
    cdef int operation(self, uint32_t number, Arguments *arguments, Place place) except -1
    cdef int go(self, Node node) except -1
    cdef int arrived(self, tuple found) except -1
    cdef bint told_by_us(self) except -1
    cdef bint look(self) except -1
